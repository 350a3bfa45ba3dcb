//! CPU time to the nanosecond, of any process and of this process's threads.
//!
//! `/proc/PID/stat` counts in hundredths of a second, which is more than a short measurement costs.
//! The kernel has a clock for each process and thread; its number is made of theirs:
//!
//! ```text
//! !number << 3 | 4 if it is a thread's | 2, which is the time that the scheduler has counted
//! ```
//!
//! (`CPUCLOCK` in the kernel's posix-timers.h, and the same in glibc's `clock_getcpuclockid` and
//! `pthread_getcpuclockid`, which do not take the number of a thread.)

const SCHEDULED: libc::clockid_t = 2;
const OF_THREAD: libc::clockid_t = 4;

/// CPU seconds of a process on this machine, all its threads since its beginning. `None`: there is
/// no such process.
pub(crate) fn of_process(process: u32) -> Option<f64> {
    seconds(number(process)? << 3 | SCHEDULED)
}

/// CPU seconds of one thread of this process. `None`: there is no such thread.
pub(crate) fn of_thread(thread: u32) -> Option<f64> {
    seconds(number(thread)? << 3 | OF_THREAD | SCHEDULED)
}

/// CPU seconds of the thread that asks.
pub(crate) fn of_this_thread() -> f64 {
    seconds(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0.0)
}

fn number(of: u32) -> Option<libc::clockid_t> {
    // The number has room for three bits more.
    let of = libc::clockid_t::try_from(of).ok();
    of.filter(|of| *of < 1 << 28).map(|of| !of)
}

fn seconds(clock: libc::clockid_t) -> Option<f64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec to where it is told, and checks the clock's number.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn clocks_of_processes_and_threads_go_with_work() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let (process, before) = (std::process::id(), of_this_thread());
        let (whole, own) = (of_process(process).unwrap(), of_thread(thread).unwrap());
        while of_this_thread() < before + 0.004 {}
        // Less than a tick, and seen.
        assert!(of_thread(thread).unwrap() >= own + 0.003);
        assert!(of_process(process).unwrap() >= whole + 0.003);
        assert!(of_thread(thread).unwrap() < of_process(process).unwrap() + 0.1);
        assert_eq!(of_process(u32::MAX), None);
        assert_eq!(
            of_process(i32::MAX as u32),
            None,
            "there is no such process"
        );
    }
}
