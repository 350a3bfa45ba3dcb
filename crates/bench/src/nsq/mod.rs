//! NSQ by a client of our own: a window of publishes and batched acknowledgements on one socket,
//! as fast as NSQ's own `bench_writer` and `bench_reader`.
//!
//! Options of the URL:
//!
//! | option | what | default |
//! |---|---|---|
//! | `channel` | the channel to consume from | `bench` |
//! | `http` | where the HTTP API is; by it topics are removed | the TCP port + 1 |
//! | `output-buffer-timeout` | ms that the broker may hold back messages; -1: none | the broker's |
//! | `output-buffer-size` | bytes until which it may do so; -1: none | the broker's |
//! | `durability` | what an OK promises, if the broker does not tell | |
//!
//! A password is sent with AUTH.

mod codec;
mod consumer;
mod http;
mod producer;
mod sink;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::codec::{Frame, Frames, HEARTBEAT, MAGIC, command, command_with, length};
use self::consumer::Receiver;
use self::producer::{Publisher, WAITING_BYTES_MAX, batch_messages};
use crate::driver::{Connect, Consume, DriverError, Produce, Promise};
use crate::plan::{Acks, Plan};
use crate::pump::{Consumer, Limits, Producer};
use crate::url::Url;
use crate::wire::{SocketPublisher, SocketReceiver, Wire, WireError};

pub use self::sink::Sink;

/// Bound of a frame, if messages are not larger. A user's topic may contain other messages.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// More than the bytes of a frame beside its message.
const FRAME_OVERHEAD_BYTES: usize = 1 << 10;
/// Options of this client, and those that all brokers have.
const OPTIONS: [&str; 6] = [
    "channel",
    "http",
    "output-buffer-timeout",
    "output-buffer-size",
    "durability",
    "pid",
];
/// Suffix of topics that the broker keeps in memory only.
const EPHEMERAL: &str = "#ephemeral";
const USER_AGENT: &str = concat!("cloverleaf-bench/", env!("CARGO_PKG_VERSION"));
/// Maximum of RDY if the broker does not report one: nsqd's default.
const RDY_MAX: u32 = 2_500;

/// A broker that speaks NSQ's protocol.
pub(crate) struct Nsq {
    url: Url,
    address: SocketAddr,
    http: Option<SocketAddr>,
    channel: String,
    found: Mutex<Found>,
}

/// The broker's description of itself.
#[derive(Debug, Clone, Default)]
struct Found {
    version: Option<String>,
    promise: Option<Promise>,
}

/// How the requests of [`Nsq::publish_one_by_one`] are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishWrites {
    /// The socket has Nagle's algorithm.
    pub(crate) has_nagle: bool,
    /// The command is a write of its own, before the message.
    pub(crate) in_pieces: bool,
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Publishes,
    Subscribes,
}

/// A connection after IDENTIFY.
struct Introduced {
    wire: Wire,
    frames: Frames,
    rdy_max: u32,
    version: Option<String>,
}

impl Nsq {
    /// A client for the broker at this URL.
    pub(crate) fn new(url: &Url) -> Result<Nsq, DriverError> {
        if let Some(name) = url.option_names().find(|name| !OPTIONS.contains(name)) {
            let what = format!(
                "the client for nsq:// knows no option \"{name}\"; it knows {}",
                OPTIONS.join(", ")
            );
            return Err(DriverError::Unsupported { what });
        }
        for name in ["output-buffer-timeout", "output-buffer-size"] {
            if let Some(value) = url.option(name)
                && value.parse::<i64>().is_err()
            {
                let what = format!("?{name}={value} is no whole number");
                return Err(DriverError::Unsupported { what });
            }
        }
        if url.hosts.len() > 1 {
            let what = "nsqd processes know nothing of each other: one nsq:// URL names one host";
            return Err(DriverError::Unsupported {
                what: what.to_owned(),
            });
        }
        let address = url.addresses()?.first().copied();
        let address = address.ok_or_else(|| url.unreachable("the name has no address"))?;
        let http = match url.option("http") {
            Some(text) => {
                let mut found = text.to_socket_addrs().ok().into_iter().flatten();
                Some(found.next().ok_or_else(|| DriverError::Unsupported {
                    what: format!("?http={text} is no address: write ?http=localhost:4151"),
                })?)
            }
            None => address
                .port()
                .checked_add(1)
                .map(|port| SocketAddr::new(address.ip(), port)),
        };
        Ok(Nsq {
            url: url.clone(),
            address,
            http,
            channel: url.option("channel").unwrap_or("bench").to_owned(),
            found: Mutex::default(),
        })
    }

