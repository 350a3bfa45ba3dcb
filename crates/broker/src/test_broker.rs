//! A broker on a simulated disk, for unit tests.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use cloverleaf_log::{Log, LogOptions, SimDisk};

use crate::{Broker, BrokerOptions, ManualClock};

/// Opens a log without threads and its broker, whose clock stands still.
pub(crate) fn open(disk: &SimDisk) -> (Log, Broker) {
    let log_options = LogOptions {
        manual: true,
        disk_free_bytes_min: 0,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(disk.mount(), log_options).unwrap();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock);
    (log, broker.unwrap())
}
