//! All patients (client programs under test), in wards: those of a ward are as far from their
//! broker.

use super::kafka::{
    AIOKAFKA, CONFLUENT, FRANZ_GO, KAFKA, KAFKA_PYTHON, KAFKAJS, LIBRDKAFKA, LINGER_BY_DEFAULT,
    SEED_001,
};
use super::patients::{Patient, Program};
use super::queues::{AMQP, AMQPLIB, GO_NSQ, HTTP, NARROW, NSQ, NSQJS, PIKA};

/// Patients, and the link between each of them and its broker.
pub(super) struct Ward {
    pub(super) name: &'static str,
    pub(super) link: Link,
    pub(super) patients: &'static [Patient],
    /// The broker acknowledges late, as others do.
    pub(super) acks_late: bool,
}

/// The network between a patient and the broker.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) rtt: &'static str,
    /// The bandwidth each way, if it is low.
    pub(super) bandwidth: Option<&'static str>,
}

const fn ward(name: &'static str, rtt: &'static str, patients: &'static [Patient]) -> Ward {
    Ward {
        name,
        link: Link {
            rtt,
            bandwidth: None,
        },
        patients,
        acks_late: false,
    }
}

pub(super) const WARDS: &[Ward] = &[
    ward("librdkafka", "20ms", LIBRDKAFKA),
    // Libraries that linger do for 5 ms: that has to be a good part of the round trip.
    ward("linger", "5ms", LINGER_BY_DEFAULT),
    // Farther where programs take much of 20 ms for a message on a busy machine.
    ward("kafka", "60ms", KAFKA),
    ward("nsq", "20ms", NSQ),
    ward("http", "60ms", HTTP),
    ward("amqp", "60ms", AMQP),
    Ward {
        // Less than each of them would send.
        link: Link {
            rtt: "10ms",
            bandwidth: Some("20Mbit"),
        },
        ..ward("narrow", "10ms", NARROW)
    },
    Ward {
        acks_late: true,
        // The blog post's distance.
        ..ward("seed-001", "1ms", SEED_001)
    },
    ward("healthy", "10ms", HEALTHY),
];

/// Steady programs that do nothing wrong, unless their names say something else; as far away as
/// those of `cloverleaf lab healthy`.
const HEALTHY: &[Patient] = &[
    Patient::well("confluent-kafka over TLS", CONFLUENT).playing("good-tls"),
    Patient::well("confluent-kafka that sleeps", CONFLUENT).playing("sleeps"),
    Patient::well("kafka-python", KAFKA_PYTHON),
    Patient::well("aiokafka that collects", AIOKAFKA)
        .playing("collects")
        .named("aiokafka-collects"),
    Patient::well("KafkaJS", KAFKAJS),
    Patient::well("franz-go in bursts", FRANZ_GO).playing("bursts"),
    Patient::well("Java for Kafka", Program::JavaKafka),
    Patient::well("go-nsq", GO_NSQ),
    Patient::well("nsqjs", NSQJS),
    Patient::well("pika that is idle", PIKA).playing("idle"),
    Patient::well("amqplib with a slow handler", AMQPLIB).playing("slow-handler"),
    Patient::well("Java for AMQP", Program::JavaAmqp),
];
