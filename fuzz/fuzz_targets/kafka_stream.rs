//! A Kafka connection that sends anything.
#![no_main]

use cloverleaf_fuzz::KafkaWorld;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| KafkaWorld::default().show(data));
