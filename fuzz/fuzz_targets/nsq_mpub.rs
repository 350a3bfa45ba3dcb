//! The body of an MPUB, over TCP and over HTTP.
#![no_main]

use cloverleaf_nsq::SessionOptions;
use cloverleaf_nsq::codec::{Command, Parsed, parse_command};
use cloverleaf_nsq::http::mpub::{MpubLimits, decode_binary, decode_text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = MpubLimits {
        msg_bytes_max: 1000,
        body_bytes_max: 10_000,
    };
    for messages in [decode_text(data, limits), decode_binary(data, limits)]
        .into_iter()
        .flatten()
    {
        assert!(
            messages
                .iter()
                .all(|message| (1..=1000).contains(&message.len()))
        );
        assert!(messages.iter().map(|message| message.len()).sum::<usize>() <= data.len());
    }
    let mut input = b"MPUB topic\n".to_vec();
    input.extend_from_slice(&(data.len() as u32).to_be_bytes());
    input.extend_from_slice(data);
    let options = SessionOptions::default();
    if let Ok(Parsed::Complete(Command::Mpub { messages, .. }, _)) = parse_command(&input, &options)
    {
        let count = messages.left() as usize;
        let bodies: Vec<&[u8]> = messages.collect();
        assert_eq!(bodies.len(), count);
        assert!(bodies.iter().all(|body| !body.is_empty()));
    }
});
