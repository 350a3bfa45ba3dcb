//! Faults of the engine itself: an invariant that does not hold, and a panic that cuts a write of a
//! partition short.
//!
//! Each is a panic, which a test sees as such. It leaves a mark on its thread, by which the
//! program's panic hook knows that what is in memory contradicts itself, and that only a restart
//! from the disk helps ([`engine_has_failed`]). Any other panic concerns the caller alone: a
//! session that reads hostile bytes is none of the engine's.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread means that the engine's memory contradicts itself. For a panic
/// hook: a thread that has caught the panic keeps the mark.
pub fn engine_has_failed() -> bool {
    HAS_FAILED.get()
}

/// Whether a panic of this thread at present is caught where a library reads bytes of a peer: it
/// ends nothing, on whatever thread. For a panic hook.
pub fn panic_is_contained() -> bool {
    IS_CONTAINED.get()
}

/// Runs a library's code on bytes of a peer. A panic in it is an error about these bytes, also
/// within a write: otherwise one batch would end each process that delivers it.
///
/// # Errors
/// The words of its panic.
pub(crate) fn contain<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let has_failed = HAS_FAILED.replace(false);
    IS_CONTAINED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_CONTAINED.set(false);
    HAS_FAILED.set(has_failed);
    outcome.map_err(words)
}

/// The words of a panic.
fn words(panic: Box<dyn Any + Send>) -> String {
    let words = panic.downcast::<String>().map(|text| *text);
    let words = words.or_else(|panic| panic.downcast::<&str>().map(|it| it.to_string()));
    words.unwrap_or_default()
}

/// Panics with the sentence, an engine's fault: for [`crate::invariant!`].
///
/// # Panics
/// Always.
#[cold]
#[inline(never)]
#[track_caller]
pub fn break_invariant(sentence: fmt::Arguments<'_>) -> ! {
    HAS_FAILED.set(true);
    panic!("{sentence}");
}

/// A panic of this thread is the engine's fault from now on, until [`end_write`].
pub(crate) fn begin_write() {
    HAS_FAILED.set(true);
}

/// The write is over, and nothing is half done.
pub(crate) fn end_write() {
    HAS_FAILED.set(false);
}

/// Asserts, in release builds too, what only the engine can break: never what a file or a peer
/// says. The sentence, which a crash report shows, may have arguments as that of [`assert!`]; on
/// the way of a message it has none, because they cost instructions there.
#[macro_export]
macro_rules! invariant {
    ($holds:expr, $($sentence:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            $crate::break_invariant(::std::format_args!($($sentence)+));
        }
    }};
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::thread;

    use uuid::Uuid;

    use super::*;
    use crate::{
        BatchBuilder, Durability, FaultyDisk, Log, LogOptions, PartitionLog, PartitionOptions,
        SimDisk,
    };

    /// Whether the engine has failed once `run` has panicked, on a thread of its own; and the
    /// panic's words.
    fn fault_of(run: impl FnOnce() + Send + 'static) -> (bool, String) {
        let caught = thread::spawn(|| {
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            (engine_has_failed(), words(panic))
        });
        caught.join().unwrap()
    }

    fn append(partition: &Arc<PartitionLog>) {
        let mut builder = BatchBuilder::with_capacity(64, 0);
        builder.push(None, Some(b"a"), &[]);
        let appended = partition.append(builder.finish(), Durability::Kernel);
        appended.unwrap().wait().unwrap();
    }

    #[test]
    fn an_invariant_that_does_not_hold_is_the_engines_fault() {
        invariant!(1 < 2, "one is less than two");
        assert!(!engine_has_failed());
        let number = 7;
        let broken = fault_of(move || invariant!(number < 2, "{number} is less than two"));
        assert_eq!(broken, (true, "7 is less than two".to_owned()));
        let other = fault_of(|| panic!("hostile bytes"));
        assert_eq!(other, (false, "hostile bytes".to_owned()));
        assert!(!engine_has_failed(), "a mark is its thread's own");
    }

    #[test]
    fn a_panic_over_a_peers_bytes_is_an_error_within_a_write_too() {
        begin_write();
        let inside = contain(|| (engine_has_failed(), panic_is_contained()));
        assert_eq!(inside, Ok((false, true)));
        let bytes: &[u8] = &[];
        let broken = contain(|| bytes[0]);
        let words = broken.unwrap_err();
        assert!(words.starts_with("index out of bounds"), "{words}");
        assert!(engine_has_failed(), "the write goes on");
        assert!(!panic_is_contained());
        end_write();
    }

    #[test]
    fn any_panic_within_a_write_is_the_engines_fault() {
        let disk = FaultyDisk::new(SimDisk::new().mount());
        let options = LogOptions {
            manual: true,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(disk.clone(), options).unwrap();
        let partition = log.partition(Uuid::from_u128(1), 0, PartitionOptions::default());
        let partition = partition.unwrap();
        append(&partition);
        assert!(!engine_has_failed(), "the write is over");
        disk.set(|faults| faults.on_write = Some(|_| panic!("on purpose")));
        let broken = fault_of(move || append(&partition));
        assert_eq!(broken, (true, "on purpose".to_owned()));
    }
}
