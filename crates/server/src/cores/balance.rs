//! Chooses the core for a new connection.
//!
//! A connection stays on its core, so the choice counts. The number of connections says little:
//! most are idle. More telling are how busy a core's thread was lately (its CPU time), and how many
//! connections it was assigned since that measurement (a benchmark opens all its connections at
//! once, before any of them has cost anything). The number of connections only breaks ties.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often the acceptor measures: long enough for a thread's CPU time to mean something, short
/// enough to see a connection that has just become busy.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// The load of a core, as the core itself reports it.
#[derive(Debug, Default)]
pub(crate) struct CoreLoad {
    connections: AtomicUsize,
    clock: OnceLock<libc::clockid_t>,
}

impl CoreLoad {
    /// Called once, on the core's own thread: from then on its CPU time can be read.
    pub(crate) fn measure_this_thread(&self) {
        let mut clock = 0;
        // SAFETY: the pointer is to `clock`, and a thread can always name itself.
        if unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) } == 0 {
            // It fails if the clock is set already, to the same value.
            let _ = self.clock.set(clock);
        }
    }

    /// CPU time of the core's thread since its start; zero before the start and after the end.
    fn cpu_time(&self) -> Duration {
        let Some(clock) = self.clock.get() else {
            return Duration::ZERO;
        };
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to `time`; the clock of a thread that has ended is an error.
        if unsafe { libc::clock_gettime(*clock, &raw mut time) } != 0 {
            return Duration::ZERO;
        }
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    }

    /// How many connections the core has.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// A connection has ended.
    pub(crate) fn release(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    fn assign(&self) {
        self.connections.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct CoreActivity {
    cpu_time: Duration,
    /// CPU time during the last interval, in eighths of a core.
    eighths: u64,
    assigned: u64,
    /// The thread has ended and takes no more connections.
    ended: bool,
}

/// The acceptor's measurements of all cores.
#[derive(Debug)]
pub(crate) struct Balance {
    cores: Vec<CoreActivity>,
    sampled: Instant,
}

impl Balance {
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            cores: vec![CoreActivity::default(); cores],
            sampled: Instant::now(),
        }
    }

    /// Measures all cores; called every [`SAMPLE_INTERVAL`].
    pub(crate) fn sample(&mut self, loads: &[impl AsRef<CoreLoad>]) {
        let elapsed = self.sampled.elapsed().max(Duration::from_millis(1));
        self.sampled = Instant::now();
        for (busy, load) in self.cores.iter_mut().zip(loads) {
            let cpu_time = load.as_ref().cpu_time();
            let spent = cpu_time.saturating_sub(busy.cpu_time);
            let eighths = (spent.as_micros() * 8 / elapsed.as_micros()) as u64;
            *busy = CoreActivity {
                cpu_time,
                eighths,
                assigned: 0,
                ended: busy.ended,
            };
        }
    }

    /// Never chooses this core again, because its thread has ended.
    pub(crate) fn exclude(&mut self, core: usize) {
        if let Some(busy) = self.cores.get_mut(core) {
            busy.ended = true;
        }
    }

    /// Chooses a core for a new connection and counts the connection there; `None` when all cores
    /// have ended.
    pub(crate) fn choose(&mut self, loads: &[impl AsRef<CoreLoad>]) -> Option<usize> {
        let connections: Vec<usize> = loads
            .iter()
            .map(|load| load.as_ref().connections())
            .collect();
        let core = self.least_busy(&connections)?;
        if let Some(busy) = self.cores.get_mut(core) {
            busy.assigned += 1;
        }
        if let Some(load) = loads.get(core) {
            load.as_ref().assign();
        }
        Some(core)
    }

    fn least_busy(&self, connections: &[usize]) -> Option<usize> {
        let score = |core: &usize| {
            let busy = self.cores[*core];
            (
                busy.eighths + busy.assigned,
                connections.get(*core).copied().unwrap_or(0),
            )
        };
        let alive = (0..self.cores.len()).filter(|core| !self.cores[*core].ended);
        alive.min_by_key(score)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn balance(eighths: &[u64]) -> Balance {
        let mut balance = Balance::new(eighths.len());
        for (busy, eighths) in balance.cores.iter_mut().zip(eighths) {
            busy.eighths = *eighths;
        }
        balance
    }

    #[test]
    fn a_burst_is_spread_evenly() {
        let loads: Vec<Arc<CoreLoad>> = (0..3).map(|_| Arc::default()).collect();
        let mut balance = balance(&[0, 0, 0]);
        let chosen: Vec<usize> = (0..6).filter_map(|_| balance.choose(&loads)).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
        assert!(loads.iter().all(|load| load.connections() == 2));
    }

    #[test]
    fn a_busy_core_is_avoided_although_it_has_fewer_connections() {
        assert_eq!(balance(&[6, 0]).least_busy(&[1, 1000]), Some(1));
    }

    #[test]
    fn among_idle_cores_the_one_with_fewer_connections_is_taken() {
        assert_eq!(balance(&[0, 0]).least_busy(&[10, 9]), Some(1));
    }

    #[test]
    fn a_core_that_has_ended_is_not_chosen() {
        let mut balance = balance(&[0, 6]);
        balance.exclude(0);
        assert_eq!(balance.least_busy(&[0, 9]), Some(1));
        balance.exclude(1);
        assert_eq!(balance.least_busy(&[0, 9]), None);
    }

    #[test]
    fn a_thread_at_work_is_seen() {
        let load = Arc::new(CoreLoad::default());
        let mut balance = Balance::new(1);
        load.measure_this_thread();
        let loads = [Arc::clone(&load)];
        balance.sample(&loads);
        let before = load.cpu_time();
        while load.cpu_time() < before + Duration::from_millis(20) {}
        balance.sample(&loads);
        assert!(balance.cores[0].eighths > 0, "{balance:?}");
    }
}