    fn introduce(&self, plan: &Plan, role: Role) -> Result<Introduced, DriverError> {
        let frames = Frames {
            bytes_max: FRAME_BYTES_MAX.max(plan.size_bytes + FRAME_OVERHEAD_BYTES),
        };
        let wire = Wire::connect(self.address);
        let mut wire = wire.map_err(|error| self.url.unreachable(error))?;
        let mut identify = json!({
            "client_id": "cloverleaf-bench",
            "user_agent": USER_AGENT,
            "feature_negotiation": true,
        });
        // No heartbeats, because a connection may be idle for long before the measurement begins. A
        // connection that subscribes must have them.
        if role == Role::Publishes {
            identify["heartbeat_interval"] = json!(-1);
        }
        for (option, name) in [
            ("output-buffer-timeout", "output_buffer_timeout"),
            ("output-buffer-size", "output_buffer_size"),
        ] {
            let value = self
                .url
                .option(option)
                .and_then(|text| text.parse::<i64>().ok());
            if let Some(value) = value {
                identify[name] = json!(value);
            }
        }
        wire.out().extend_from_slice(MAGIC);
        command_with(wire.out(), &["IDENTIFY"], identify.to_string().as_bytes());
        let answer = self.answer(&mut wire, frames)?;
        let answer: Value = serde_json::from_str(&answer).unwrap_or(Value::Null);
        if let Some(secret) = &self.url.password {
            command_with(wire.out(), &["AUTH"], secret.as_bytes());
            self.answer(&mut wire, frames)?;
        } else if answer["auth_required"] == json!(true) {
            let words = "it wants a login: write nsq://user:secret@host:port";
            return Err(self.url.refused(words));
        }
        let rdy_max = answer["max_rdy_count"].as_u64();
        Ok(Introduced {
            wire,
            frames,
            rdy_max: rdy_max.map_or(RDY_MAX, |most| u32::try_from(most).unwrap_or(u32::MAX)),
            version: answer["version"].as_str().map(str::to_owned),
        })
    }

    /// Sends the output and waits for one answer.
    fn answer(&self, wire: &mut Wire, frames: Frames) -> Result<String, DriverError> {
        let answer = wire.ask(frames, |frame, out| {
            Ok(match frame {
                Frame::Response(HEARTBEAT) => {
                    command(out, &["NOP"]);
                    None
                }
                Frame::Response(words) => Some(Ok(lossy(words))),
                Frame::Error(words) => Some(Err(lossy(words))),
                Frame::Message { .. } => None,
            })
        });
        match answer.map_err(|error| self.url.gone(error))? {
            Some(answer) => answer.map_err(|words| self.url.refused(words)),
            None => Err(self.url.gone("it does not answer within 10 seconds")),
        }
    }

