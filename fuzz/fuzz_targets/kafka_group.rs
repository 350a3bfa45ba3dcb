//! Consumer groups as the journal keeps them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cloverleaf_kafka::groups::is_stored_group(bytes);
});
