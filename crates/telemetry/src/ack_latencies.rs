//! Latencies of the acknowledgements of one socket read.

use crate::Recorder;

/// Latencies of messages that are acknowledged one after the other. Messages that were delivered
/// together and are acknowledged together have the same latency, so equal neighbours are recorded
/// as one. That costs a comparison per message instead of finding its bucket in the histogram.
///
/// The last ones are recorded when it is dropped.
#[derive(Debug)]
pub struct AckLatencies<'r> {
    recorder: &'r Recorder,
    latency_us: u64,
    count: u64,
}

impl<'r> AckLatencies<'r> {
    /// For the messages of a connection.
    pub fn new(recorder: &'r Recorder) -> AckLatencies<'r> {
        AckLatencies {
            recorder,
            latency_us: 0,
            count: 0,
        }
    }

    /// One message was acknowledged this long after its delivery.
    #[inline]
    pub fn acked(&mut self, latency_us: u64) {
        if cfg!(feature = "probe") {
            if latency_us != self.latency_us {
                self.record();
                self.latency_us = latency_us;
            }
            self.count += 1;
        }
    }

    fn record(&mut self) {
        let count = std::mem::take(&mut self.count);
        if count > 0 {
            self.recorder.acked_many(count, self.latency_us);
        }
    }
}

impl Drop for AckLatencies<'_> {
    fn drop(&mut self) {
        self.record();
    }
}

#[cfg(all(test, feature = "probe"))]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{Protocol, Registry};

    #[test]
    fn each_message_is_counted_with_its_own_latency() {
        let registry = Registry::new();
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let probe = registry.open(Protocol::Nsq, address, 1);
        let mut latencies = AckLatencies::new(&probe);
        for latency_us in [0, 5, 5, 5, 90, 5, 0] {
            latencies.acked(latency_us);
        }
        drop(latencies);
        let seen = probe.snapshot(|_| None).histograms.ack_latency_us;
        assert_eq!((seen.count(), seen.sum(), seen.max()), (7, 110, 90));
        assert_eq!((seen.count_at_most(0), seen.count_at_most(7)), (2, 6));
    }
}