    /// Publishes the body `messages` times, each time after the answer to the publish before, on a
    /// connection that sends no IDENTIFY. Returns how long each publish took.
    ///
    /// # Errors
    /// The broker is not there, refuses, or goes away.
    pub(crate) fn publish_one_by_one(
        &self,
        topic: &str,
        body: &[u8],
        messages: u32,
        writes: PublishWrites,
    ) -> Result<Vec<Duration>, DriverError> {
        let gone = |error: WireError| self.url.gone(error);
        let wire = Wire::connect(self.address);
        let mut wire = wire.map_err(|error| self.url.unreachable(error))?;
        let set = wire.set_nagle(writes.has_nagle);
        set.map_err(|error| gone(error.into()))?;
        let frames = Frames {
            bytes_max: FRAME_BYTES_MAX,
        };
        wire.out().extend_from_slice(MAGIC);
        wire.send().map_err(gone)?;
        let mut times = Vec::new();
        for _ in 0..messages {
            let begun = Instant::now();
            command(wire.out(), &["PUB", topic]);
            let body_bytes = length(body.len()).to_be_bytes();
            wire.out().extend_from_slice(&body_bytes);
            if writes.in_pieces {
                wire.send().map_err(gone)?;
            }
            wire.out().extend_from_slice(body);
            self.answer(&mut wire, frames)?;
            times.push(begun.elapsed());
        }
        Ok(times)
    }

    fn subscribed(&self, plan: &Plan) -> Result<Introduced, DriverError> {
        let mut introduced = self.introduce(plan, Role::Subscribes)?;
        let sub = ["SUB", plan.topic.as_str(), self.channel.as_str()];
        command(introduced.wire.out(), &sub);
        self.answer(&mut introduced.wire, introduced.frames)?;
        Ok(introduced)
    }

