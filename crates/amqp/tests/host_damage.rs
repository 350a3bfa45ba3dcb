//! Damage of the state journal: a queue with messages is restored from its folder, with its
//! arguments; queues that were to end with the process do.

use crate::host_common::World;
use cloverleaf_amqp::wire::Value;
use cloverleaf_log::OpenMode;

/// Damages each entry of the journal that defines the topic with this id.
fn damage_entries_of(world: &World, id: &str) {
    let file = world.disk.mount().open("state.0", OpenMode::Existing);
    let file = file.unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let places = bytes.windows(id.len()).enumerate();
    let places = places.filter(|(_, part)| *part == id.as_bytes());
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        world.disk.corrupt("state.0", at as u64, b"#");
    }
}

#[test]
fn a_queue_is_found_again_by_its_folder() {
    let mut world = World::new();
    let arguments = [("x-max-priority", Value::U8(3))];
    let queue = world.queue_with("q", &arguments);
    world.publish("", "q", "a");
    world.publish("", "q", "b");
    let exclusive = world.declare("", &[], |declare| {
        declare.durable = false;
        declare.exclusive = true;
    });
    let exclusive = exclusive.unwrap();
    world.publish("", &exclusive.name, "c");
    world.exchange("x", "direct");
    world.bind("q", "x", "key");
    world.settle();
    let ids = [&queue, &exclusive].map(|queue| queue.topic.id());
    drop((queue, exclusive));
    for id in ids {
        damage_entries_of(&world, &id.to_string());
    }
    world.kill_and_restart();
    world.settle();
    // A queue declared with other arguments would be refused.
    let queue = world.declare("q", &arguments, |declare| declare.passive = true);
    let queue = queue.unwrap();
    assert!(world.declare("q", &[], |_| {}).is_err());
    assert_eq!(queue.topic.id(), ids[0]);
    assert_eq!(world.routed("x", "key"), ["q"]);
    assert_eq!(world.bodies(&queue), ["a", "b"]);
    assert!(world.broker.topic_by_id(ids[1]).is_none());
    world.kill_and_restart();
    assert!(world.broker.topic_by_id(ids[1]).is_none());
}
