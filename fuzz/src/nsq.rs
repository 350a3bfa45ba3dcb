//! A broker in memory, and NSQ connections to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use cloverleaf_broker::{Broker, BrokerOptions, Clock, ManualClock, Realm};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_nsq::authorization::Authorizations;
use cloverleaf_nsq::codec::MAGIC;
use cloverleaf_nsq::definitions::channel_options;
use cloverleaf_nsq::message_id::encode_id;
use cloverleaf_nsq::stats::clients::{ClientTls, Clients};
use cloverleaf_nsq::{DriverTask, Session, SessionOptions, SessionParts};
use cloverleaf_session::{Input, Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};

const START_MS: u64 = 1_700_000_000_000;

/// The auth service's answer to every secret.
const AUTHORIZATIONS: &[u8] = br#"{"ttl":60,"identity":"me","authorizations":[
    {"topic":"^t$","channels":[".*"],"permissions":["subscribe","publish"]}]}"#;

/// A broker without topics, whose time the input drives.
pub struct NsqWorld {
    log: Log,
    broker: Broker,
    clock: Arc<ManualClock>,
    clients: Arc<Clients>,
    registry: Registry,
}

impl Default for NsqWorld {
    fn default() -> Self {
        let options = LogOptions {
            manual: true,
            disk_free_bytes_min: 0,
            journal_bytes: 1 << 20,
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(SimDisk::new().mount(), options).expect("a log");
        let clock = Arc::new(ManualClock::new(START_MS));
        let options = BrokerOptions::default();
        let broker = Broker::open(log.clone(), recovery, options, clock.clone());
        Self {
            broker: broker.expect("a broker"),
            log,
            clock,
            clients: Clients::new(),
            registry: Registry::new(),
        }
    }
}

impl Drop for NsqWorld {
    fn drop(&mut self) {
        // Topics and the parts that they share refer to each other until then.
        self.broker.close();
        self.log.close();
    }
}

impl NsqWorld {
    fn now(&self) -> Now {
        let unix_us = self.clock.now_us();
        Now {
            us: unix_us - START_MS * 1000 + 1,
            unix_us,
        }
    }

    fn settle(&self) {
        for _ in 0..4 {
            self.log.step();
            self.broker.tick();
        }
    }

    /// Opens a connection whose options the first byte chooses, shows it the commands that are
    /// made of the other bytes, lets time pass between them, and lets the connection end.
    pub fn show(&self, data: &[u8]) {
        let (choices, mut data) = data.split_first().unwrap_or((&0, data));
        let address = SocketAddr::from(([127, 0, 0, 1], 4150));
        let options = SessionOptions {
            msg_bytes_max: 200,
            body_bytes_max: 1000,
            auth_required: choices & 1 > 0,
            tls: choices & 2 > 0,
            tls_required: choices & 6 == 6,
            ..SessionOptions::default()
        };
        let parts = SessionParts {
            realm: Realm::unrestricted(self.broker.clone()),
            options: Arc::new(options),
            channel_policy: Arc::new(|_, channel| channel_options(channel)),
            client: self.clients.connect(address.to_string(), 0),
            probe: self.registry.open(Protocol::Nsq, address, self.now().us),
        };
        let mut connection = Connection {
            world: self,
            session: Session::new(parts, self.now()),
            input: MAGIC.to_vec(),
        };
        // Most errors end a connection, so few commands by chance get as far as a delivery.
        if choices & 8 > 0 {
            connection.input.extend_from_slice(b"SUB t c\nRDY 8\n");
        }
        while let [kind, argument, length, rest @ ..] = data {
            let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            match kind % 16 {
                // Up to a quarter of a minute, in which heartbeats, deadlines and delays fall due.
                15 => self.clock.advance(1 + u64::from(*argument) * 60),
                kind => push_command(kind, *argument, body, &mut connection.input),
            }
            connection.run();
            data = rest;
        }
        connection.input.extend_from_slice(data);
        connection.run();
        let (session, now) = (&mut connection.session, self.now());
        session.end_of_input(&connection.input, now);
        connection.run();
        assert!(connection.session.is_ended(), "the input has ended");
    }
}

struct Connection<'w> {
    world: &'w NsqWorld,
    session: Session,
    /// Bytes that the session has not consumed.
    input: Vec<u8>,
}

