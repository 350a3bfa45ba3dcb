//! The patients (client programs under test) of Kafka.

use super::patients::{Expected, Patient, Program, Value};

pub(super) const CONFLUENT: Program = Program::KafkaPython("confluent.py");
const OLD_CONFLUENT: Program = Program::OldLibrdkafka("confluent.py");
pub(super) const KAFKA_PYTHON: Program = Program::KafkaPython("kafka_python.py");
pub(super) const AIOKAFKA: Program = Program::KafkaPython("aiokafka_client.py");
pub(super) const KAFKAJS: Program = Program::KafkaNode("kafkajs_client.js");
pub(super) const FRANZ_GO: Program = Program::Go("franzgo");
const KAFKA_GO: Program = Program::Go("kafkago");

const ASYNC: Expected = Expected::new(
    "sync-produce",
    "confluent-kafka-python",
    "produce() without waiting for each message",
)
.code("producer.produce(topic, value, on_delivery=delivered)");
const LINGER: Expected = Expected::new("linger", "confluent-kafka-python", "linger.ms")
    .value(Value::Is("0"))
    .code("Producer({'linger.ms': 0");
const NAGLE: Expected = Expected::new("nagle", "confluent-kafka-python", "socket.nagle.disable")
    .value(Value::Is("true"))
    .code("Producer({'socket.nagle.disable': True");

/// librdkafka of 2022 and of today.
pub(super) const LIBRDKAFKA: &[Patient] = &[
    Patient::ill(
        "old confluent-kafka waits for each message",
        OLD_CONFLUENT,
        "sync-produce",
        ASYNC,
    ),
    Patient::ill(
        "old confluent-kafka leaves Nagle on",
        OLD_CONFLUENT,
        "nagle",
        NAGLE,
    ),
    Patient::well("old confluent-kafka", OLD_CONFLUENT),
    Patient::ill(
        "confluent-kafka waits for each message",
        CONFLUENT,
        "sync-produce",
        ASYNC,
    ),
    // The same loop as above: since 2.10 Nagle's algorithm is off, and what is left is the waiting.
    Patient::ill("confluent-kafka over TLS", CONFLUENT, "nagle", ASYNC),
    Patient::well("confluent-kafka", CONFLUENT),
];

/// The blog post's program with the library of its time.
pub(super) const SEED_001: &[Patient] = &[Patient::ill(
    "the blog post's loop",
    OLD_CONFLUENT,
    "seed-001",
    NAGLE,
)];

/// Libraries that linger by default, under a program that waits. They have their default names; the
/// Java client lingers for longer than its default.
pub(super) const LINGER_BY_DEFAULT: &[Patient] = &[
    Patient::ill("old confluent-kafka", OLD_CONFLUENT, "linger", LINGER).named("rdkafka"),
    Patient::ill("confluent-kafka", CONFLUENT, "linger", LINGER).named("rdkafka"),
    Patient::ill(
        "franz-go",
        FRANZ_GO,
        "linger",
        Expected::new("linger", "franz-go", "ProducerLinger")
            .value(Value::Is("0"))
            .code("kgo.ProducerLinger(0)"),
    )
    .named("kgo"),
    Patient::ill(
        "Java",
        Program::JavaKafka,
        "linger",
        Expected::new("linger", "Java", "linger.ms")
            .value(Value::Is("0"))
            .code("LINGER_MS_CONFIG, \"0\""),
    )
    .named("producer-1"),
];

/// Kafka's other clients.
pub(super) const KAFKA: &[Patient] = &[
    Patient::ill(
        "kafka-python waits for each message",
        KAFKA_PYTHON,
        "sync-produce",
        Expected::new("sync-produce", "kafka-python", "send() without get()")
            .code("producer.send(topic, value).add_callback(sent)"),
    )
    .named("kafka-python-producer-1"),
    Patient::well("kafka-python", KAFKA_PYTHON),
    // Neither aiokafka nor KafkaJS tells who it is: their default names do.
    Patient::ill(
        "aiokafka waits for each message",
        AIOKAFKA,
        "sync-produce",
        Expected::new(
            "sync-produce",
            "aiokafka",
            "send() instead of send_and_wait()",
        )
        .code("asyncio.gather"),
    )
    .named("aiokafka-producer-1"),
    Patient::ill(
        "aiokafka fills its batches",
        AIOKAFKA,
        "full-batch",
        Expected::new("one-connection", "aiokafka", "max_batch_size")
            .value(Value::Is("262144"))
            .code("AIOKafkaProducer(max_batch_size=262144"),
    )
    .named("aiokafka-producer-1"),
    Patient::well("aiokafka", AIOKAFKA).named("aiokafka-good"),
    Patient::ill(
        "KafkaJS waits for each message",
        KAFKAJS,
        "sync-produce",
        Expected::new("sync-produce", "KafkaJS", "send() with many messages")
            .code("producer.send({ topic, messages: many })"),
    )
    .named("kafkajs"),
    Patient::well("KafkaJS", KAFKAJS).named("kafkajs-good"),
    Patient::ill(
        "franz-go waits for each message",
        FRANZ_GO,
        "sync-produce",
        Expected::new("sync-produce", "franz-go", "Produce instead of ProduceSync")
            .code("client.Produce(ctx"),
    ),
    Patient::well("franz-go", FRANZ_GO),
    // kafka-go's writer says nothing of itself, so it is told in general terms.
    Patient::ill(
        "an unknown client waits for each message",
        KAFKA_GO,
        "sync-produce",
        Expected::new("sync-produce", "a Kafka client", "asynchronous sends"),
    )
    .named(""),
    Patient::well("kafka-go", KAFKA_GO).named("good-kafka-go"),
    Patient::ill(
        "Java waits for each message",
        Program::JavaKafka,
        "sync-produce",
        Expected::new("sync-produce", "Java", "send() without get()")
            .code("producer.send(record, (metadata, exception)"),
    ),
    Patient::well("Java", Program::JavaKafka),
];
