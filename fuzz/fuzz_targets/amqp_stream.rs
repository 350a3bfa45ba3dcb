//! Any bytes as a stream of AMQP frames: methods, content headers, tables. Those that are read are
//! written again, and must be read as the same.
#![no_main]

use cloverleaf_amqp::wire::{ContentHeader, FrameType, Method, Writer, peek_frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Ok(frame)) = peek_frame(rest, 1 << 20) {
        match frame.kind {
            FrameType::Method => {
                if let Ok(Some(method)) = Method::read(frame.payload) {
                    let mut again = Vec::new();
                    method.write(&mut Writer::new(&mut again));
                    let id = Method::read(&again).map(|method| method.map(|method| method.id()));
                    assert_eq!(id, Ok(Some(method.id())));
                }
            }
            FrameType::Header => {
                if let Ok((header, properties)) = ContentHeader::read(frame.payload) {
                    let mut raw = Vec::new();
                    properties.write(&mut Writer::new(&mut raw));
                    assert_eq!(raw, header.raw);
                }
            }
            FrameType::Body | FrameType::Heartbeat => {}
        }
        rest = &rest[frame.len_bytes()..];
    }
});
