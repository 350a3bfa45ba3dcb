//! The codec against nsqd's texts, against any split of the input, and against any bytes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use proptest::prelude::*;

fn options() -> SessionOptions {
    SessionOptions {
        msg_bytes_max: 100,
        body_bytes_max: 1000,
        ..SessionOptions::default()
    }
}

fn sized(line: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(line);
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn mpub(topic: &str, bodies: &[&[u8]]) -> Vec<u8> {
    let mut inner = Vec::from((bodies.len() as u32).to_be_bytes());
    for body in bodies {
        inner.extend_from_slice(&(body.len() as u32).to_be_bytes());
        inner.extend_from_slice(body);
    }
    sized(&format!("MPUB {topic}\n"), &inner)
}

fn check_error(input: &[u8], expect: &str) {
    let error = parse_command(input, &options()).expect_err(expect);
    assert_eq!(String::from_utf8_lossy(&error.body()), expect);
    assert!(error.code.is_fatal());
}

fn check(input: &[u8], expect: Command<'_>) {
    assert_eq!(
        parse_command(input, &options()),
        Ok(Parsed::Complete(expect, input.len()))
    );
}

#[test]
fn every_command_is_understood() {
    const ID: &[u8; 16] = b"0123456789abcdef";
    check(&sized("IDENTIFY\n", b"{}"), Command::Identify(b"{}"));
    check(&sized("AUTH\r\n", b"secret"), Command::Auth(b"secret"));
    let (topic, channel) = ("t", "c#ephemeral");
    check(b"SUB t c#ephemeral\n", Command::Sub { topic, channel });
    let body = &b"hello"[..];
    check(&sized("PUB t\n", body), Command::Pub { topic, body });
    let delay_ms = 1500;
    let command = Command::Dpub {
        topic,
        delay_ms,
        body,
    };
    check(&sized("DPUB t 1500\n", body), command);
    check(b"RDY 17\n", Command::Rdy(Some(b"17")));
    check(b"RDY\n", Command::Rdy(None));
    check(b"FIN 0123456789abcdef\n", Command::Fin(ID));
    check(b"FIN 0123456789abcdef\r\n", Command::Fin(ID));
    check(b"FIN 0123456789abcdef more\n", Command::Fin(ID));
    check(b"REQ 0123456789abcdef 250\n", Command::Req(ID, 250));
    check(
        b"REQ 0123456789abcdef 99999999\n",
        Command::Req(ID, 3_600_000),
    );
    check(
        b"REQ 0123456789abcdef 9999999999999999\n",
        Command::Req(ID, 3_600_000),
    );
    check(b"TOUCH 0123456789abcdef\n", Command::Touch(ID));
    check(b"CLS\n", Command::Cls);
    check(b"NOP\n", Command::Nop);
}

#[test]
fn mpub_yields_its_messages() {
    let bodies: [&[u8]; 3] = [b"a", b"bb", b"ccc"];
    let input = mpub("t", &bodies);
    let parsed = parse_command(&input, &options());
    let Ok(Parsed::Complete(Command::Mpub { topic, messages }, used)) = parsed else {
        panic!("{parsed:?}");
    };
    assert_eq!((topic, messages.left(), used), ("t", 3, input.len()));
    assert_eq!(messages.collect::<Vec<_>>(), bodies);
}

#[test]
fn errors_have_nsqds_texts() {
    for (input, expect) in [
        (&b"\n"[..], "E_INVALID invalid command "),
        (b"ASDF\n", "E_INVALID invalid command ASDF"),
        (b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
        (
            b"MPUB\n",
            "E_INVALID MPUB insufficient number of parameters",
        ),
        (
            b"DPUB t\n",
            "E_INVALID DPUB insufficient number of parameters",
        ),
        (
            b"SUB t\n",
            "E_INVALID SUB insufficient number of parameters",
        ),
        (b"FIN\n", "E_INVALID FIN insufficient number of params"),
        (b"REQ x\n", "E_INVALID REQ insufficient number of params"),
        (b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
        (b"FIN short\n", "E_INVALID invalid message ID"),
        (b"FIN 0123456 89abcdef\n", "E_INVALID invalid message ID"),
        (b"AUTH x\n", "E_INVALID AUTH invalid number of parameters"),
        (b"PUB a b!\n\0", "E_INVALID PUB"),
        (
            b"PUB a:b\n",
            "E_BAD_TOPIC PUB topic name \"a:b\" is not valid",
        ),
        (b"PUB  a\n", "E_BAD_TOPIC PUB topic name \"\" is not valid"),
        (
            b"SUB \xff c\n",
            "E_BAD_TOPIC SUB topic name \"\\xff\" is not valid",
        ),
        (
            b"SUB t c:\n",
            "E_BAD_CHANNEL SUB channel name \"c:\" is not valid",
        ),
        (
            b"MPUB :\n",
            "E_BAD_TOPIC E_BAD_TOPIC MPUB topic name \":\" is not valid",
        ),
        (b"DPUB t x\n", "E_INVALID DPUB could not parse timeout x"),
        (
            b"DPUB t 3600100\n",
            "E_INVALID DPUB timeout 3600100 out of range 0-3600000",
        ),
        (
            b"REQ 0123456789abcdef -1\n",
            "E_INVALID REQ could not parse timeout -1",
        ),
    ] {
        if expect == "E_INVALID PUB" {
            // Extra words are ignored: this command is only incomplete.
            assert!(matches!(
                parse_command(input, &options()),
                Ok(Parsed::Incomplete(_))
            ));
            continue;
        }
        check_error(input, expect);
    }
}

#[test]
fn sizes_are_refused_before_their_bytes_come() {
    let claim = |line: &str, size: i32| [line.as_bytes(), &size.to_be_bytes()[..]].concat();
    for (input, expect) in [
        (
            claim("PUB t\n", 105),
            "E_BAD_MESSAGE PUB message too big 105 > 100",
        ),
        (
            claim("PUB t\n", 0),
            "E_BAD_MESSAGE PUB invalid message body size 0",
        ),
        (
            claim("PUB t\n", -1),
            "E_BAD_MESSAGE PUB invalid message body size -1",
        ),
        (
            claim("DPUB t 1\n", 101),
            "E_BAD_MESSAGE DPUB message too big 101 > 100",
        ),
        (
            claim("DPUB t 1\n", 0),
            "E_BAD_MESSAGE DPUB invalid message body size 0",
        ),
        (
            claim("MPUB t\n", 1148),
            "E_BAD_BODY MPUB body too big 1148 > 1000",
        ),
        (claim("MPUB t\n", 0), "E_BAD_BODY MPUB invalid body size 0"),
        (
            claim("IDENTIFY\n", 1001),
            "E_BAD_BODY IDENTIFY body too big 1001 > 1000",
        ),
        (
            claim("IDENTIFY\n", 0),
            "E_BAD_BODY IDENTIFY invalid body size 0",
        ),
        (
            claim("AUTH\n", i32::MAX),
            "E_BAD_BODY AUTH body too big 2147483647 > 1000",
        ),
        (claim("AUTH\n", -7), "E_BAD_BODY AUTH invalid body size -7"),
        (
            [claim("MPUB t\n", 900), vec![0, 0, 0, 0]].concat(),
            "E_BAD_BODY MPUB invalid message count 0",
        ),
        (
            [claim("MPUB t\n", 900), vec![0, 0, 0, 1, 0, 0, 0, 101]].concat(),
            "E_BAD_MESSAGE MPUB message too big 101 > 100",
        ),
        (
            [claim("MPUB t\n", 900), vec![0, 0, 0, 1, 0, 0, 0, 0]].concat(),
            "E_BAD_MESSAGE MPUB invalid message(0) body size 0",
        ),
    ] {
        check_error(&input, expect);
    }
    let long = vec![b'x'; LINE_BYTES_MAX];
    check_error(&long, "E_INVALID command line longer than 16384 bytes");
}

#[test]
fn mpub_is_checked_to_the_last_message() {
    let full: &[u8] = &[b'x'; 100];
    check_error(
        &mpub("t", &[full, full, full, full, full, b""]),
        "E_BAD_MESSAGE MPUB invalid message(5) body size 0",
    );
    check_error(
        &mpub("t", &[full, &[b'x'; 101]]),
        "E_BAD_MESSAGE MPUB message too big 101 > 100",
    );
    check_error(
        &sized("MPUB t\n", &[0, 0, 0]),
        "E_BAD_BODY MPUB failed to read message count",
    );
    check_error(
        &sized("MPUB t\n", &[0, 0, 0, 0]),
        "E_BAD_BODY MPUB invalid message count 0",
    );
    check_error(
        &sized("MPUB t\n", &[0, 0, 1, 0]),
        "E_BAD_BODY MPUB invalid message count 256",
    );
    check_error(
        &sized("MPUB t\n", &[0, 0, 0, 1, 0]),
        "E_BAD_MESSAGE MPUB failed to read message(0) body size",
    );
    check_error(
        &sized("MPUB t\n", &[0, 0, 0, 1, 0, 0, 0, 2, b'x']),
        "E_BAD_MESSAGE MPUB failed to read message body",
    );
    check_error(
        &sized("MPUB t\n", &[0, 0, 0, 1, 0, 0, 0, 1, b'x', b'y']),
        "E_BAD_BODY MPUB invalid body size 10",
    );
}

#[test]
fn a_peer_that_stops_is_told_where() {
    let at_end = |input: &[u8]| match parse_command(input, &options()) {
        Ok(Parsed::Incomplete(incomplete)) => incomplete.at_end().map(|error| error.to_string()),
        other => panic!("{other:?}"),
    };
    assert_eq!(at_end(b"PU"), None);
    assert_eq!(
        at_end(b"PUB t\n\0").as_deref(),
        Some("E_BAD_MESSAGE PUB failed to read message body size")
    );
    assert_eq!(
        at_end(b"IDENTIFY\n\0\0\0\x02{").as_deref(),
        Some("E_BAD_BODY IDENTIFY failed to read body")
    );
}

fn any_command() -> impl Strategy<Value = Vec<u8>> {
    let body = || proptest::collection::vec(any::<u8>(), 1..100);
    let name = "[.a-zA-Z0-9_-]{1,30}(#ephemeral)?";
    prop_oneof![
        (name, body()).prop_map(|(topic, body)| sized(&format!("PUB {topic}\n"), &body)),
        (name, 0_u32..3_600_000, body())
            .prop_map(|(topic, delay, body)| sized(&format!("DPUB {topic} {delay}\n"), &body)),
        (name, proptest::collection::vec(body(), 1..8)).prop_map(|(topic, bodies)| {
            let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
            mpub(&topic, &bodies)
        }),
        (name, name).prop_map(|(topic, channel)| format!("SUB {topic} {channel}\n").into_bytes()),
        "(FIN|TOUCH) [0-9a-f]{16}\r?\n".prop_map(String::into_bytes),
        "REQ [0-9a-f]{16} [0-9]{0,8}\n".prop_map(String::into_bytes),
        "(RDY [0-9]{1,4}|NOP|CLS)\n".prop_map(String::into_bytes),
        body().prop_map(|body| sized("IDENTIFY\n", &body)),
        body().prop_map(|body| sized("AUTH\n", &body)),
    ]
}

/// Feeds `input` in the given pieces, as a connection does, and returns the commands as text.
fn commands_of(input: &[u8], pieces: &[usize]) -> Vec<String> {
    let options = options();
    let (mut start, mut end, mut told) = (0, 0, Vec::new());
    let mut pieces = pieces.iter().copied();
    let mut needed = 0;
    loop {
        if end - start >= needed {
            match parse_command(&input[start..end], &options).unwrap() {
                Parsed::Complete(command, used) => {
                    told.push(format!("{command:?}"));
                    start += used;
                    needed = 1;
                    continue;
                }
                Parsed::Incomplete(incomplete) => {
                    assert!(incomplete.needed_bytes > end - start);
                    needed = incomplete.needed_bytes;
                }
            }
        }
        if end == input.len() {
            assert_eq!(start, end);
            return told;
        }
        end = input
            .len()
            .min(end + pieces.next().unwrap_or(usize::MAX / 2).max(1));
    }
}

proptest! {
    #[test]
    fn any_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(Parsed::Complete(_, used)) = parse_command(&input, &options()) {
            prop_assert!(used <= input.len());
        }
    }

    #[test]
    fn nearly_valid_bytes_never_panic(
        commands in proptest::collection::vec(any_command(), 1..3),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut input = commands.concat();
        let at = at.index(input.len());
        input[at] = byte;
        let options = options();
        let mut rest = &input[..];
        while let Ok(Parsed::Complete(_, used)) = parse_command(rest, &options) {
            prop_assert!(used > 0);
            rest = &rest[used..];
        }
    }

    #[test]
    fn any_split_gives_the_same_commands(
        commands in proptest::collection::vec(any_command(), 0..12),
        pieces in proptest::collection::vec(1_usize..60, 0..100),
    ) {
        let input = commands.concat();
        let whole = commands_of(&input, &[]);
        prop_assert_eq!(whole.len(), commands.len());
        prop_assert_eq!(commands_of(&input, &pieces), whole);
    }
}