impl Connection<'_> {
    /// Runs broker and session until nothing changes any more.
    fn run(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        while !self.session.is_ended() {
            let now = self.world.now();
            let mut consumed = 0;
            if self.session.wants_input() && !self.input.is_empty() {
                consumed = self
                    .session
                    .receive(Input::Lent(&self.input), now)
                    .consumed_bytes;
                assert!(consumed <= self.input.len());
                self.input.drain(..consumed);
            }
            self.world.settle();
            let mut out = Output::default();
            self.session.poll(&mut cx, now, &mut out);
            assert!(self.session.is_ended() || self.session.next_due_us() > now.us);
            check_frames(&out.bytes);
            self.session.wrote(out.len(), now);
            let request = self.session.take_driver_task();
            let has_request = request.is_some();
            match request {
                Some(DriverTask::Tls) => self.session.upgraded_to_tls(ClientTls::default()),
                Some(DriverTask::Compress(compression)) => self.session.upgraded_to(compression),
                // Some secrets find no auth service.
                Some(DriverTask::Authorize(secret)) => {
                    let answer = Authorizations::parse(AUTHORIZATIONS).ok();
                    let answer = answer.filter(|_| secret.len().is_multiple_of(2));
                    self.session.authorized(answer, now);
                }
                None => {}
            }
            if consumed == 0 && out.is_empty() && !has_request {
                assert!(
                    self.session.wants_input() || self.session.is_ended(),
                    "the session waits for an event that does not come"
                );
                break;
            }
        }
    }
}

/// The output consists of whole frames of known types, and a message has been tried at least once.
fn check_frames(mut bytes: &[u8]) {
    while let Some((size, rest)) = bytes.split_first_chunk::<4>() {
        let (frame, rest) = rest.split_at(u32::from_be_bytes(*size) as usize);
        let (kind, body) = frame.split_first_chunk::<4>().expect("a type");
        match u32::from_be_bytes(*kind) {
            0 | 1 => {}
            2 => assert!(body[8..10] != [0, 0], "a message without an attempt"),
            other => panic!("a frame of type {other}"),
        }
        bytes = rest;
    }
    assert!(bytes.is_empty(), "a frame without its size");
}

/// Appends a command of this kind, or for the other kinds the body as it is.
fn push_command(kind: u8, argument: u8, body: &[u8], out: &mut Vec<u8>) {
    let channel = ["c", "d", "e#ephemeral"][usize::from(argument) % 3];
    let topic = ["t", "u#ephemeral"][usize::from(argument) % 2];
    let id = encode_id(0, u64::from(argument % 8));
    let id = String::from_utf8_lossy(&id);
    let (line, body) = match kind {
        0 => (format!("SUB {topic} {channel}\n"), None),
        1 => (format!("RDY {argument}\n"), None),
        2 => (format!("PUB {topic}\n"), Some(body.to_vec())),
        3 => (format!("MPUB {topic}\n"), Some(messages(body))),
        4 => (
            format!("DPUB {topic} {}\n", u64::from(argument) * 50),
            Some(body.to_vec()),
        ),
        5 | 6 => (format!("FIN {id}\n"), None),
        7 => (format!("REQ {id} {}\n", body.len() * 100), None),
        8 => (format!("TOUCH {id}\n"), None),
        9 => ("CLS\n".into(), None),
        10 => ("NOP\n".into(), None),
        11 => ("IDENTIFY\n".into(), Some(identify(argument, body))),
        12 => ("AUTH\n".into(), Some(body.to_vec())),
        _ => return out.extend_from_slice(body),
    };
    out.extend_from_slice(line.as_bytes());
    if let Some(body) = body {
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
    }
}

/// The body of an MPUB: messages of up to 7 bytes.
fn messages(body: &[u8]) -> Vec<u8> {
    let pieces = body.chunks(7);
    let mut out = (pieces.len() as u32).to_be_bytes().to_vec();
    for piece in pieces {
        out.extend((piece.len() as u32).to_be_bytes());
        out.extend_from_slice(piece);
    }
    out
}

/// The body of an IDENTIFY: negotiates by the argument's bits, or is the body as it is.
fn identify(argument: u8, body: &[u8]) -> Vec<u8> {
    if argument & 1 == 0 {
        return body.to_vec();
    }
    let is = |bit: u8| argument & bit > 0;
    format!(
        r#"{{"feature_negotiation":{},"tls_v1":{},"snappy":{},"deflate":{},
            "output_buffer_timeout":{},"msg_timeout":1000,"sample_rate":{}}}"#,
        is(2),
        is(4),
        is(8),
        is(16),
        if is(32) { -1 } else { 0 },
        argument >> 6,
    )
    .into_bytes()
}
