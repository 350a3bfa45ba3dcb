//! Faults of the engine itself: a broken invariant, and a panic within a write to a partition.
//!
//! Both are panics, so that a test sees them as panics. In addition they set a mark for their
//! thread ([`engine_has_failed`]). By this mark the program's panic hook knows that the state in
//! memory is inconsistent and that the process must end and recover from the disk. Any other panic
//! concerns only its caller, for example a session that reads hostile bytes.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread means that the engine's state in memory is inconsistent. For a
/// panic hook. The mark stays if the thread catches the panic.
pub fn engine_has_failed() -> bool {
    HAS_FAILED.get()
}

/// Whether a panic of this thread will be caught by `catch_panic`, so that it ends neither the
/// thread nor the process. For a panic hook.
pub fn panic_is_contained() -> bool {
    IS_CONTAINED.get()
}

/// Runs a library's code on bytes of a peer. A panic becomes an error about these bytes, even
/// within a write. Otherwise a single batch could end every process that delivers it.
///
/// # Errors
/// The message of the panic.
pub(crate) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let has_failed = HAS_FAILED.replace(false);
    IS_CONTAINED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_CONTAINED.set(false);
    HAS_FAILED.set(has_failed);
    outcome.map_err(panic_message)
}

/// The message of a panic.
fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let words = panic.downcast::<String>().map(|text| *text);
    let words = words.or_else(|panic| panic.downcast::<&str>().map(|it| it.to_string()));
    words.unwrap_or_default()
}

/// Panics with this message, as a fault of the engine: for [`crate::invariant!`].
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

/// From now on until [`end_write`], a panic of this thread is a fault of the engine.
pub(crate) fn begin_write() {
    HAS_FAILED.set(true);
}

/// Ends the section that [`begin_write`] has begun.
pub(crate) fn end_write() {
    HAS_FAILED.set(false);
}

/// Asserts, in release builds too, a condition that only the engine can break, never one about the
/// content of a file or a peer's bytes. The message, which a crash report shows, may have arguments
/// as that of [`assert!`]; on the hot path it must have none, because they cost instructions.
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

    /// Runs `run`, which panics, on a thread of its own. Returns whether the panic is the engine's
    /// fault, and its message.
    fn fault_of(run: impl FnOnce() + Send + 'static) -> (bool, String) {
        let caught = thread::spawn(|| {
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            (engine_has_failed(), panic_message(panic))
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
    fn a_panic_on_a_peers_bytes_is_an_error_even_within_a_write() {
        begin_write();
        let inside = catch_panic(|| (engine_has_failed(), panic_is_contained()));
        assert_eq!(inside, Ok((false, true)));
        let bytes: &[u8] = &[];
        let broken = catch_panic(|| bytes[0]);
        let words = broken.unwrap_err();
        assert!(words.starts_with("index out of bounds"), "{words}");
        assert!(engine_has_failed(), "the write is not over");
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
