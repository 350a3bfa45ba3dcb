//! The number of files and sockets that the process may have open.

/// Raises the soft limit to the hard one, as every server of many connections must: the usual
/// soft limit of 1024 is there for programs that use `select`. Returns what is allowed now.
pub(crate) fn raise_open_files_max() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to `limit`, which is a valid `rlimit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 0;
    }
    let raised = libc::rlimit {
        rlim_cur: limit.rlim_max,
        ..limit
    };
    // SAFETY: the pointer is to `raised`, which is a valid `rlimit` and only read.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
        raised.rlim_cur
    } else {
        limit.rlim_cur
    }
}
