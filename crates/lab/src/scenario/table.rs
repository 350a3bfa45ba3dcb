//! The table of scenarios: a client program, the link between it and the broker, and the finding
//! that is expected, with the change that is made of those that it names.

use cloverleaf_doctor::Rule;

use super::amqp::{self, AmqpProgram};
use super::kafka::{self, KafkaProgram, Pace, Payload};
use super::python::PythonProgram;
use super::{ClientProgram, Scenario, ValueIn};

const fn kafka(
    rule: Rule,
    title: &'static str,
    setting: &'static str,
    program: KafkaProgram,
) -> Scenario {
    Scenario {
        rule,
        title,
        library: kafka::LIBRARY,
        setting,
        value: ValueIn::Value,
        rtt_ms: 10,
        bandwidth: None,
        acks_late: false,
        with_tls: false,
        measured_s: 6.0,
        program: ClientProgram::Kafka(program),
    }
}

const fn amqp(
    rule: Rule,
    title: &'static str,
    setting: &'static str,
    program: AmqpProgram,
) -> Scenario {
    Scenario {
        library: amqp::LIBRARY,
        program: ClientProgram::Amqp(program),
        ..kafka(rule, title, setting, SENDING_ONE)
    }
}

const SENDING_ONE: KafkaProgram = KafkaProgram::sending(Pace::Awaited(1), Payload::Same(500));

/// All of them, the most valuable first.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        rtt_ms: 20,
        value: ValueIn::Code("buffer_unordered("),
        ..kafka(
            Rule::SyncProduce,
            "a producer awaits each message before it sends the next (seed 000)",
            "produce() without waiting for each message",
            KafkaProgram {
                // Otherwise messages linger, which is another scenario.
                settings: &[("linger.ms", "0")],
                change: kafka::AlteredPart::Awaited,
                ..SENDING_ONE
            },
        )
    },
    kafka(
        Rule::Linger,
        "a producer collects for 50 ms and awaits each message, so none joins it (seed 001)",
        "linger.ms",
        KafkaProgram {
            // "For throughput".
            settings: &[("linger.ms", "50")],
            ..SENDING_ONE
        },
    ),
    Scenario {
        library: "confluent-kafka-python",
        rtt_ms: 1,
        // As with other brokers, the kernel decides when it acknowledges.
        acks_late: true,
        with_tls: true,
        // librdkafka writes a request to TLS in pieces, and the kernel holds the later ones back
        // until the broker's has acknowledged the first, 40 ms later.
        program: ClientProgram::Python(PythonProgram::NAGLE),
        ..kafka(
            Rule::Nagle,
            "confluent-kafka over TLS waits 40 ms for each message (seed 001)",
            "socket.nagle.disable",
            SENDING_ONE,
        )
    },
    Scenario {
        value: ValueIn::Nothing,
        measured_s: 8.0,
        ..amqp(
            Rule::Hoarding,
            "two consumers of a pipeline hand all messages to one worker (seed 003)",
            "for_each_concurrent",
            AmqpProgram {
                // Light load, as in the seed: Broadway's pipelines did the same.
                publishes: Some((4, 1_000)),
                consumers: 2,
                job_ms: 200,
                change: amqp::AlteredPart::Workers,
                ..AmqpProgram::consuming(10)
            },
        )
    },
    amqp(
        Rule::WindowTooSmall,
        "a consumer with a prefetch of 1 waits a round trip for each message (seed 003)",
        "basic_qos",
        AmqpProgram {
            // More than is consumed until the scenario ends.
            backlog: 25_000,
            ..AmqpProgram::consuming(1)
        },
    ),
    Scenario {
        rtt_ms: 20,
        ..kafka(
            Rule::OneConnection,
            "a producer with small batches may have four requests in flight (seed 000)",
            "producers",
            KafkaProgram {
                // With few requests in flight, few are overtaken by a retry. Batches of three
                // messages are the program's own setting, too.
                settings: &[
                    ("max.in.flight", "4"),
                    ("batch.num.messages", "3"),
                    ("queue.buffering.max.messages", "1000000"),
                ],
                change: kafka::AlteredPart::Producers,
                // More than one producer can send, and a little less than the changed program can.
                // At a higher rate the doctor would advise a further change.
                ..KafkaProgram::sending(Pace::Every(48, 25), Payload::Same(100))
            },
        )
    },
    Scenario {
        rtt_ms: 5,
        measured_s: 8.0,
        ..kafka(
            Rule::Partitions,
            "four consumers of a group share one partition, so three have nothing (seed 000)",
            "partitions of the topic",
            KafkaProgram {
                settings: &[("auto.commit.interval.ms", "500")],
                change: kafka::AlteredPart::Partitions,
                members: 4,
                job_ms: 8,
                // More than one member can work off, and less than four members can.
                ..KafkaProgram::sending(Pace::Every(15, 40), Payload::Same(4))
            },
        )
    },
    Scenario {
        rtt_ms: 20,
        bandwidth: Some(40_000_000),
        ..kafka(
            Rule::TooManyInFlight,
            "a producer hands all over at once, and gives up what takes a second",
            "queue.buffering.max.messages",
            KafkaProgram {
                settings: &[("acks", "1"), ("message.timeout.ms", "1000")],
                // A payload that compresses well over a narrow link is another scenario.
                ..KafkaProgram::sending(Pace::AsTaken, Payload::Random)
            },
        )
    },
    Scenario {
        rtt_ms: 2,
        measured_s: 8.0,
        ..kafka(
            Rule::TinyBatches,
            "a producer sends each of 4,000 messages per second by itself (seed 004)",
            "linger.ms",
            KafkaProgram {
                settings: &[("acks", "1")],
                // "For latency". The finding advises to remove the second setting, too.
                mistaken: &[("linger.ms", "0"), ("batch.num.messages", "1")],
                ..KafkaProgram::sending(Pace::Every(20, 5), Payload::Same(200))
            },
        )
    },
    Scenario {
        bandwidth: Some(20_000_000),
        ..kafka(
            Rule::NoCompression,
            "a producer sends JSON as it is over a link of 20 Mbit/s",
            "compression.type",
            KafkaProgram {
                settings: &[("batch.size", "65536")],
                // Enough in flight to keep the link full.
                ..KafkaProgram::sending(Pace::Awaited(200), Payload::Text)
            },
        )
    },
    Scenario {
        value: ValueIn::Nothing,
        ..amqp(
            Rule::Churn,
            "a producer opens a connection and a channel for each message",
            "one Connection and Channel for the life of the process",
            AmqpProgram::CONNECTING,
        )
    },
    Scenario {
        library: "pynsq",
        rtt_ms: 5,
        measured_s: 10.0,
        program: ClientProgram::Python(PythonProgram::ACK_DEADLINE),
        ..kafka(
            Rule::AckDeadline,
            "pynsq holds messages for longer than the 1 s that it has asked for",
            "msg_timeout",
            SENDING_ONE,
        )
    },
];

