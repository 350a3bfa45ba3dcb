//! An auth service's answer.
#![no_main]

use cloverleaf_nsq::authorization::Authorizations;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Authorizations::parse(data);
});
