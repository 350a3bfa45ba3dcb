//! Settings through Kafka: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, in every
//! version, and what each setting does.

use cloverleaf_broker::{Compaction, Compression, DurabilityMode};
use cloverleaf_kafka::KafkaOptions;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource as IncrementalResource, AlterableConfig as IncrementalConfig,
};
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
};

use crate::control_world::{World, name, text, versions};

pub(crate) const TOPIC: i8 = 2;
pub(crate) const BROKER: i8 = 4;
pub(crate) const SET: i8 = 0;
pub(crate) const DELETE: i8 = 1;
pub(crate) const APPEND: i8 = 2;
pub(crate) const SUBTRACT: i8 = 3;

fn resource(kind: i8, name: &str) -> DescribeConfigsResource {
    DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(None)
}

pub(crate) fn describe(world: &World, version: i16, kind: i8, name: &str) -> DescribeConfigsResult {
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource(kind, name)])
        .with_include_synonyms(true);
    let request = match version {
        3.. => request.with_include_documentation(true),
        _ => request,
    };
    world.ask(version, &request).results[0].clone()
}

pub(crate) fn entry<'a>(
    result: &'a DescribeConfigsResult,
    key: &str,
) -> &'a DescribeConfigsResourceResult {
    let entry = result
        .configs
        .iter()
        .find(|entry| entry.name.as_str() == key);
    entry.expect(key)
}

/// A topic's setting: value and source.
pub(crate) fn shown(world: &World, topic: &str, key: &str) -> (String, i8) {
    let result = describe(world, 4, TOPIC, topic);
    let entry = entry(&result, key);
    (
        entry.value.as_ref().unwrap().to_string(),
        entry.config_source,
    )
}

/// Changes settings of a topic by IncrementalAlterConfigs; returns error code and message.
pub(crate) fn edit(
    world: &World,
    topic: &str,
    edits: &[(&str, i8, Option<&str>)],
) -> (i16, String) {
    edit_in(world, 1, TOPIC, topic, edits, false)
}

pub(crate) fn edit_in(
    world: &World,
    version: i16,
    kind: i8,
    resource: &str,
    edits: &[(&str, i8, Option<&str>)],
    validate_only: bool,
) -> (i16, String) {
    let config = |(key, operation, value): &(&str, i8, Option<&str>)| {
        IncrementalConfig::default()
            .with_name(text(key))
            .with_config_operation(*operation)
            .with_value(value.map(text))
    };
    let resource = IncrementalResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(resource))
        .with_configs(edits.iter().map(config).collect());
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![resource])
        .with_validate_only(validate_only);
    let response = world.ask(version, &request);
    let result = &response.responses[0];
    let message = result.error_message.as_ref().map(|text| text.to_string());
    (result.error_code, message.unwrap_or_default())
}

/// Replaces all settings of a topic by AlterConfigs.
fn replace(world: &World, version: i16, topic: &str, settings: &[(&str, &str)]) -> i16 {
    replace_in(world, version, TOPIC, topic, settings)
}

pub(crate) fn replace_in(
    world: &World,
    version: i16,
    kind: i8,
    resource: &str,
    settings: &[(&str, &str)],
) -> i16 {
    let config = |(key, value): &(&str, &str)| {
        AlterableConfig::default()
            .with_name(text(key))
            .with_value(Some(text(value)))
    };
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(resource))
        .with_configs(settings.iter().map(config).collect());
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    world.ask(version, &request).responses[0].error_code
}

/// A world with a topic that was created through Kafka.
pub(crate) fn with_topic(topic: &str) -> World {
    let world = World::new();
    make_topic(&world, topic);
    world
}

/// Creates a topic through Kafka, unless it exists.
pub(crate) fn make_topic(world: &World, topic: &str) {
    let wanted = kafka_protocol::messages::create_topics_request::CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(1)
        .with_replication_factor(1);
    let request =
        kafka_protocol::messages::CreateTopicsRequest::default().with_topics(vec![wanted]);
    let error = world.ask(7, &request).topics[0].error_code;
    assert!(matches!(error, 0 | 36), "{error}");
}