    /// The value of a broker's option from its HTTP API; `None`: it is not available.
    fn option(&self, name: &str) -> Option<Value> {
        let text = http::request(self.http?, "GET", &format!("/config/{name}"));
        let text = text.ok()??;
        // The API returns strings without quotes.
        Some(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The durability that an OK promises. nsqd keeps messages in memory up to `mem-queue-size`.
    /// Cloverleaf has an option for it.
    fn find_promise(&self) -> Option<Promise> {
        if let Some(mode) = self.option("durability") {
            return match mode.as_str()? {
                "disk" => Some(Promise::Disk),
                "kernel" | "protocol" => Some(Promise::Kernel),
                _ => None,
            };
        }
        match self.option("mem_queue_size")?.as_u64()? {
            0 => Some(Promise::Kernel),
            _ => Some(Promise::Memory),
        }
    }
}

fn lossy(words: &[u8]) -> String {
    String::from_utf8_lossy(words).into_owned()
}

impl Connect for Nsq {
    fn prepare(&self, plan: &Plan) -> Result<(), DriverError> {
        if plan.acks == Acks::None {
            return Err(DriverError::Unsupported {
                what: "NSQ answers every publish: there is no --acks none".to_owned(),
            });
        }
        let introduced = self.introduce(plan, Role::Publishes)?;
        *self.found.lock() = Found {
            version: introduced.version,
            promise: self.find_promise(),
        };
        // A channel receives messages that are published after its creation.
        if plan.consumers > 0 {
            self.subscribed(plan)?;
        }
        Ok(())
    }

    fn producer(&self, plan: &Plan, _: u32) -> Result<Box<dyn Produce>, DriverError> {
        let introduced = self.introduce(plan, Role::Publishes)?;
        Ok(Box::new(Producer(SocketPublisher {
            wire: introduced.wire,
            url: self.url.clone(),
            limits: Limits {
                batch_messages: batch_messages(plan.batch_messages, plan.size_bytes),
                // The clock is read for each publish, not for each message.
                same_time_messages: usize::MAX,
                ..Limits::new(plan.window(u32::MAX))
            },
            waiting_bytes_max: WAITING_BYTES_MAX,
            is_answered: true,
            codec: Publisher::new(introduced.frames, &plan.topic),
        })))
    }

    fn consumer(&self, plan: &Plan, _: u32) -> Result<Box<dyn Consume>, DriverError> {
        let introduced = self.subscribed(plan)?;
        let window = plan.window(introduced.rdy_max).min(introduced.rdy_max);
        Ok(Box::new(Consumer(SocketReceiver {
            wire: introduced.wire,
            url: self.url.clone(),
            codec: Receiver {
                frames: introduced.frames,
                window,
                refused: None,
            },
        })))
    }

    fn clean_up(&self, plan: &Plan) -> Result<(), DriverError> {
        let path = format!("/topic/delete?topic={}", plan.topic);
        let deleted = match self.http {
            Some(http) => http::request(http, "POST", &path).map_err(|error| error.to_string()),
            None => Err("its HTTP API is unknown".to_owned()),
        };
        match deleted {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(self
                .url
                .refused(format!("it does not remove {}", plan.topic))),
            Err(reason) => Err(self.url.refused(format!(
                "topic {} stays: {reason} (?http=HOST:PORT says where its HTTP API is)",
                plan.topic
            ))),
        }
    }

    fn versions(&self) -> Vec<(String, String)> {
        let client = ("NSQ client of cloverleaf bench", env!("CARGO_PKG_VERSION"));
        let mut versions = vec![(client.0.to_owned(), client.1.to_owned())];
        let found = self.found.lock();
        versions.extend(
            found
                .version
                .clone()
                .map(|it| ("NSQ broker".to_owned(), it)),
        );
        versions
    }

    fn promise(&self, plan: &Plan) -> Promise {
        if plan.topic.ends_with(EPHEMERAL) {
            return Promise::Memory;
        }
        self.found.lock().promise.unwrap_or(Promise::Configured)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A broker that answers each publish, and sends a heartbeat before the third answer.
    fn broker(answer: &'static [u8]) -> Nsq {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nsq://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            let mut request = [0; 15];
            let mut count = 0;
            while stream.read_exact(&mut request).is_ok() {
                assert_eq!(&request, b"PUB t\n\0\0\0\x05hello");
                count += 1;
                if count == 3 {
                    stream.write_all(b"\0\0\0\x0f\0\0\0\0_heartbeat_").unwrap();
                    stream.write_all(answer).unwrap();
                    stream.read_exact(&mut [0; 4]).unwrap();
                } else {
                    stream.write_all(answer).unwrap();
                }
            }
        });
        Nsq::new(&url.parse().unwrap()).unwrap()
    }

    #[test]
    fn each_message_waits_for_its_answer() {
        for (has_nagle, in_pieces) in [(true, true), (false, true), (true, false)] {
            let writes = PublishWrites {
                has_nagle,
                in_pieces,
            };
            let publish = |answer| broker(answer).publish_one_by_one("t", b"hello", 9, writes);
            let times = publish(b"\0\0\0\x06\0\0\0\0OK").unwrap();
            assert_eq!(times.len(), 9, "{writes:?}");
            let refused = publish(b"\0\0\0\x0c\0\0\0\x01E_BAD_XY")
                .unwrap_err()
                .to_string();
            assert!(refused.ends_with("refuses: E_BAD_XY"), "{refused}");
            let other = publish(b"\xff\0\0\x0c\0\0\0\x01").unwrap_err().to_string();
            assert!(other.contains("a frame of 4278190092 bytes"), "{other}");
        }
    }

    #[test]
    fn the_http_api_may_have_a_name() {
        let nsq = |url: &str| Nsq::new(&url.parse().unwrap());
        let named = nsq("nsq://127.0.0.1:1?http=localhost:4151").unwrap();
        assert!(
            named
                .http
                .is_some_and(|it| it.ip().is_loopback() && it.port() == 4151)
        );
        let beside = nsq("nsq://127.0.0.1:4150").unwrap();
        assert_eq!(beside.http, Some(SocketAddr::from(([127, 0, 0, 1], 4151))));
        for wrong in ["localhost", "localhost:x", ":"] {
            let error = nsq(&format!("nsq://127.0.0.1:1?http={wrong}"))
                .err()
                .unwrap();
            assert!(error.to_string().contains("is no address"), "{error}");
        }
    }
}
