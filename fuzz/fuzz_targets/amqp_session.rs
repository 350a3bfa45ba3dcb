//! An AMQP connection that has been opened, and then sends anything: whole frames of any kind on
//! any channel, and bytes that are none.
#![no_main]

use cloverleaf_fuzz::amqp::AmqpWorld;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| AmqpWorld::default().show(data));
