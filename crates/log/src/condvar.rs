//! `parking_lot`'s condition variable. The wrapper that lets a test schedule threads (the feature
//! `races`) has none: there nobody waits, because the test does what the log's threads would.

#[cfg(not(feature = "races"))]
pub(crate) use parking_lot::Condvar;

#[cfg(feature = "races")]
pub(crate) use stand_in::Condvar;

#[cfg(feature = "races")]
mod stand_in {
    use std::time::Instant;

    #[derive(Default)]
    pub(crate) struct Condvar;

    /// The wait is over.
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
