//! A network of the kernel's to which threads may belong, see network_namespaces(7): with its own
//! devices, addresses, routes and ports.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::thread::{self, Builder};

use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

use super::kernel;
use crate::usage::GENERATOR_THREADS;

/// Capabilities that are needed to make a network and to set it up.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::NET_ADMIN);

/// A network, which is there as long as this is, or a thread in it, or a socket of it.
#[derive(Debug)]
pub(super) struct Namespace(OwnedFd);

impl Namespace {
    /// Makes one.
    pub(super) fn new() -> io::Result<Namespace> {
        on_a_thread(|| {
            kernel::enter_new_network()?;
            Ok(Namespace(File::open("/proc/thread-self/ns/net")?.into()))
        })?
    }

    /// Does something in it, on a thread that is made for it. Threads and processes that it makes
    /// are there, too; sockets stay where they were made, whoever uses them.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?
    }
}

/// Does something on a thread that ends then: so nobody has to find the way back, for which rights
/// may be missing.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = Builder::new().name(format!("{GENERATOR_THREADS}network"));
        match thread.spawn_scoped(scope, work)?.join() {
            Ok(done) => Ok(done),
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// Lets this process make networks if it may not yet, as root may: it becomes its user's own
/// among users of its own, see user_namespaces(7). Other processes' files in `/proc` are closed to
/// it from then on. To be called before there is a second thread.
///
/// # Errors
/// The machine does not let it. It is as it was then, or may less with the network's devices than
/// it needs, as [`super::Network::open`] will say.
pub fn allow_networks() -> io::Result<()> {
    if capabilities(None)?.effective.contains(NEEDED) {
        return Ok(());
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    kernel::enter_new_users()?;
    let same = |id: u32| format!("{id} {id} 1");
    // Without this the kernel takes no group from who may not choose any.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", same(group.as_raw()))?;
    fs::write("/proc/self/uid_map", same(user.as_raw()))
}
