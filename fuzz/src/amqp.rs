//! A virtual host in memory, and connections to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_amqp::wire::{Method, PROTOCOL_HEADER, Writer, method};
use cloverleaf_amqp::{Session, SessionOptions, SessionParts};
use cloverleaf_broker::{Broker, BrokerOptions, ManualClock};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_session::{Now, Output, Session as _};
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
        let host = VirtualHost::open(broker.clone()).expect("a virtual host");
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

    /// Opens a connection with channel 1, which consumes and confirms, shows it these bytes, and
    /// lets it end.
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
        input.extend_from_slice(data);
        let mut rest = &input[..];
        let mut cx = Context::from_waker(Waker::noop());
        while !session.is_ended() {
            let wanted = session.wants_input();
            let mut consumed = 0;
            if wanted && !rest.is_empty() {
                consumed = session.receive(rest, NOW).consumed_bytes;
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
