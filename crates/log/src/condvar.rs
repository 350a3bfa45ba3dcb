//! `parking_lot`'s condition variable. With the feature `races`, in which a test schedules the
//! threads, a stand-in replaces it: no thread waits there, because the test does the work of the
//! log's threads.

#[cfg(not(feature = "races"))]
pub(crate) use parking_lot::Condvar;

#[cfg(feature = "races")]
pub(crate) use stand_in::Condvar;

#[cfg(feature = "races")]
mod stand_in {
    use std::time::Instant;

    #[derive(Default)]
    pub(crate) struct Condvar;

    /// The result of [`Condvar::wait_until`]; always a timeout.
    pub(crate) struct Waited;

    impl Waited {
        pub(crate) fn timed_out(&self) -> bool {
            true
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar
        }

        pub(crate) fn notify_one(&self) {}

        pub(crate) fn notify_all(&self) {}

        pub(crate) fn wait<T>(&self, _guard: &mut T) {
            unreachable!("a log that a test drives waits for nothing");
        }

        pub(crate) fn wait_until<T>(&self, _guard: &mut T, _deadline: Instant) -> Waited {
            Waited
        }
    }
}
