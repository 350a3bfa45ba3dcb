//! Dynamic settings of the broker and of groups: their effect, their precedence, and what remains
//! of them after a kill.

use kafka_protocol::messages::ListConfigResourcesRequest;

use crate::control_configs::{
    APPEND, BROKER, DELETE, SET, SUBTRACT, TOPIC, describe, edit, edit_in, entry, make_topic,
    replace_in, shown, with_topic,
};
use crate::control_world::{World, text};

const GROUP: i8 = 32;
const INVALID_CONFIG: i16 = 40;
const INVALID_REQUEST: i16 = 42;

type Edits<'a> = &'a [(&'a str, i8, Option<&'a str>)];

fn edit_broker(world: &World, name: &str, edits: Edits<'_>) -> (i16, String) {
    edit_in(world, 1, BROKER, name, edits, false)
}

/// A setting of the broker or of a group: value, source and number of synonyms.
fn described(world: &World, kind: i8, resource: &str, key: &str) -> (String, i8, usize) {
    let result = describe(world, 4, kind, resource);
    let entry = entry(&result, key);
    let value = entry.value.as_ref().unwrap().to_string();
    (value, entry.config_source, entry.synonyms.len())
}

fn is(value: &str, source: i8, synonyms: usize) -> (String, i8, usize) {
    (value.to_owned(), source, synonyms)
}

#[test]
fn defaults_of_topics_are_changed_and_topics_follow() {
    let mut world = with_topic("before");
    world.foreign_topic("nsq");
    assert_eq!(
        edit(&world, "before", &[("segment.ms", SET, Some("7"))]).0,
        0
    );
    let edits: Edits<'_> = &[
        ("log.retention.ms", SET, Some("5000")),
        ("log.roll.ms", SET, Some("9")),
        ("log.segment.bytes", SET, Some("1000000")),
        ("message.max.bytes", SET, Some("2000")),
        ("log.message.timestamp.type", SET, Some("LogAppendTime")),
        ("log.flush.interval.ms", SET, Some("1")),
    ];
    assert_eq!(edit_broker(&world, "1", edits), (0, String::new()));
    for _ in 0..2 {
        make_topic(&world, "after");
        for topic in ["before", "after"] {
            let options = world.topic(topic).options();
            assert_eq!(options.retention.ms, Some(5_000), "{topic}");
            assert_eq!(options.segment_bytes, Some(1_000_000));
            assert_eq!(options.batch_bytes_max, Some(2_000));
            assert!(options.append_time && options.durability.is_some());
            assert_eq!(shown(&world, topic, "retention.ms"), ("5000".to_owned(), 2));
            assert_eq!(shown(&world, topic, "max.message.bytes").1, 2);
        }
        // A topic's own settings do not change, nor does a topic that another protocol has created.
        assert_eq!(world.topic("before").options().segment_ms, Some(7));
        assert_eq!(world.topic("after").options().segment_ms, Some(9));
        let nsq = world.topic("nsq").options();
        assert!(nsq.retention.consumed && nsq.retention.ms.is_none());
        assert_eq!((nsq.segment_bytes, nsq.batch_bytes_max), (None, None));
        world.kill_and_restart();
    }
    assert_eq!(
        described(&world, BROKER, "1", "log.retention.ms"),
        is("5000", 2, 2)
    );
    let back: Vec<_> = edits.iter().map(|(key, ..)| (*key, DELETE, None)).collect();
    assert_eq!(edit_broker(&world, "1", &back), (0, String::new()));
    let options = world.topic("before").options();
    assert_eq!(options.retention.ms, Some(604_800_000));
    assert_eq!(
        (options.segment_bytes, options.batch_bytes_max),
        (None, None)
    );
    assert!(!options.append_time && options.durability.is_none());
    assert_eq!(
        described(&world, BROKER, "1", "log.retention.ms"),
        is("604800000", 5, 1)
    );
}

#[test]
fn settings_of_the_broker_override_the_cluster_wide_defaults() {
    let world = with_topic("t");
    let set = |name: &str, value| {
        let edits = [("log.retention.bytes", SET, Some(value))];
        assert_eq!(edit_broker(&world, name, &edits), (0, String::new()));
    };
    let of_topic = || world.topic("t").options().retention.bytes;
    set("", "10");
    assert_eq!(of_topic(), Some(10));
    assert_eq!(
        described(&world, BROKER, "", "log.retention.bytes"),
        is("10", 3, 1)
    );
    set("1", "20");
    assert_eq!(of_topic(), Some(20));
    assert_eq!(
        described(&world, BROKER, "1", "log.retention.bytes"),
        is("20", 2, 3)
    );
    assert_eq!(
        described(&world, TOPIC, "t", "retention.bytes"),
        is("20", 2, 3)
    );
    assert_eq!(describe(&world, 4, BROKER, "").configs.len(), 1);
    // AlterConfigs replaces all settings.
    assert_eq!(
        replace_in(&world, 2, BROKER, "1", &[("background.threads", "9")]),
        0
    );
    assert_eq!(of_topic(), Some(10));
    assert_eq!(
        described(&world, BROKER, "1", "background.threads"),
        is("9", 2, 2)
    );
    assert_eq!(replace_in(&world, 2, BROKER, "", &[]), 0);
    assert_eq!(of_topic(), None);
}

