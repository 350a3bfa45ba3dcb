//! The coordinator's side of the connection to one worker.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::frame::REPLY_BYTES_MAX;
use super::line::{LineError, Listener, Speaker, halves};
use super::message::{Place, Reply, Request, VERSION, short};
use super::offset::Offset;
use crate::clock::Clock;
use crate::conditions::Conditions;
use crate::usage::GENERATOR_THREADS;

/// Time limit for connecting, and for each answer before a measurement.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A worker of the fleet.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) speaker: Arc<Speaker>,
    pub(super) reader: Option<JoinHandle<()>>,
    pub(super) conditions: Conditions,
    pub(super) offset: Offset,
    /// Why the worker was given up; `None`: it was not.
    pub(super) gone: Option<String>,
    pub(super) heard: Instant,
    pub(super) place: Place,
}

/// A reply of a worker, or the error that has ended its connection.
pub(super) struct Event {
    pub(super) worker: usize,
    /// Time of arrival by the coordinator's clock.
    pub(super) at_ns: u64,
    pub(super) said: Result<Reply, LineError>,
}

/// Connects, sends Hello, and starts the thread that reads the replies.
pub(super) fn join(
    number: usize,
    address: &str,
    token: &str,
    clock: Clock,
    events: &SyncSender<Event>,
) -> Result<Member, String> {
    let text = |error: LineError| error.to_string();
    let stream = reach(address).map_err(|error| error.to_string())?;
    let (speaker, mut listener) = halves(stream, REPLY_BYTES_MAX).map_err(text)?;
    let hello = Request::Hello {
        version: VERSION,
        token: token.to_owned(),
    };
    speaker.say(&hello).map_err(text)?;
    let conditions = match listener.hear::<Reply>(Some(PATIENCE)).map_err(text)? {
        Reply::Welcome { conditions } => *conditions,
        Reply::Refused { reason } => return Err(format!("it refuses: {}", short(reason))),
        _ => return Err("it does not answer a hello with a welcome".to_owned()),
    };
    let speaker = Arc::new(speaker);
    let events = events.clone();
    let reader = thread::Builder::new()
        .name(format!("{GENERATOR_THREADS}fleet-{number}"))
        .spawn(move || listen(number, listener, clock, &events))
        .map_err(|error| error.to_string())?;
    Ok(Member {
        name: address.to_owned(),
        speaker,
        reader: Some(reader),
        conditions,
        offset: Offset::default(),
        gone: None,
        heard: Instant::now(),
        place: Place::default(),
    })
}

/// A worker's default port.
const PORT: u16 = 4190;

/// A worker's address with its port.
fn with_port(address: &str) -> String {
    let is_plain = |host: &str| !host.contains(':') || host.ends_with(']');
    match address.rsplit_once(':') {
        Some((host, port)) if is_plain(host) && !port.contains(']') => address.to_owned(),
        // An IPv6 address without brackets.
        Some(_) if !address.starts_with('[') => format!("[{address}]:{PORT}"),
        _ => format!("{address}:{PORT}"),
    }
}

fn reach(address: &str) -> std::io::Result<TcpStream> {
    let mut refusal = std::io::Error::other("its name has no address");
    for address in with_port(address).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

fn listen(worker: usize, mut listener: Listener, clock: Clock, events: &SyncSender<Event>) {
    loop {
        let said = listener.hear(None);
        let is_over = said.is_err();
        let event = Event {
            worker,
            at_ns: clock.now_ns(),
            said,
        };
        if events.send(event).is_err() || is_over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_a_port_listens_on_the_usual_one() {
        for (address, expected) in [
            ("one", "one:4190"),
            ("one:5", "one:5"),
            ("10.0.0.1", "10.0.0.1:4190"),
            ("[::1]", "[::1]:4190"),
            ("[::1]:5", "[::1]:5"),
            ("::1", "[::1]:4190"),
        ] {
            assert_eq!(with_port(address), expected);
        }
    }
}
