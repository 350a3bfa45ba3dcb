//! Verifies passwords whose verification takes long on purpose (Argon2), on threads apart from the
//! cores: a few at once, the others in order.

use std::sync::Arc;
use std::thread::available_parallelism;

use cloverleaf_access::{LoginError, LoginSuccess, Verification};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The permits to verify at once. A verification keeps a core busy: with these, a flood of wrong
/// passwords leaves half of the cores to the clients that are logged in.
pub(crate) fn permits() -> Arc<Semaphore> {
    let cores = available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new((cores / 2).max(1)))
}

/// Verifies a password in its turn. It keeps its permit to the end, even if its client disconnects.
pub(crate) async fn verify(
    permits: Arc<Semaphore>,
    verification: Box<Verification>,
) -> Result<LoginSuccess, LoginError> {
    // It cannot fail: the semaphore is never closed.
    let permit = permits.acquire_owned().await.ok();
    let work = spawn_blocking(move || (verification.run(), permit).0);
    work.await.unwrap_or(Err(LoginError::Unverified))
}
