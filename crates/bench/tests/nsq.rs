//! The NSQ client against peers that follow a script.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use cloverleaf_bench::{
    Acks, Amount, Arrivals, Connect, Kind, Outcome, PayloadKind, Plan, Promise, Sink, Stop, Target,
    Url, connect,
};

fn plan(amount: Amount) -> Plan {
    Plan {
        run: 5,
        topic: "t".to_owned(),
        producers: 2,
        consumers: 1,
        size_bytes: 100,
        payload: PayloadKind::Random,
        amount,
        warm_up_s: 0.0,
        arrivals: Arrivals::Closed,
        batch_messages: 10,
        in_flight: 25,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 1,
    }
}

fn client(address: SocketAddr) -> Box<dyn Connect> {
    // No HTTP server answers there.
    let url: Url = format!("nsq://{address}?http=127.0.0.1:1").parse().unwrap();
    connect(&url).unwrap()
}

fn measure(address: SocketAddr, kind: Kind, plan: &Plan) -> Result<Outcome, String> {
    let connect = client(address);
    let target = Target {
        connect: &*connect,
        label: "peer".to_owned(),
        url: "nsq".to_owned(),
        place: cloverleaf_bench::BrokerPlace::Elsewhere,
        keeps_topic: true,
    };
    let outcome = target.measure(kind, plan, &Stop::default(), |_| {});
    outcome.map_err(|error| error.to_string())
}

/// A peer with its own connection, which has read the magic.
struct Peer(BufReader<TcpStream>);

impl Peer {
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.0.read_line(&mut line).ok()?;
        (bytes > 0).then(|| line.trim_end().to_owned())
    }

    fn body(&mut self) -> Vec<u8> {
        let mut size = [0; 4];
        self.0.read_exact(&mut size).unwrap();
        let mut body = vec![0; u32::from_be_bytes(size) as usize];
        self.0.read_exact(&mut body).unwrap();
        body
    }

    fn say(&mut self, kind: u32, data: &[u8]) {
        let size = u32::try_from(data.len() + 4).unwrap();
        let mut frame = size.to_be_bytes().to_vec();
        frame.extend_from_slice(&kind.to_be_bytes());
        frame.extend_from_slice(data);
        // In two pieces, as a network may cut it. A client that is gone hears nothing.
        let (one, two) = frame.split_at(frame.len() / 2);
        let stream = self.0.get_mut();
        let _ = stream.write_all(one).and_then(|()| stream.write_all(two));
    }
}

/// Plays the same script to each who comes.
fn peer(script: impl Fn(Peer) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (script, mut stream) = (script.clone(), stream.unwrap());
            thread::spawn(move || {
                let mut magic = [0; 4];
                stream.read_exact(&mut magic).unwrap();
                assert_eq!(&magic, b"  V2");
                script(Peer(BufReader::new(stream)));
            });
        }
    });
    address
}

#[test]
fn every_message_is_published_and_answered() {
    let sink = Sink::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = sink.address().unwrap();
    thread::spawn(move || sink.run());
    let outcome = measure(address, Kind::Produce, &plan(Amount::Messages(5_003))).unwrap();
    assert!(outcome.is_good(), "{:?}", outcome.cut);
    let produced = outcome.produced.unwrap();
    assert_eq!(
        (produced.sent, produced.messages, produced.errors),
        (5_003, 5_003, 0)
    );
    assert_eq!(produced.acked.len(), 2);
    assert_eq!(
        outcome.subject.promise,
        Promise::Configured,
        "a sink promises nothing"
    );
}

#[test]
fn what_is_due_is_sent_when_it_is_due() {
    let sink = Sink::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = sink.address().unwrap();
    thread::spawn(move || sink.run());
    let plan = Plan {
        arrivals: Arrivals::Constant { rate: 2_000.0 },
        batch_messages: 200,
        in_flight: 0,
        ..plan(Amount::Seconds(0.5))
    };
    let outcome = measure(address, Kind::Produce, &plan).unwrap();
    let produced = outcome.produced.unwrap();
    assert_eq!(produced.messages, 1_000);
    assert_eq!(produced.lag.len(), 1_000, "it never had to wait for room");
    assert!(produced.span_s() >= 0.4, "{}", produced.span_s());
}

