//! The number of files and sockets that the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, as every server of many connections must: the usual
/// soft limit of 1024 is there for programs that use `select`. Returns what is allowed now.
pub(crate) fn raise_open_files_max() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => limit.current,
    };
    // No limit at all is shown as the largest number.
    allowed.unwrap_or(u64::MAX)
}
