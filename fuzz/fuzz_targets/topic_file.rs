//! The file in a topic's folder that describes the topic.
#![no_main]

use cloverleaf_log::{decode_topic_file, encode_topic_file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(description) = decode_topic_file(data) {
        assert!(data.starts_with(&encode_topic_file(description)));
    }
});
