//! Kills at each write to the disk, and power losses. The virtual host opened afterwards must be
//! one that the declarations can have led to, and must have everything that was answered before a
//! kill.
//!
//! More seeds: `CLOVERLEAF_SEEDS=5000 cargo test -p cloverleaf-amqp --test host_crashes --release`.

use std::collections::{BTreeMap, BTreeSet};

use crate::host_common::{Random, World};
use cloverleaf_amqp::exception::Exception;
use cloverleaf_amqp::host::SUBSCRIPTION;
use cloverleaf_amqp::routing::Destination;
use cloverleaf_amqp::wire::{Table, Value, method, table_bytes};
use cloverleaf_broker::TopicOptions;

const QUEUES: [&str; 3] = ["q0", "q1", "q2"];
const EXCHANGES: [&str; 3] = ["x0", "x1", "x2"];
const KEYS: [&str; 2] = ["a", "b"];

/// The definitions that must exist, according to the answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Model {
    queues: BTreeSet<&'static str>,
    /// With the flag `auto_delete`.
    exchanges: BTreeMap<&'static str, bool>,
    bindings: BTreeSet<(&'static str, &'static str, &'static str)>,
}

impl Model {
    fn drop_bindings(&mut self, goes: impl Fn(&(&str, &str, &str)) -> bool) {
        let gone: Vec<_> = self.bindings.iter().filter(|b| goes(b)).copied().collect();
        for binding in gone {
            self.bindings.remove(&binding);
            let (source, ..) = binding;
            let is_last = !self.bindings.iter().any(|(other, ..)| *other == source);
            if is_last && self.exchanges.get(source) == Some(&true) {
                self.exchanges.remove(source);
            }
        }
    }
}

/// One change, which can be carried out and applied to the model.
#[derive(Debug, Clone, Copy)]
enum Change {
    DeclareQueue(usize),
    DeleteQueue(usize),
    DeclareExchange(usize, bool),
    DeleteExchange(usize),
    Bind(usize, usize, usize),
    Unbind(usize, usize, usize),
}

impl Change {
    fn random(random: &mut Random) -> Self {
        let mut below = |end| usize::try_from(random.below(end)).unwrap();
        let (queue, exchange, key) = (below(3), below(3), below(2));
        match below(10) {
            0 | 1 => Self::DeclareQueue(queue),
            2 => Self::DeleteQueue(queue),
            3 | 4 => Self::DeclareExchange(exchange, key == 0),
            5 => Self::DeleteExchange(exchange),
            6..=8 => Self::Bind(exchange, queue, key),
            _ => Self::Unbind(exchange, queue, key),
        }
    }

    fn carry_out(self, world: &World) -> Result<(), Exception> {
        let host = &world.host;
        let none = Table::default();
        match self {
            Self::DeclareQueue(queue) => world
                .declare(QUEUES[queue], &[("x-max-priority", Value::U8(1))], |_| {})
                .map(|_| ()),
            Self::DeleteQueue(queue) => host
                .delete_queue(world.owner, QUEUES[queue], false, false)
                .map(|_| ()),
            Self::DeclareExchange(exchange, auto_delete) => {
                host.declare_exchange(&method::ExchangeDeclare {
                    exchange: EXCHANGES[exchange],
                    kind: "direct",
                    durable: true,
                    auto_delete,
                    ..method::ExchangeDeclare::default()
                })
            }
            Self::DeleteExchange(exchange) => host.delete_exchange(EXCHANGES[exchange], false),
            Self::Bind(exchange, queue, key) => host.bind_queue(
                world.owner,
                QUEUES[queue],
                EXCHANGES[exchange],
                KEYS[key],
                none,
            ),
            Self::Unbind(exchange, queue, key) => host.unbind_queue(
                world.owner,
                QUEUES[queue],
                EXCHANGES[exchange],
                KEYS[key],
                none,
            ),
        }
    }

