//! The groups of client tests.

use anyhow::Result;

use super::{
    Context, Report, admin, amqp, bench, crash, disk, doctor, golang, hostile, kafka, kafka_reach,
    lookup, memory, scripts, sync_order, tools,
};
use crate::broker::Kind;
use crate::install::Tool;

/// One named group of client tests.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) needs: &'static [Tool],
    /// The original that passes the group as well; `None`: the group tests what only we promise.
    pub(super) original: Option<Kind>,
    pub(super) run: fn(&Context, &mut Report) -> Result<()>,
}

/// All groups, quick ones first.
pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "nsq/python",
        needs: &[Tool::Python],
        original: Some(Kind::Nsqd),
        run: scripts::python,
    },
    Group {
        name: "nsq/node",
        needs: &[Tool::Node],
        original: Some(Kind::Nsqd),
        run: scripts::node,
    },
    Group {
        name: "nsq/go",
        needs: &[Tool::Go],
        original: Some(Kind::Nsqd),
        run: golang::program,
    },
    Group {
        name: "nsq/tools",
        needs: &[Tool::Go],
        original: Some(Kind::Nsqd),
        run: tools::run,
    },
    Group {
        name: "nsq/nsqadmin",
        needs: &[Tool::Go],
        original: Some(Kind::Nsqd),
        run: admin::run,
    },
    Group {
        name: "nsq/nsqlookupd",
        needs: &[Tool::Go],
        original: Some(Kind::Nsqd),
        run: lookup::run,
    },
    Group {
        name: "nsq/bench",
        needs: &[Tool::Go],
        original: Some(Kind::Nsqd),
        run: bench::run,
    },
    Group {
        name: "nsq/drain",
        needs: &[Tool::Go],
        original: Some(Kind::Nsqd),
        run: crash::drain,
    },
    Group {
        name: "nsq/crash",
        needs: &[Tool::Go],
        original: None,
        run: crash::run,
    },
    Group {
        name: "nsq/hostile",
        needs: &[],
        original: Some(Kind::Nsqd),
        run: hostile::run,
    },
    Group {
        name: "nsq/disk",
        needs: &[],
        original: None,
        run: disk::run,
    },
    Group {
        name: "nsq/sync",
        needs: &[Tool::Strace],
        original: None,
        run: sync_order::run,
    },
    Group {
        name: "nsq/memory",
        needs: &[],
        original: None,
        run: memory::run,
    },
    Group {
        name: "nsq/go-nsq-suite",
        needs: &[Tool::Go],
        original: Some(Kind::Nsqd),
        run: golang::suite,
    },
    Group {
        name: "kafka/confluent-kafka",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka::confluent,
    },
    Group {
        name: "kafka/librdkafka-1",
        needs: &[Tool::OldLibrdkafka],
        original: Some(Kind::Kafka),
        run: kafka::old_librdkafka,
    },
    Group {
        name: "kafka/kafka-python",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka::kafka_python,
    },
    Group {
        name: "kafka/aiokafka",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka::aiokafka,
    },
    Group {
        name: "kafka/node",
        needs: &[Tool::KafkaNode],
        original: Some(Kind::Kafka),
        run: kafka::node,
    },
    Group {
        name: "kafka/go",
        needs: &[Tool::KafkaGo],
        original: Some(Kind::Kafka),
        run: kafka::go,
    },
    Group {
        name: "kafka/java",
        needs: &[Tool::Java],
        original: Some(Kind::Kafka),
        run: kafka::java,
    },
    Group {
        name: "kafka/tools",
        needs: &[Tool::Java],
        original: Some(Kind::Kafka),
        run: kafka::tools,
    },
    Group {
        name: "kafka/nsq",
        needs: &[Tool::KafkaPython],
        original: None,
        run: kafka::cross,
    },
    Group {
        name: "kafka/crash",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka::crash,
    },
    Group {
        name: "kafka/hostile",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka::hostile,
    },
    Group {
        name: "kafka/disk",
        needs: &[Tool::KafkaPython],
        original: None,
        run: kafka::disk,
    },
    Group {
        name: "kafka/many-topics",
        needs: &[Tool::KafkaPython],
        original: None,
        run: kafka::many_topics,
    },
    Group {
        name: "kafka/restart",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka::restart,
    },
    Group {
        name: "kafka/power-loss",
        needs: &[Tool::KafkaPython],
        original: None,
        run: kafka::power_loss,
    },
    Group {
        name: "kafka/compaction",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka::compaction,
    },
    Group {
        name: "kafka/forward",
        needs: &[Tool::KafkaPython],
        original: Some(Kind::Kafka),
        run: kafka_reach::forward,
    },
    Group {
        name: "kafka/namespace",
        needs: &[Tool::KafkaPython],
        original: None,
        run: kafka_reach::namespace,
    },
    Group {
        name: "amqp/pika",
        needs: &[Tool::AmqpPython],
        original: Some(Kind::RabbitMq),
        run: amqp::pika,
    },
    Group {
        name: "amqp/aio-pika",
        needs: &[Tool::AmqpPython],
        original: Some(Kind::RabbitMq),
        run: amqp::aio_pika,
    },
    Group {
        name: "amqp/celery",
        needs: &[Tool::AmqpPython],
        original: Some(Kind::RabbitMq),
        run: amqp::celery,
    },
    Group {
        name: "amqp/node",
        needs: &[Tool::AmqpNode],
        original: Some(Kind::RabbitMq),
        run: amqp::node,
    },
    Group {
        name: "amqp/go",
        needs: &[Tool::AmqpGo],
        original: Some(Kind::RabbitMq),
        run: amqp::go,
    },
    Group {
        name: "amqp/java",
        needs: &[Tool::AmqpJava],
        original: Some(Kind::RabbitMq),
        run: amqp::java,
    },
    Group {
        name: "amqp/broadway",
        needs: &[Tool::AmqpPython],
        original: Some(Kind::RabbitMq),
        run: amqp::broadway,
    },
    Group {
        name: "amqp/cross",
        needs: &[Tool::AmqpPython],
        original: None,
        run: amqp::cross,
    },
    Group {
        name: "amqp/disk",
        needs: &[Tool::AmqpPython],
        original: None,
        run: amqp::disk,
    },
    Group {
        name: "amqp/many-queues",
        needs: &[Tool::AmqpPython],
        original: Some(Kind::RabbitMq),
        run: amqp::many_queues,
    },
    Group {
        name: "amqp/backlog",
        needs: &[Tool::AmqpPython],
        // The check measures our memory.
        original: None,
        run: amqp::backlog,
    },
    Group {
        name: "amqp/restart",
        needs: &[Tool::AmqpPython],
        // RabbitMQ loses a queue that was declared a second before a kill -9.
        original: None,
        run: amqp::restart,
    },
    Group {
        name: "amqp/crash",
        needs: &[Tool::AmqpPython],
        original: Some(Kind::RabbitMq),
        run: amqp::crash,
    },
    Group {
        name: "amqp/hostile",
        needs: &[Tool::AmqpPython],
        original: Some(Kind::RabbitMq),
        run: amqp::hostile,
    },
    Group {
        name: "disk/rot",
        needs: &[],
        original: None,
        run: disk::rot,
    },
    Group {
        name: "doctor/identity",
        needs: &[
            Tool::KafkaPython,
            Tool::OldLibrdkafka,
            Tool::KafkaNode,
            Tool::KafkaGo,
            Tool::Java,
            Tool::Python,
            Tool::Node,
            Tool::AmqpPython,
            Tool::AmqpNode,
            Tool::AmqpJava,
        ],
        original: None,
        run: doctor::identity,
    },
];
