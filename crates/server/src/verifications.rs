//! Passwords that take long to verify, on purpose: beside the threads that serve connections, some
//! at once and the others in order.

use std::sync::Arc;
use std::thread::available_parallelism;

use cloverleaf_access::{Accepted, Refused, Verification};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Places for those at once. A verification keeps a core busy: a flood of wrong passwords leaves
/// half of the cores to those who are logged in.
pub(crate) fn places() -> Arc<Semaphore> {
    let cores = available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new((cores / 2).max(1)))
}

/// Verifies one in its turn. It keeps its place to the end, also if its client leaves meanwhile.
pub(crate) async fn verify(
    places: Arc<Semaphore>,
    verification: Box<Verification>,
) -> Result<Accepted, Refused> {
    // They are never closed.
    let place = places.acquire_owned().await.ok();
    let work = spawn_blocking(move || (verification.run(), place).0);
    work.await.unwrap_or(Err(Refused::Unverified))
}