#[test]
fn a_topic_is_described_in_every_version() {
    let world = with_topic("t");
    assert_eq!(
        edit(&world, "t", &[("retention.ms", SET, Some("5000"))]).0,
        0
    );
    for version in versions::<DescribeConfigsRequest>() {
        let result = describe(&world, version, TOPIC, "t");
        assert_eq!((result.error_code, result.resource_name.as_str()), (0, "t"));
        let own = entry(&result, "retention.ms");
        assert_eq!(own.value.as_ref().unwrap().as_str(), "5000");
        assert_eq!(
            (own.config_source, own.read_only),
            (1, false),
            "version {version}"
        );
        let synonyms: Vec<(String, String, i8)> = own
            .synonyms
            .iter()
            .map(|s| {
                (
                    s.name.to_string(),
                    s.value.as_ref().unwrap().to_string(),
                    s.source,
                )
            })
            .collect();
        assert_eq!(
            synonyms,
            [
                ("retention.ms".to_owned(), "5000".to_owned(), 1),
                ("log.retention.ms".to_owned(), "604800000".to_owned(), 5),
            ]
        );
        if version >= 3 {
            assert_eq!(own.config_type, 5);
            assert!(own.documentation.as_ref().unwrap().contains("Age"));
        }
        let other = entry(&result, "cleanup.policy");
        assert_eq!(other.value.as_ref().unwrap().as_str(), "delete");
        assert_eq!((other.config_source, other.synonyms.len()), (5, 1));
    }
}

#[test]
fn only_the_named_settings_are_described_and_each_resource_once() {
    let world = with_topic("t");
    let keys = Some(vec![text("segment.bytes"), text("no.such")]);
    let one = resource(TOPIC, "t").with_configuration_keys(keys);
    let request = DescribeConfigsRequest::default().with_resources(vec![one, resource(TOPIC, "t")]);
    let response = world.ask(4, &request);
    assert_eq!(
        (response.results.len(), response.results[0].configs.len()),
        (1, 1)
    );
    assert!(response.results[0].configs[0].synonyms.is_empty());
    assert_eq!(response.results[0].configs[0].documentation, None);

    assert_eq!(describe(&world, 4, TOPIC, "nowhere").error_code, 3);
    assert_eq!(describe(&world, 4, TOPIC, "no name").error_code, 17);
    assert_eq!(describe(&world, 4, 8, "1").error_code, 42, "loggers");
    assert_eq!(describe(&world, 4, BROKER, "2").error_code, 42);
}

#[test]
fn the_brokers_retention_is_shown_in_all_of_kafkas_units() {
    for (retention_ms, hours, minutes) in [
        (KafkaOptions::default().retention_ms, "168", "10080"),
        (Some(5_400_000), "2", "90"),
        (None, "-1", "-1"),
    ] {
        let options = KafkaOptions {
            retention_ms,
            ..KafkaOptions::default()
        };
        let result = describe(&World::with(options), 4, BROKER, "1");
        for (key, value) in [
            ("log.retention.hours", hours),
            ("log.retention.minutes", minutes),
        ] {
            let entry = entry(&result, key);
            assert_eq!(entry.value.as_ref().unwrap().as_str(), value, "{key}");
        }
    }
}

#[test]
fn the_broker_shows_its_settings_and_which_are_read_only() {
    let mut options = KafkaOptions {
        node_id: 7,
        ..KafkaOptions::default()
    };
    options.retention_ms = Some(1_000);
    let world = World::with(options);
    for version in versions::<DescribeConfigsRequest>() {
        let result = describe(&world, version, BROKER, "7");
        assert_eq!(result.error_code, 0);
        for (key, value, source, is_fixed) in [
            ("node.id", "7", 4, true),
            ("auto.create.topics.enable", "true", 5, true),
            ("log.retention.ms", "1000", 4, false),
            ("log.retention.minutes", "1", 4, true),
            ("log.retention.hours", "1", 4, true),
            ("message.max.bytes", "1048588", 5, false),
            ("default.replication.factor", "1", 5, true),
            ("min.insync.replicas", "1", 5, false),
            ("num.io.threads", "8", 5, false),
        ] {
            let entry = entry(&result, key);
            assert_eq!(entry.value.as_ref().unwrap().as_str(), value, "{key}");
            assert_eq!(
                (entry.config_source, entry.read_only),
                (source, is_fixed),
                "{key}"
            );
        }
    }
    assert!(
        describe(&world, 4, BROKER, "").configs.is_empty(),
        "nothing is set for all brokers"
    );
}

