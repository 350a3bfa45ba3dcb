//! Two Kafka requests with right headers and any bodies: the first byte chooses the kind, the
//! second the version.
#![no_main]

use cloverleaf_fuzz::KafkaWorld;
use cloverleaf_kafka::apis::APIS;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [kind, version, body @ ..] = data else {
        return;
    };
    let api = APIS[usize::from(*kind) % APIS.len()];
    let version = api.min + i16::from(*version) % (api.max - api.min + 1);
    let mut request = Vec::new();
    request.extend_from_slice(&(api.api as i16).to_be_bytes());
    request.extend_from_slice(&version.to_be_bytes());
    request.extend_from_slice(&[0, 0, 0, 1, 0xff, 0xff]);
    if api.is_flexible(version) {
        request.push(0);
    }
    request.extend_from_slice(body);
    let mut frame = (request.len() as i32).to_be_bytes().to_vec();
    frame.extend_from_slice(&request);
    KafkaWorld::default().show(&frame.repeat(2));
});