#[test]
fn the_window_is_kept_and_heartbeats_are_answered() {
    let address = peer(|mut peer| {
        let mut unanswered = Vec::new();
        while let Some(line) = peer.line() {
            let command = line.split(' ').next().unwrap().to_owned();
            match command.as_str() {
                "IDENTIFY" => {
                    peer.body();
                    peer.say(0, b"{\"max_rdy_count\":7,\"version\":\"9.9\"}");
                }
                "MPUB" => {
                    let body = peer.body();
                    let messages = u32::from_be_bytes(*body.first_chunk::<4>().unwrap());
                    assert_eq!(body.len(), 4 + messages as usize * 104);
                    unanswered.push(messages);
                    let sum: u32 = unanswered.iter().sum();
                    assert!(messages <= 10 && sum <= 25, "{unanswered:?}");
                    if sum == 25 {
                        peer.say(0, b"_heartbeat_");
                        assert_eq!(peer.line().as_deref(), Some("NOP"));
                        unanswered.clear();
                        // Batches of 10, 10 and 5.
                        (0..3).for_each(|_| peer.say(0, b"OK"));
                    }
                }
                other => panic!("{other}"),
            }
        }
    });
    let plan = Plan {
        producers: 1,
        ..plan(Amount::Messages(100))
    };
    let outcome = measure(address, Kind::Produce, &plan).unwrap();
    assert!(outcome.is_good(), "{:?}", outcome.cut);
    assert_eq!(outcome.produced.unwrap().messages, 100);
    let version = ("NSQ broker".to_owned(), "9.9".to_owned());
    assert!(outcome.subject.versions.contains(&version));
}

#[test]
fn a_consumer_takes_no_more_than_it_may_and_finishes_each() {
    let address = peer(|mut peer| {
        let mut finished = 0;
        while let Some(line) = peer.line() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["IDENTIFY"] => {
                    peer.body();
                    peer.say(0, b"{\"max_rdy_count\":7}");
                }
                ["SUB", "t", "bench"] => peer.say(0, b"OK"),
                ["RDY", count] => {
                    assert_eq!(count, "7", "no more than the broker takes");
                    for number in 0..7u8 {
                        let mut data = vec![0; 10];
                        data.extend_from_slice(format!("{number:016}").as_bytes());
                        data.extend_from_slice(b"not ours");
                        peer.say(2, &data);
                    }
                }
                ["FIN", id] => {
                    assert_eq!(id, format!("{finished:016}"));
                    finished += 1;
                    if finished == 7 {
                        peer.say(1, b"E_INVALID that is all");
                        return;
                    }
                }
                _ => {
                    // Publishing is answered and forgotten.
                    peer.body();
                    peer.say(0, b"OK");
                }
            }
        }
        assert_eq!(finished % 7, 0);
    });
    let outcome = measure(address, Kind::EndToEnd, &plan(Amount::Messages(20))).unwrap();
    assert_eq!(outcome.consumed.as_ref().unwrap().foreign, 7);
    let cut = outcome.cut.unwrap();
    assert!(cut.contains("refuses: E_INVALID that is all"), "{cut}");
    let findings = outcome.findings.unwrap();
    assert_eq!((findings.lost, findings.unread), (0, 20));
}

#[test]
fn refusals_are_told_in_the_brokers_words() {
    let address = peer(|mut peer| {
        while let Some(line) = peer.line() {
            peer.body();
            match line.as_str() {
                "IDENTIFY" => peer.say(0, b"OK"),
                _ => peer.say(1, b"E_PUB_FAILED no"),
            }
        }
    });
    let outcome = measure(address, Kind::Produce, &plan(Amount::Messages(100))).unwrap();
    assert!(!outcome.is_good(), "nothing was published");
    let produced = outcome.produced.unwrap();
    assert_eq!((produced.messages, produced.errors), (0, 100));
    assert_eq!(produced.error_texts, ["E_PUB_FAILED no"]);
}

#[test]
fn who_speaks_something_else_is_recognised() {
    let address = peer(|mut peer| {
        let _ = peer
            .0
            .get_mut()
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        while peer.line().is_some() {}
    });
    let error = measure(address, Kind::Produce, &plan(Amount::Messages(1))).unwrap_err();
    assert!(error.contains("it sent a frame of"), "{error}");
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = measure(free, Kind::Produce, &plan(Amount::Messages(1))).unwrap_err();
    assert!(
        error.starts_with("cannot connect to nsq://127.0.0.1:"),
        "{error}"
    );
    let login = peer(|mut peer| {
        peer.line();
        peer.body();
        peer.say(0, b"{\"auth_required\":true}");
    });
    let error = measure(login, Kind::Produce, &plan(Amount::Messages(1))).unwrap_err();
    assert!(error.contains("it wants a login"), "{error}");
}

#[test]
fn what_the_protocol_does_not_have_is_said() {
    let sink = Sink::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = sink.address().unwrap();
    let plan = Plan {
        acks: Acks::None,
        ..plan(Amount::Messages(1))
    };
    let error = measure(address, Kind::Produce, &plan).unwrap_err();
    assert!(error.contains("there is no --acks none"), "{error}");
    for (options, part) in [
        ("?linger=5", "knows no option \"linger\""),
        ("?output-buffer-timeout=x", "no whole number"),
        ("?http=x", "no address"),
    ] {
        let url: Url = format!("nsq://{address}{options}").parse().unwrap();
        let error = connect(&url).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
}