#[test]
fn settings_are_changed_one_by_one_in_every_version() {
    for version in versions::<IncrementalAlterConfigsRequest>() {
        let mut world = with_topic("t");
        let edits = [
            ("retention.bytes", SET, Some("1000000")),
            ("segment.bytes", SET, Some(" 100000 ")),
        ];
        let asked = edit_in(&world, version, TOPIC, "t", &edits, true);
        assert_eq!(asked, (0, String::new()));
        assert_eq!(
            shown(&world, "t", "segment.bytes").1,
            5,
            "it was only asked"
        );
        assert_eq!(
            edit_in(&world, version, TOPIC, "t", &edits, false),
            (0, String::new())
        );
        world.kill_and_restart();
        let options = world.topic("t").options();
        assert_eq!(options.retention.bytes, Some(1_000_000));
        assert_eq!(options.segment_bytes, Some(100_000));
        assert_eq!(
            shown(&world, "t", "segment.bytes"),
            ("100000".to_owned(), 1)
        );
        let back = [
            ("segment.bytes", DELETE, None),
            ("retention.bytes", DELETE, None),
        ];
        assert_eq!(edit_in(&world, version, TOPIC, "t", &back, false).0, 0);
        let options = world.topic("t").options();
        assert_eq!(
            (options.segment_bytes, options.retention.bytes),
            (None, None)
        );
        assert_eq!(
            options.retention.ms,
            Some(604_800_000),
            "what was not named stays"
        );
        assert!(options.settings.is_empty());
    }
}

#[test]
fn all_settings_are_replaced_in_every_version() {
    let world = with_topic("t");
    for version in versions::<AlterConfigsRequest>() {
        assert_eq!(replace(&world, version, "t", &[("segment.ms", "60000")]), 0);
        assert_eq!(world.topic("t").options().segment_ms, Some(60_000));
        assert_eq!(
            replace(&world, version, "t", &[("max.message.bytes", "2000")]),
            0
        );
        let options = world.topic("t").options();
        assert_eq!(options.segment_ms, Some(604_800_000), "version {version}");
        assert_eq!(options.batch_bytes_max, Some(2_000));
        assert_eq!(replace(&world, version, "t", &[("segment.ms", "0")]), 40);
        assert_eq!(replace(&world, version, "nowhere", &[]), 3);
    }
}

#[test]
fn lists_are_appended_to_and_subtracted_from() {
    let world = with_topic("t");
    assert_eq!(
        edit(&world, "t", &[("cleanup.policy", APPEND, Some("compact"))]).0,
        0
    );
    assert_eq!(shown(&world, "t", "cleanup.policy").0, "delete,compact");
    let options = world.topic("t").options();
    assert!(options.compaction.is_some() && options.retention.ms.is_some());
    assert_eq!(
        edit(&world, "t", &[("cleanup.policy", SUBTRACT, Some("delete"))]).0,
        0
    );
    assert_eq!(shown(&world, "t", "cleanup.policy").0, "compact");
    assert_eq!(
        edit(
            &world,
            "t",
            &[("cleanup.policy", SUBTRACT, Some("compact"))]
        )
        .0,
        40
    );
    assert_eq!(
        edit(&world, "t", &[("retention.ms", APPEND, Some("1"))]).0,
        40
    );
    assert_eq!(edit(&world, "t", &[("retention.ms", 9, Some("1"))]).0, 42);
    assert_eq!(edit(&world, "t", &[("retention.ms", SET, None)]).0, 40);
    let twice = [
        ("retention.ms", SET, Some("1")),
        ("retention.ms", DELETE, None),
    ];
    assert_eq!(edit(&world, "t", &twice).0, 42);
}

#[test]
fn compaction_is_what_its_settings_say() {
    let world = with_topic("t");
    let edits = [
        ("cleanup.policy", SET, Some("compact")),
        ("delete.retention.ms", SET, Some("100")),
        ("min.compaction.lag.ms", SET, Some("10")),
        ("max.compaction.lag.ms", SET, Some("1000")),
        ("min.cleanable.dirty.ratio", SET, Some("0.25")),
        ("retention.ms", SET, Some("77")),
        ("compression.type", SET, Some("zstd")),
    ];
    assert_eq!(edit(&world, "t", &edits), (0, String::new()));
    let options = world.topic("t").options();
    let expected = Compaction {
        delete_retention_ms: 100,
        min_lag_ms: 10,
        max_lag_ms: Some(1_000),
        dirty_ratio_permille: 250,
        compression: Some(Compression::Zstd),
    };
    assert_eq!(options.compaction, Some(expected));
    assert_eq!(
        options.retention.ms, None,
        "compact alone deletes nothing by age"
    );
    assert_eq!(shown(&world, "t", "retention.ms"), ("77".to_owned(), 1));

    let lag = [("min.compaction.lag.ms", SET, Some("2000"))];
    let (code, message) = edit(&world, "t", &lag);
    assert_eq!(code, 40);
    assert!(message.contains("max.compaction.lag.ms"));

    assert_eq!(edit(&world, "t", &[("cleanup.policy", DELETE, None)]).0, 0);
    let options = world.topic("t").options();
    assert_eq!(
        (options.compaction.clone(), options.retention.ms),
        (None, Some(77))
    );
}

