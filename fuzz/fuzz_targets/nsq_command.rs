//! NSQ commands one after the other, and each beginning of them: a command that is whole in a
//! shorter input is the same one in a longer.
#![no_main]

use cloverleaf_nsq::SessionOptions;
use cloverleaf_nsq::codec::{Parsed, parse_command};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let options = SessionOptions::default();
    let mut rest = data;
    while let Ok(Parsed::Complete(command, length)) = parse_command(rest, &options) {
        assert!(0 < length && length <= rest.len());
        match parse_command(&rest[..length], &options) {
            Ok(Parsed::Complete(same, same_length)) => {
                assert_eq!((&command, length), (&same, same_length));
            }
            other => panic!("whole with more behind it, and alone {other:?}"),
        }
        if let Ok(Parsed::Incomplete(incomplete)) = parse_command(&rest[..length - 1], &options) {
            assert!(length - 1 < incomplete.needed_bytes && incomplete.needed_bytes <= length);
        }
        rest = &rest[length..];
    }
});
