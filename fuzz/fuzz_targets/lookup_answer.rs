//! Answers of an nsqlookupd, however they are cut into reads.
#![no_main]

use cloverleaf_nsq::lookup::protocol::AnswerDecoder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((cut, data)) = data.split_first() else {
        return;
    };
    let mut whole = AnswerDecoder::new(4096);
    let mut pieces = AnswerDecoder::new(4096);
    whole.push(data);
    let mut expected = Vec::new();
    while let Ok(Some(answer)) = whole.next_answer() {
        expected.push(answer);
    }
    let mut found = Vec::new();
    for piece in data.chunks(usize::from(*cut) + 1) {
        pieces.push(piece);
        while let Ok(Some(answer)) = pieces.next_answer() {
            found.push(answer);
        }
    }
    assert_eq!(found, expected);
});