    fn apply(self, model: &mut Model) {
        match self {
            Self::DeclareQueue(queue) => drop(model.queues.insert(QUEUES[queue])),
            Self::DeleteQueue(queue) => {
                model.queues.remove(QUEUES[queue]);
                model.drop_bindings(|(_, to, _)| *to == QUEUES[queue]);
            }
            Self::DeclareExchange(exchange, auto_delete) => {
                model
                    .exchanges
                    .entry(EXCHANGES[exchange])
                    .or_insert(auto_delete);
            }
            Self::DeleteExchange(exchange) => {
                model.exchanges.remove(EXCHANGES[exchange]);
                model.drop_bindings(|(from, ..)| *from == EXCHANGES[exchange]);
            }
            Self::Bind(exchange, queue, key) => {
                model
                    .bindings
                    .insert((EXCHANGES[exchange], QUEUES[queue], KEYS[key]));
            }
            Self::Unbind(exchange, queue, key) => {
                let binding = (EXCHANGES[exchange], QUEUES[queue], KEYS[key]);
                model.drop_bindings(|b| *b == binding);
            }
        }
    }
}

/// The definitions that the virtual host has.
fn seen(world: &World) -> Model {
    let own = |all: &[&'static str], name: &str| all.iter().copied().find(|own| *own == name);
    let mut model = Model::default();
    for queue in world.host.queues() {
        assert!(queue.topic.subscription(SUBSCRIPTION).is_some());
        assert_eq!(queue.topic.partition_count(), 2);
        model.queues.insert(own(&QUEUES, &queue.name).unwrap());
    }
    for exchange in world.host.exchanges() {
        if let Some(name) = own(&EXCHANGES, &exchange.name) {
            model.exchanges.insert(name, exchange.auto_delete);
        }
    }
    for binding in world.host.bindings() {
        let Destination::Queue(queue) = &binding.destination else {
            panic!("{binding:?}");
        };
        let (source, queue) = (own(&EXCHANGES, &binding.source), own(&QUEUES, queue));
        let key = own(&KEYS, &binding.key).unwrap();
        model
            .bindings
            .insert((source.unwrap(), queue.unwrap(), key));
    }
    model
}

/// Checks that both ends of each binding exist, and that nothing else is persisted.
fn check_whole(world: &World, model: &Model) {
    for (source, queue, _) in &model.bindings {
        assert!(
            model.exchanges.contains_key(source) && model.queues.contains(queue),
            "{model:?}"
        );
    }
    let kept = world.broker.kept_under("amqp/").len();
    assert_eq!(kept, model.exchanges.len() + model.bindings.len());
    for topic in world.broker.topics() {
        assert!(model.queues.contains(topic.name()), "{topic:?} is no queue");
    }
}

fn seeds() -> u64 {
    let seeds = std::env::var("CLOVERLEAF_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(40)
}

#[test]
fn a_kill_takes_back_nothing_that_was_answered_and_leaves_nothing_half_done() {
    for seed in 0..seeds() {
        let mut world = World::new();
        let mut random = Random(seed);
        let mut model = Model::default();
        for _ in 0..6 {
            for _ in 0..random.below(12) {
                let change = Change::random(&mut random);
                if change.carry_out(&world).is_ok() {
                    change.apply(&mut model);
                }
                assert_eq!(seen(&world), model, "seed {seed}: {change:?}");
            }
            // The disk dies in the middle of one change.
            let (mut before, mut after) = (model.clone(), model.clone());
            world.disk.crash_after(random.below(5));
            for _ in 0..6 {
                let change = Change::random(&mut random);
                let result = change.carry_out(&world);
                if result.is_ok() {
                    change.apply(&mut before);
                    after = before.clone();
                } else {
                    // Refused by the virtual host, or begun and not answered.
                    change.apply(&mut after);
                    if seen(&world) != before
                        || matches!(&result, Err(error) if error.code.is_hard())
                    {
                        break;
                    }
                    after = before.clone();
                }
            }
            world.kill_and_restart();
            model = seen(&world);
            check_whole(&world, &model);
            let possible = model == before || model == after || is_between(&model, &before, &after);
            assert!(
                possible,
                "seed {seed}:\n{before:?}\n{after:?}\nbut\n{model:?}"
            );
        }
    }
}

/// Whether the definitions lie between two states: a change that removes several was done in part.
fn is_between(model: &Model, before: &Model, after: &Model) -> bool {
    let queues = model.queues == before.queues || model.queues == after.queues;
    let exchanges = model.exchanges.iter().all(|(name, auto)| {
        before.exchanges.get(name) == Some(auto) || after.exchanges.get(name) == Some(auto)
    });
    let kept = after
        .exchanges
        .keys()
        .filter(|name| before.exchanges.contains_key(*name));
    let exchanges = exchanges && kept.clone().all(|name| model.exchanges.contains_key(name));
    let all: BTreeSet<_> = before.bindings.union(&after.bindings).copied().collect();
    let both: BTreeSet<_> = before
        .bindings
        .intersection(&after.bindings)
        .copied()
        .collect();
    queues && exchanges && model.bindings.is_subset(&all) && model.bindings.is_superset(&both)
}

#[test]
fn a_power_loss_leaves_a_virtual_host_that_was_there_at_some_time() {
    for seed in 0..seeds() {
        let mut world = World::new();
        let mut random = Random(seed ^ 0x5eed);
        for round in 0..4 {
            for _ in 0..random.below(16) {
                // A change may be refused.
                let _ = Change::random(&mut random).carry_out(&world);
            }
            let synced = random.below(2) == 0;
            if synced {
                world.broker.sync_definitions().unwrap();
            }
            let before = seen(&world);
            world.lose_power_and_restart(random.next());
            let after = seen(&world);
            check_whole(&world, &after);
            if synced {
                assert_eq!(after, before, "seed {seed}, round {round}");
            }
        }
    }
}

#[test]
fn a_crash_while_a_queue_leaves_its_topic_is_ended_at_the_start() {
    for changes in 0..8 {
        let mut world = World::new();
        let topic = world
            .broker
            .topic_or_create("t", TopicOptions::default)
            .unwrap();
        topic
            .subscription_or_create("other", Default::default)
            .unwrap();
        world.queue("t");
        world.bind("t", "amq.fanout", "");
        world.disk.crash_after(changes);
        let result = world.host.delete_queue(world.owner, "t", false, false);
        world.kill_and_restart();
        let topic = world.broker.topic("t").unwrap();
        assert!(topic.subscription("other").is_some());
        let is_queue = !world.host.queues().is_empty();
        assert_eq!(topic.subscription(SUBSCRIPTION).is_some(), is_queue);
        assert_eq!(topic.options().settings.is_empty(), !is_queue);
        assert_eq!(world.host.bindings().is_empty(), !is_queue);
        if result.is_ok() {
            assert!(!is_queue);
        }
    }
}

#[test]
fn a_crash_while_a_queue_is_made_of_a_topic_makes_it_or_not() {
    for changes in 0..8 {
        let mut world = World::new();
        world
            .broker
            .topic_or_create("t", TopicOptions::default)
            .unwrap();
        world.disk.crash_after(changes);
        let result = world.declare("t", &[("x-max-priority", Value::U8(3))], |_| {});
        let result = result.map(|_| ());
        world.kill_and_restart();
        let topic = world.broker.topic("t").unwrap();
        let queues = world.host.queues();
        assert_eq!(
            topic.subscription(SUBSCRIPTION).is_some(),
            !queues.is_empty()
        );
        if let Some(queue) = queues.first() {
            assert_eq!(topic.partition_count(), queue.levels);
        } else {
            assert!(result.is_err());
        }
    }
}

#[test]
fn bindings_of_a_queue_that_is_gone_do_not_meet_its_successor() {
    let mut world = World::new();
    world.queue("q");
    world.bind("q", "amq.fanout", "");
    // Simulates that the binding's entry could not be removed from the journal.
    let kept = world.broker.kept_under("amqp/binding/");
    world
        .host
        .delete_queue(world.owner, "q", false, false)
        .unwrap();
    world.queue("q");
    for (key, value) in kept {
        world.broker.put_value(&key, Some(value)).unwrap();
    }
    world.kill_and_restart();
    assert!(world.routed("amq.fanout", "").is_empty());
    assert!(world.broker.kept_under("amqp/").is_empty());
    // The same for an exchange, which must not be auto-deleted because of leftover bindings.
    let declare = |world: &World| {
        let auto = |declare: &mut method::ExchangeDeclare<'_>| declare.auto_delete = true;
        world.declare_exchange("x", "fanout", auto).unwrap();
    };
    declare(&world);
    world.bind("q", "x", "");
    let kept = world.broker.kept_under("amqp/binding/");
    world.host.delete_exchange("x", false).unwrap();
    declare(&world);
    for (key, value) in kept {
        world.broker.put_value(&key, Some(value)).unwrap();
    }
    world.kill_and_restart();
    assert!(world.routed("x", "").is_empty());
    let arguments = table_bytes(&[("k", Value::Void)]);
    let table = Table::check(&arguments).unwrap();
    world
        .host
        .bind_queue(world.owner, "q", "amq.fanout", "", table)
        .unwrap();
    world.kill_and_restart();
    assert_eq!(world.routed("amq.fanout", ""), ["q"]);
}
