//! A recording of what a doctor looked at, from anybody: the header, and lines of any kind.
#![no_main]

use std::io::Write;

use cloverleaf_doctor::read_recording;
use flate2::Compression;
use flate2::write::GzEncoder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = read_recording(data);
    // Checksums keep a fuzzer out of a compressed stream: it writes what is inside.
    let mut stream = GzEncoder::new(Vec::new(), Compression::none());
    let header = b"{\"format\":1,\"version\":\"\"}\n";
    let stream = stream
        .write_all(&[header, data].concat())
        .and_then(|()| stream.finish());
    if let Ok(stream) = stream {
        let _ = read_recording(&stream[..]);
    }
});
