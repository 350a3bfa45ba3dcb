//! A network namespace, see network_namespaces(7): threads in it have devices, addresses, routes
//! and ports of their own.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::thread::{self, Builder};

use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

use super::kernel;
use crate::usage::GENERATOR_THREADS;

/// Capabilities that making a namespace and setting up its devices need.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::NET_ADMIN);

/// A namespace. It exists as long as this does, or a thread in it, or a socket of it.
#[derive(Debug)]
pub(super) struct Namespace(OwnedFd);

impl Namespace {
    /// Makes a namespace.
    pub(super) fn new() -> io::Result<Namespace> {
        on_a_thread(|| {
            kernel::enter_new_network()?;
            Ok(Namespace(File::open("/proc/thread-self/ns/net")?.into()))
        })?
    }

    /// Calls `work` on a new thread in the namespace. Threads and processes that it starts are in
    /// it, too. Sockets stay where they were made, whichever thread uses them.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?
    }
}

/// Calls `work` on a thread that ends afterwards. So no thread has to leave a namespace again, for
/// which it may lack the rights.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = Builder::new().name(format!("{GENERATOR_THREADS}network"));
        match thread.spawn_scoped(scope, work)?.join() {
            Ok(done) => Ok(done),
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// Gives this process the right to make network namespaces if it lacks it: the process enters a
/// user namespace of its own, see user_namespaces(7). It can no longer read the files of other
/// processes in `/proc`. To be called before the process has a second thread.
///
/// # Errors
/// The machine forbids it. The process is unchanged then, or it lacks rights over the namespace's
/// devices, which [`super::Network::open`] will report.
pub fn allow_networks() -> io::Result<()> {
    if capabilities(None)?.effective.contains(NEEDED) {
        return Ok(());
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    kernel::enter_new_users()?;
    let same = |id: u32| format!("{id} {id} 1");
    // The kernel requires this of a process without the right to set its groups.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", same(group.as_raw()))?;
    fs::write("/proc/self/uid_map", same(user.as_raw()))
}
