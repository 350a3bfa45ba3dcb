//! The common parts of the targets for sessions: a broker in memory, and a driver that keeps the
//! rules of `cloverleaf_session::Session` and checks the session's side of them.

pub mod amqp;
pub mod nsq;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use cloverleaf_broker::{Broker, BrokerOptions, ManualClock, Realm, TopicOptions};
use cloverleaf_kafka::control::ConnectionPeer;
use cloverleaf_kafka::{KafkaContext, KafkaOptions, Session, SessionParts, Worker};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_session::{Input, Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Jobs(Mutex<VecDeque<Job>>);

impl Worker for Jobs {
    fn run(&self, job: Job) {
        self.0.lock().expect("nobody panics").push_back(job);
    }
}

/// A broker with one topic of two partitions, `t`.
pub struct KafkaWorld {
    log: Log,
    broker: Broker,
    context: Arc<KafkaContext>,
    registry: Registry,
    jobs: Arc<Jobs>,
}

impl Default for KafkaWorld {
    fn default() -> Self {
        let options = LogOptions {
            manual: true,
            disk_free_bytes_min: 0,
            journal_bytes: 1 << 20,
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(SimDisk::new().mount(), options).expect("a log");
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let options = BrokerOptions::default();
        let broker = Broker::open(log.clone(), recovery, options, clock).expect("a broker");
        let topic = || TopicOptions {
            partitions: 2,
            ..TopicOptions::default()
        };
        broker.topic_or_create("t", topic).expect("a topic");
        let jobs = Arc::new(Jobs::default());
        let options = KafkaOptions {
            request_bytes_max: 1 << 20,
            ..KafkaOptions::default()
        };
        Self {
            context: KafkaContext::new(
                Realm::unrestricted(broker.clone()),
                options,
                jobs.clone(),
                jobs.clone(),
            ),
            log,
            broker,
            registry: Registry::new(),
            jobs,
        }
    }
}

impl Drop for KafkaWorld {
    fn drop(&mut self) {
        // Topics and what they share name each other until then; each run would leave a megabyte.
        self.broker.close();
        self.log.close();
    }
}

impl KafkaWorld {
    fn settle(&self) {
        loop {
            let job = self.jobs.0.lock().expect("nobody panics").pop_front();
            match job {
                Some(job) => job(),
                None => break,
            }
        }
        self.log.step();
        self.broker.tick();
    }

    /// Shows these bytes to a new session, then lets it end.
    pub fn show(&self, data: &[u8]) {
        let now = Now {
            us: 1,
            unix_us: 1_700_000_000_000_000,
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 9092));
        let parts = SessionParts {
            context: self.context.clone(),
            peer: ConnectionPeer {
                remote: address,
                local: address,
                tls: false,
                software: None,
            },
            probe: self.registry.open(Protocol::Kafka, address, now.us),
        };
        let mut session = Session::new(parts, now);
        let mut cx = Context::from_waker(Waker::noop());
        let mut rest = data;
        while !session.is_ended() {
            let wanted = session.wants_input();
            let mut consumed = 0;
            if wanted && !rest.is_empty() {
                consumed = session.receive(Input::Lent(rest), now).consumed_bytes;
                assert!(consumed <= rest.len());
                rest = &rest[consumed..];
            }
            self.settle();
            let mut out = Output::default();
            session.poll(&mut cx, now, &mut out);
            assert!(session.next_due_us() > now.us);
            if consumed == 0 && out.is_empty() && wanted == session.wants_input() {
                break;
            }
            session.wrote(out.len(), now);
        }
        session.drain();
        let mut out = Output::default();
        session.poll(&mut cx, now, &mut out);
    }
}