#[test]
fn every_honoured_setting_arrives_in_the_topic() {
    let world = with_topic("t");
    let edits = [
        ("message.timestamp.type", SET, Some("LogAppendTime")),
        ("message.timestamp.before.max.ms", SET, Some("5")),
        (
            "message.timestamp.after.max.ms",
            SET,
            Some("9223372036854775807"),
        ),
        ("retention.ms", SET, Some("-1")),
        ("flush.messages", SET, Some("1")),
    ];
    assert_eq!(edit(&world, "t", &edits), (0, String::new()));
    let options = world.topic("t").options();
    assert!(options.append_time);
    assert_eq!(options.timestamp_before_max_ms, Some(5));
    assert_eq!(options.timestamp_after_max_ms, None);
    assert_eq!(options.retention.ms, None);
    assert_eq!(options.durability, Some(DurabilityMode::Disk));
    assert_eq!(shown(&world, "t", "retention.ms"), ("-1".to_owned(), 1));
    let back: Vec<(&str, i8, Option<&str>)> = edits
        .iter()
        .map(|(key, _, _)| (*key, DELETE, None))
        .collect();
    assert_eq!(edit(&world, "t", &back).0, 0);
    let options = world.topic("t").options();
    assert!(!options.append_time && options.durability.is_none());
    assert_eq!(options.timestamp_after_max_ms, Some(3_600_000));
    assert_eq!(options.retention.ms, Some(604_800_000));
    assert_eq!(edit(&world, "t", &[("flush.ms", SET, Some("1000"))]).0, 0);
    assert_eq!(
        world.topic("t").options().durability,
        None,
        "that often is always"
    );
}

#[test]
fn a_topic_of_another_protocol_shows_its_real_settings() {
    let world = World::new();
    world.foreign_topic("nsq");
    assert_eq!(shown(&world, "nsq", "retention.ms"), ("-1".to_owned(), 1));
    assert_eq!(
        shown(&world, "nsq", "segment.ms"),
        (i64::MAX.to_string(), 1)
    );
    assert_eq!(
        shown(&world, "nsq", "cleanup.policy"),
        ("delete".to_owned(), 5)
    );
    assert_eq!(
        edit(&world, "nsq", &[("max.message.bytes", SET, Some("9000"))]).0,
        0
    );
    assert!(
        world.topic("nsq").options().retention.consumed,
        "nobody asked for that"
    );
    assert_eq!(
        edit(&world, "nsq", &[("retention.ms", SET, Some("60000"))]).0,
        0
    );
    let options = world.topic("nsq").options();
    assert!(
        !options.retention.consumed,
        "who asks for a retention gets it"
    );
    assert_eq!(options.retention.ms, Some(60_000));
}

#[test]
fn settings_that_cannot_be_honoured_are_refused_without_effect() {
    let world = with_topic("t");
    for (key, value) in [
        ("compression.type", "quick"),
        ("remote.storage.enable", "true"),
        ("message.format.version", "3.0"),
        ("no.such.setting", "1"),
        ("retention.ms", "-2"),
        ("segment.bytes", "13"),
        ("cleanup.policy", "keep"),
        ("min.insync.replicas", "0"),
        ("preallocate", "perhaps"),
        ("min.cleanable.dirty.ratio", "2"),
    ] {
        let edits = [("retention.bytes", SET, Some("5")), (key, SET, Some(value))];
        let (code, message) = edit(&world, "t", &edits);
        assert_eq!(code, 40, "{key}={value}");
        assert!(message.contains(key), "{message}");
    }
    assert!(world.topic("t").options().settings.is_empty());
    let accepted = [
        ("min.insync.replicas", SET, Some("2")),
        ("unclean.leader.election.enable", SET, Some("true")),
        ("leader.replication.throttled.replicas", SET, Some("*")),
        ("preallocate", SET, Some("true")),
        ("segment.index.bytes", SET, Some("4096")),
        ("compression.type", SET, Some("zstd")),
    ];
    assert_eq!(edit(&world, "t", &accepted), (0, String::new()));
    assert_eq!(shown(&world, "t", "preallocate"), ("true".to_owned(), 1));
    assert_eq!(shown(&world, "t", "compression.type").0, "zstd");
    assert_eq!(
        shown(&world, "t", "min.insync.replicas"),
        ("2".to_owned(), 1)
    );
}

#[test]
fn the_page_about_settings_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kafka-settings.md");
    let page = std::fs::read_to_string(path).unwrap();
    let table = cloverleaf_kafka::control::settings_markdown();
    assert!(
        page == table,
        "docs/kafka-settings.md is out of date; write it anew with\n\
         cargo run -p cloverleaf-kafka --example settings > docs/kafka-settings.md"
    );
}
