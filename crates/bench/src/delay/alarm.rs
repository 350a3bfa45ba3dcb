//! Waiting for a time. Tokio's timers count milliseconds; a distance is to be precise to
//! microseconds, for which the kernel has timers (timerfd_create(2)): one is enough for a thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::thread::registered;
use crate::clock::Clock;
use crate::histogram::Histogram;

/// The time of one thread, and the tasks that wait for it.
#[derive(Debug)]
pub(crate) struct Alarm {
    source: TimeSource,
    /// Tasks by the time for which they wait, and a number.
    sleepers: RefCell<BTreeMap<(u64, u64), oneshot::Sender<()>>>,
    last_number: Cell<u64>,
    /// How much later than they should tasks were woken.
    late: Arc<Mutex<Histogram>>,
}

#[derive(Debug)]
enum TimeSource {
    Kernel {
        clock: Clock,
        timer: AsyncFd<OwnedFd>,
    },
    /// A test tells the time.
    #[cfg(test)]
    Told(Cell<u64>),
}

impl Alarm {
    /// An alarm that tells `late` how precise it is. To be made inside a runtime of Tokio's.
    pub(super) fn new(late: Arc<Mutex<Histogram>>) -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let source = TimeSource::Kernel {
            clock: Clock::new(),
            timer: registered(timer)?,
        };
        Ok(Alarm::of(source, late))
    }

    fn of(source: TimeSource, late: Arc<Mutex<Histogram>>) -> Alarm {
        Alarm {
            source,
            sleepers: RefCell::default(),
            last_number: Cell::default(),
            late,
        }
    }

    /// Nanoseconds since it was made.
    pub(crate) fn now_ns(&self) -> u64 {
        match &self.source {
            TimeSource::Kernel { clock, .. } => clock.now_ns(),
            #[cfg(test)]
            TimeSource::Told(now_ns) => now_ns.get(),
        }
    }

    /// Waits until then.
    pub(crate) async fn until(&self, due_ns: u64) {
        if self.now_ns() >= due_ns {
            return;
        }
        let (wake, woken) = oneshot::channel();
        self.last_number.set(self.last_number.get() + 1);
        let key = (due_ns, self.last_number.get());
        self.sleepers.borrow_mut().insert(key, wake);
        if self.next_ns() == Some(due_ns) {
            self.arm(due_ns);
        }
        // Only its own end drops the other half, and that of this task, too.
        let _ = woken.await;
    }

    /// The first time for which a task waits.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let sleepers = self.sleepers.borrow();
        sleepers.keys().next().map(|(due_ns, _)| *due_ns)
    }

    /// Has the timer end then. Setting it again takes back that it has ended.
    fn arm(&self, due_ns: u64) {
        match &self.source {
            TimeSource::Kernel { clock, timer } => {
                // Zero would switch it off.
                let left_ns = due_ns.saturating_sub(clock.now_ns()).max(1);
                let zero = Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                let left = Timespec {
                    tv_sec: i64::try_from(left_ns / 1_000_000_000).unwrap_or(i64::MAX),
                    tv_nsec: (left_ns % 1_000_000_000) as _,
                };
                let time = Itimerspec {
                    it_interval: zero,
                    it_value: left,
                };
                // A timer of ours takes any time.
                let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &time);
            }
            #[cfg(test)]
            TimeSource::Told(_) => {}
        }
    }

    /// Wakes tasks as long as it is polled.
    pub(super) async fn ring(&self) {
        match &self.source {
            TimeSource::Kernel { timer, .. } => {
                while let Ok(mut ended) = timer.readable().await {
                    ended.clear_ready();
                    self.wake();
                }
            }
            #[cfg(test)]
            TimeSource::Told(_) => {}
        }
    }

    fn wake(&self) {
        let now_ns = self.now_ns();
        let mut sleepers = self.sleepers.borrow_mut();
        while let Some(first) = sleepers.first_entry()
            && first.key().0 <= now_ns
        {
            let ((due_ns, _), wake) = first.remove_entry();
            // Tasks that have ended no longer wait.
            if wake.send(()).is_ok() {
                self.late.lock().record(now_ns - due_ns);
            }
        }
        drop(sleepers);
        if let Some(next_ns) = self.next_ns() {
            self.arm(next_ns);
        }
    }
}

#[cfg(test)]
impl Alarm {
    /// An alarm that knows no other time than it is told.
    pub(crate) fn told() -> Alarm {
        Alarm::of(TimeSource::Told(Cell::default()), Arc::default())
    }

    /// Tells the time.
    pub(crate) fn tell(&self, to_ns: u64) {
        if let TimeSource::Told(now_ns) = &self.source {
            now_ns.set(to_ns);
        }
        self.wake();
    }
}
