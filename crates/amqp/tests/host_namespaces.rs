//! Virtual hosts of two namespaces of one broker: each has names, routes and dead letters of its
//! own.

use crate::host_common::{World, receive, to_queue};

#[test]
fn the_same_names_in_two_virtual_hosts_are_two_things() {
    let mut first = World::new();
    let second = first.beside("second");
    for world in [&first, &second] {
        world.queue_with("work", &to_queue("dead", &[]));
        world.queue("dead");
    }
    first.exchange("only here", "fanout");
    first.bind("work", "only here", "");
    first.publish("only here", "", "of the first");
    second.publish("", "work", "of the second");
    for world in [&first, &second] {
        world.settle();
    }
    let exchanges = |world: &World| {
        let all = world.host.exchanges();
        all.iter().any(|exchange| &*exchange.name == "only here")
    };
    assert_eq!((exchanges(&first), exchanges(&second)), (true, false));
    let work = second.host.queue(second.owner, "work").unwrap();
    let consumer = second.consumer(&work, 1);
    let got = receive(&consumer, "work");
    assert_eq!(got[0].body, "of the second");
    consumer.reject(got[0].id).unwrap();
    drop(consumer);
    for world in [&first, &second] {
        // Long enough for the housekeeping to persist which messages have moved.
        world.advance(20);
    }
    drop((work, second));

    first.kill_and_restart();
    let second = first.beside("second");
    let bodies = |world: &World, queue: &str| {
        let queue = world.host.queue(world.owner, queue).unwrap();
        world.bodies(&queue)
    };
    assert_eq!(bodies(&first, "work"), ["of the first"]);
    assert!(bodies(&first, "dead").is_empty());
    assert!(bodies(&second, "work").is_empty());
    assert_eq!(bodies(&second, "dead"), ["of the second"]);
    assert_eq!((exchanges(&first), exchanges(&second)), (true, false));
}
