//! The one place where tooling and tests sleep: between two looks at a condition.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long to sleep between two looks: short beside anything waited for, and no load.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `condition` holds; after `most` it is an error that names `what`.
pub(crate) fn until(
    what: &str,
    most: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > most {
            bail!("waited {most:?} in vain until {what}");
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// How long to wait for what must come: it is never a verdict on speed, only the end of what hangs.
pub(crate) const HANG: Duration = Duration::from_secs(10 * 60);

/// Lets time pass where time itself is what is tested: a crash at a random moment, a load that
/// must run for a while.
pub(crate) fn pass(time: Duration) {
    std::thread::sleep(time);
}