#[test]
fn lists_of_the_broker_are_appended_to() {
    let world = with_topic("t");
    let policy = [("log.cleanup.policy", APPEND, Some("compact"))];
    assert_eq!(edit_broker(&world, "1", &policy), (0, String::new()));
    assert!(world.topic("t").options().compaction.is_some());
    assert_eq!(shown(&world, "t", "cleanup.policy").0, "compact,delete");
    let policy = [("log.cleanup.policy", SUBTRACT, Some("compact"))];
    assert_eq!(edit_broker(&world, "1", &policy), (0, String::new()));
    assert!(world.topic("t").options().compaction.is_none());
    assert_eq!(
        described(&world, BROKER, "1", "log.cleanup.policy"),
        is("delete", 2, 2)
    );
}

#[test]
fn unknown_and_read_only_settings_are_refused_without_effect() {
    let world = with_topic("t");
    for (key, value) in [
        ("num.partitions", "3"),
        ("node.id", "3"),
        ("log.retention.hours", "3"),
        ("no.such.setting", "3"),
        ("num.io.threads", "0"),
        ("log.retention.ms", "long"),
        ("retention.ms", "1"),
    ] {
        let edits = [("log.roll.ms", SET, Some("5")), (key, SET, Some(value))];
        let (code, message) = edit_broker(&world, "1", &edits);
        assert_eq!(code, INVALID_REQUEST, "{key}");
        assert!(message.contains(key), "{message}");
        assert!(!message.contains("log.roll.ms"), "{message}");
    }
    let lag = [(
        "log.cleaner.min.compaction.lag.ms",
        SET,
        Some("9223372036854775807"),
    )];
    assert_eq!(edit_broker(&world, "1", &lag), (0, String::new()));
    let lag = [("log.cleaner.max.compaction.lag.ms", SET, Some("5"))];
    assert_eq!(edit_broker(&world, "", &lag).0, INVALID_REQUEST);
    for wrong in ["2", "x"] {
        assert_eq!(edit_broker(&world, wrong, &[]).0, INVALID_REQUEST);
    }
    let tried = [("log.roll.ms", SET, Some("5"))];
    assert_eq!(edit_in(&world, 1, BROKER, "1", &tried, true).0, 0);
    assert_eq!(
        described(&world, BROKER, "1", "log.roll.ms"),
        is("604800000", 5, 1)
    );
}

#[test]
fn group_settings_are_stored() {
    let mut world = World::new();
    let key = "consumer.session.timeout.ms";
    assert_eq!(described(&world, GROUP, "readers", key), is("45000", 5, 1));
    let edit_group = |world: &World, group: &str, edits: Edits<'_>| {
        edit_in(world, 1, GROUP, group, edits, false)
    };
    let set = [(key, SET, Some("50000"))];
    assert_eq!(edit_group(&world, "readers", &set), (0, String::new()));
    world.kill_and_restart();
    assert_eq!(described(&world, GROUP, "readers", key), is("50000", 8, 2));
    assert_eq!(described(&world, GROUP, "others", key), is("45000", 5, 1));
    let list = |world: &World| {
        let request = ListConfigResourcesRequest::default().with_resource_types(vec![GROUP]);
        let found = world.ask(1, &request).config_resources.into_iter();
        let names: Vec<_> = found.map(|it| it.resource_name).collect();
        names
    };
    assert_eq!(list(&world), [text("readers")]);
    for (key, value) in [(key, "0"), ("share.session.timeout.ms", "1"), ("x", "1")] {
        let (code, message) = edit_group(&world, "readers", &[(key, SET, Some(value))]);
        assert_eq!(code, INVALID_CONFIG);
        assert!(message.contains(key), "{message}");
    }
    assert_eq!(edit_group(&world, "", &set).0, INVALID_REQUEST);
    assert_eq!(
        edit_group(&world, &"g".repeat(1_001), &set).0,
        INVALID_REQUEST
    );
    assert_eq!(edit_group(&world, "readers", &[(key, DELETE, None)]).0, 0);
    assert!(list(&world).is_empty());
}

#[test]
fn after_a_kill_a_default_and_its_topics_agree() {
    const TOPICS: [&str; 3] = ["a", "b", "c"];
    // With a broker that has run since it was created, and with one that was restarted before the
    // change.
    for is_restarted in [false, true] {
        for changes in 0.. {
            let mut world = with_topic("a");
            TOPICS.iter().for_each(|topic| make_topic(&world, topic));
            assert_eq!(edit(&world, "c", &[("segment.ms", SET, Some("7"))]).0, 0);
            if is_restarted {
                world.kill_and_restart();
            }
            world.disk.crash_after(changes);
            let edits = [("log.retention.ms", SET, Some("5000"))];
            let survived = edit_broker(&world, "1", &edits).0 == 0;
            world.kill_and_restart();
            let (default, source, _) = described(&world, BROKER, "1", "log.retention.ms");
            for topic in TOPICS {
                let of_topic = shown(&world, topic, "retention.ms");
                assert_eq!(of_topic, (default.clone(), source), "{changes} changes");
            }
            if survived {
                assert_eq!(default, "5000");
                break;
            }
        }
    }
}

#[test]
fn a_default_that_cannot_be_written_changes_nothing() {
    let world = with_topic("t");
    world.disk.crash_after(0);
    let edits = [("log.retention.ms", SET, Some("5000"))];
    assert_ne!(edit_broker(&world, "1", &edits).0, 0);
    assert_eq!(
        described(&world, BROKER, "1", "log.retention.ms"),
        is("604800000", 5, 1)
    );
    let of_topic = world.topic("t").options().retention.ms;
    assert_eq!(of_topic, Some(604_800_000));
}
