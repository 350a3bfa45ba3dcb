//! A virtual host in memory, and connections to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_amqp::wire::{Method, PROTOCOL_HEADER, Writer, method};
use cloverleaf_amqp::{Session, SessionOptions, SessionParts};
use cloverleaf_broker::{Broker, BrokerOptions, ManualClock, Realm};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_session::{Input, Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};

const NOW: Now = Now {
    us: 1,
    unix_us: 1_700_000_000_000_000,
};

/// A virtual host with the queue `q`.
pub struct AmqpWorld {
    log: Log,
    broker: Broker,
    host: Arc<VirtualHost>,
    options: Arc<SessionOptions>,
    registry: Registry,
}

impl Default for AmqpWorld {
    fn default() -> Self {
        let options = LogOptions {
            manual: true,
            disk_free_bytes_min: 0,
            journal_bytes: 1 << 20,
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(SimDisk::new().mount(), options).expect("a log");
        let clock = Arc::new(ManualClock::new(NOW.unix_us / 1000));
        let options = BrokerOptions::default();
        let broker = Broker::open(log.clone(), recovery, options, clock).expect("a broker");
        let host = VirtualHost::open(Realm::unrestricted(broker.clone())).expect("a virtual host");
        let declare = method::QueueDeclare {
            queue: "q",
            durable: true,
            ..Default::default()
        };
        host.declare_queue(host.owner(), &declare).expect("a queue");
        Self {
            log,
            broker,
            host,
            options: Arc::new(SessionOptions::default()),
            registry: Registry::new(),
        }
    }
}

impl Drop for AmqpWorld {
    fn drop(&mut self) {
        self.host.close();
        // Topics and what they share name each other until then.
        self.broker.close();
        self.log.close();
    }
}

impl AmqpWorld {
    fn settle(&self) {
        self.log.step();
        self.broker.tick();
        self.host.router_tick();
    }

    /// Opens a connection with channel 1, which consumes and confirms, shows it frames made of
    /// these bytes, and lets it end.
    pub fn show(&self, data: &[u8]) {
        let peer = SocketAddr::from(([127, 0, 0, 1], 5672));
        let parts = SessionParts {
            host: self.host.clone(),
            options: self.options.clone(),
            probe: self.registry.open(Protocol::Amqp, peer, NOW.us),
            peer,
        };
        let mut session = Session::new(parts, NOW);
        let mut input = greeting();
        push_frames(data, &mut input);
        let mut rest = &input[..];
        let mut cx = Context::from_waker(Waker::noop());
        while !session.is_ended() {
            let wanted = session.wants_input();
            let mut consumed = 0;
            if wanted && !rest.is_empty() {
                consumed = session.receive(Input::Lent(rest), NOW).consumed_bytes;
                assert!(consumed <= rest.len());
                rest = &rest[consumed..];
            }
            self.settle();
            let mut out = Output::default();
            session.poll(&mut cx, NOW, &mut out);
            session.wrote(out.len(), NOW);
            if consumed == 0 && out.is_empty() {
                assert!(
                    !rest.is_empty() || session.wants_input() || session.is_ended(),
                    "it waits for nothing"
                );
                break;
            }
        }
        session.end_of_input(rest, NOW);
    }
}

/// Methods by class and number, among them all that a client sends.
const METHODS: [(u8, u8); 40] = [
    (10, 11),
    (10, 31),
    (10, 40),
    (10, 50),
    (10, 51),
    (10, 70),
    (20, 10),
    (20, 20),
    (20, 40),
    (20, 41),
    (30, 10),
    (40, 10),
    (40, 20),
    (40, 30),
    (40, 40),
    (50, 10),
    (50, 20),
    (50, 30),
    (50, 40),
    (50, 50),
    (60, 10),
    (60, 20),
    (60, 21),
    (60, 30),
    (60, 31),
    (60, 40),
    (60, 50),
    (60, 60),
    (60, 70),
    (60, 71),
    (60, 80),
    (60, 90),
    (60, 100),
    (60, 110),
    (60, 120),
    (85, 10),
    (90, 10),
    (90, 20),
    (90, 30),
    (90, 99),
];

/// Takes the bytes as frames: what kind, which channel, how long, and the payload. A kind that
/// there is not lets the rest be bytes as they are.
fn push_frames(mut data: &[u8], out: &mut Vec<u8>) {
    while let [kind, channel, length, rest @ ..] = data {
        let mut head = Vec::new();
        let number = match kind {
            0..=199 => {
                let (class, method) = METHODS[usize::from(*kind) % METHODS.len()];
                head.extend([0, class, 0, method]);
                1
            }
            200..=219 => {
                // A content header: of the right class, and of a small body.
                head.extend([0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, *kind - 200]);
                2
            }
            220..=239 => 3,
            240..=250 => 8,
            _ => return out.extend_from_slice(data),
        };
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        out.extend([number, 0, channel % 3]);
        out.extend(((head.len() + payload.len()) as u32).to_be_bytes());
        out.extend(head);
        out.extend(payload);
        out.push(206);
        data = rest;
    }
}

fn greeting() -> Vec<u8> {
    let mut bytes = PROTOCOL_HEADER.to_vec();
    let start = method::ConnectionStartOk {
        mechanism: "PLAIN",
        response: b"\0guest\0guest",
        locale: "en_US",
        ..Default::default()
    };
    let tune = method::ConnectionTuneOk {
        channel_max: 16,
        frame_max: 4096,
        heartbeat: 60,
    };
    let open = method::ConnectionOpen {
        virtual_host: "/",
        ..Default::default()
    };
    let consume = method::BasicConsume {
        queue: "q",
        no_wait: true,
        ..Default::default()
    };
    let select = method::ConfirmSelect { no_wait: true };
    for (channel, method) in [
        (0, Method::ConnectionStartOk(start)),
        (0, Method::ConnectionTuneOk(tune)),
        (0, Method::ConnectionOpen(open)),
        (1, Method::ChannelOpen(method::ChannelOpen::default())),
        (1, Method::ConfirmSelect(select)),
        (1, Method::BasicConsume(consume)),
    ] {
        let mut payload = Vec::new();
        method.write(&mut Writer::new(&mut payload));
        bytes.push(1);
        bytes.extend(u16::to_be_bytes(channel));
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(payload);
        bytes.push(206);
    }
    bytes
}