const fn healthy_kafka(pace: Pace, settings: kafka::Settings) -> ClientProgram {
    ClientProgram::Kafka(KafkaProgram {
        settings,
        ..KafkaProgram::sending(pace, Payload::Same(300))
    })
}

const fn healthy_amqp(publishes: Option<(usize, u64)>, prefetch: u16) -> AmqpProgram {
    AmqpProgram {
        publishes,
        ..AmqpProgram::consuming(prefetch)
    }
}

/// Clients that do nothing wrong, with their names. The doctor must not report a client that is
/// idle, works by a timer, has bursts, has a slow handler, or is as fast as it needs to be.
pub(super) const HEALTHY: &[(&str, ClientProgram)] = &[
    ("idle", ClientProgram::Amqp(healthy_amqp(None, 10))),
    (
        // One message at a time, each awaited.
        "timer",
        ClientProgram::Amqp(AmqpProgram {
            consumers: 0,
            ..healthy_amqp(Some((1, 250)), 0)
        }),
    ),
    (
        // A pool of workers that is always busy: the client itself is the bottleneck.
        "slow-handler",
        ClientProgram::Amqp(AmqpProgram {
            workers: 4,
            job_ms: 300,
            is_one_connection: true,
            ..healthy_amqp(Some((20, 1_000)), 4)
        }),
    ),
    (
        "pipeline",
        ClientProgram::Amqp(healthy_amqp(Some((100, 200)), 200)),
    ),
    (
        "over-tls",
        ClientProgram::Amqp(AmqpProgram {
            over_tls: true,
            ..healthy_amqp(Some((10, 70)), 50)
        }),
    ),
    // A producer that sends a message every 20 s, and one with the library's defaults.
    ("idle-producer", healthy_kafka(Pace::Every(1, 20_000), &[])),
    ("steady", healthy_kafka(Pace::Every(1, 50), &[])),
    ("bursts", healthy_kafka(BURSTS, &[("linger.ms", "20")])),
    ("idempotent", healthy_kafka(Pace::Every(50, 25), IN_ORDER)),
    (
        "group",
        ClientProgram::Kafka(KafkaProgram {
            partitions: 4,
            members: 2,
            ..KafkaProgram::sending(Pace::Every(20, 40), Payload::Same(300))
        }),
    ),
];

const BURSTS: Pace = Pace::Every(1_000, 2_000);
const IN_ORDER: kafka::Settings = &[("enable.idempotence", "true")];
