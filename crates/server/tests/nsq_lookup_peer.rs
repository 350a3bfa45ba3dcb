//! Registration with nsqlookupd: the nsqlookupd is a few lines here that record what they receive.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::nsq_support::{Broker, PATIENCE, eventually, start};

/// Events at the nsqlookupd: a command without its body, or the end of a connection.
type Events = Receiver<String>;

struct Lookupd {
    address: SocketAddr,
    events: Events,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Lookupd {
    /// Listens, and answers `/channels` with `channels`.
    fn start(channels: &str) -> Lookupd {
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        let http_port = http.local_addr().unwrap().port();
        let body = format!(r#"{{"channels":{channels}}}"#);
        thread::spawn(move || {
            for stream in http.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert!(line.starts_with("GET /channels?topic="), "{line}");
                let answer = format!("HTTP/1.0 200 OK\r\nContent-Type: json\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (sender, events) = channel();
        let accepted = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in tcp.incoming() {
                let stream = stream.unwrap();
                accepted.lock().unwrap().push(stream.try_clone().unwrap());
                let sender = sender.clone();
                thread::spawn(move || {
                    talk(&stream, http_port, &sender);
                    let _ = sender.send("closed".to_owned());
                });
            }
        });
        Lookupd {
            address,
            events,
            connections,
        }
    }

    fn expect(&self, event: &str) {
        let next = self.events.recv_timeout(PATIENCE);
        assert_eq!(next.as_deref(), Ok(event));
    }

    fn hang_up(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn talk(stream: &TcpStream, http_port: u16, events: &Sender<String>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut magic = [0; 4];
    reader.read_exact(&mut magic).ok()?;
    assert_eq!(&magic, b"  V1");
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        let answer = if line == "IDENTIFY" {
            let mut size = [0; 4];
            reader.read_exact(&mut size).ok()?;
            let mut body = vec![0; u32::from_be_bytes(size) as usize];
            reader.read_exact(&mut body).ok()?;
            let identity: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(identity["broadcast_address"], "127.0.0.1");
            assert_ne!(identity["tcp_port"], 0);
            assert_ne!(identity["http_port"], 0);
            format!(
                r#"{{"tcp_port":1,"http_port":{http_port},"version":"1.3.0",
                    "broadcast_address":"127.0.0.1","hostname":"h"}}"#
            )
        } else {
            "OK".to_owned()
        };
        events.send(line).ok()?;
        let mut stream = stream;
        stream
            .write_all(&(answer.len() as u32).to_be_bytes())
            .ok()?;
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn start_with(lookupd: &Lookupd) -> Broker {
    let address = lookupd.address.to_string();
    start(|config| config.nsq.lookupd_tcp_address = vec![address])
}

#[test]
fn definitions_are_registered_as_they_change() {
    let lookupd = Lookupd::start("[]");
    let broker = start_with(&lookupd);
    lookupd.expect("IDENTIFY");
    broker.post("/topic/create?topic=t", b"");
    lookupd.expect("REGISTER t");
    broker.post("/channel/create?topic=t&channel=c", b"");
    lookupd.expect("REGISTER t c");
    broker.post("/channel/delete?topic=t&channel=c", b"");
    lookupd.expect("UNREGISTER t c");
    broker.post("/topic/delete?topic=t", b"");
    lookupd.expect("UNREGISTER t");
    drop(broker);
    lookupd.expect("closed");
}

#[test]
fn everything_is_registered_again_after_a_reconnect() {
    let lookupd = Lookupd::start("[]");
    let broker = start_with(&lookupd);
    lookupd.expect("IDENTIFY");
    broker.post("/topic/create?topic=t", b"");
    lookupd.expect("REGISTER t");
    lookupd.hang_up();
    lookupd.expect("closed");
    lookupd.expect("IDENTIFY");
    lookupd.expect("REGISTER t");
}

#[test]
fn addresses_can_be_changed_while_running() {
    let (first, second) = (Lookupd::start("[]"), Lookupd::start("[]"));
    let broker = start_with(&first);
    first.expect("IDENTIFY");
    broker.post("/topic/create?topic=t", b"");
    first.expect("REGISTER t");
    let body = format!(r#"["{}"]"#, second.address);
    let answer = broker.put("/config/nsqlookupd_tcp_addresses", body.as_bytes());
    assert_eq!((answer.status, answer.body), (200, body));
    first.expect("closed");
    second.expect("IDENTIFY");
    second.expect("REGISTER t");
}

#[test]
fn a_new_topic_gets_the_channels_that_are_known_with_its_first_message() {
    let lookupd = Lookupd::start(r#"["a","b","gone#ephemeral","not valid"]"#);
    let broker = start_with(&lookupd);
    lookupd.expect("IDENTIFY");
    // Registrations follow the answer to IDENTIFY, which has the address for `/channels`.
    broker.post("/topic/create?topic=first", b"");
    lookupd.expect("REGISTER first");
    assert_eq!(broker.post("/pub?topic=t", b"x").body, "OK");
    let topic = broker.server.context().broker.topic("t").unwrap();
    let expected = [("a".to_owned(), 1), ("b".to_owned(), 1)];
    eventually("a and b with the message", || {
        let subscriptions = topic.subscriptions();
        let found = subscriptions
            .iter()
            .map(|s| (s.name().to_owned(), s.stats().depth));
        found.collect::<Vec<_>>() == expected
    });
}
