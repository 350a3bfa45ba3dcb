//! An NSQ connection that sends any commands in any order, and bytes that are none, while time
//! passes.
#![no_main]

use cloverleaf_fuzz::nsq::NsqWorld;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| NsqWorld::default().show(data));
