//! The number of files and sockets that the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, as servers with many connections do: the usual soft limit
/// of 1024 is meant for programs that use `select`. Returns the limit that is in force now.
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
    // No limit counts as the largest number.
    allowed.unwrap_or(u64::MAX)
}

/// Minimum files that the broker needs besides connections: logs, journal, listeners.
const RESERVE_MIN: u64 = 256;

/// Number of HTTP addresses, each of which has the limit for itself.
const HTTP_ADDRESSES: u64 = 4;

/// Maximum connections, as configured or as the system allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    pub(crate) connections_max: u32,
    pub(crate) http_connections_max: u32,
}

impl ConnectionLimits {
    /// These limits, lowered so that files are left for the log even when all connections are open:
    /// a broker that cannot open its next segment cannot store anything.
    pub(crate) fn fitted(self, files: u64) -> Self {
        // All HTTP addresses together may have a quarter.
        let http_fits = (files / 4 / HTTP_ADDRESSES).max(1);
        let http = u64::from(self.http_connections_max).min(http_fits);
        let reserve = (files / 4).max(RESERVE_MIN + HTTP_ADDRESSES * http);
        // Below some 700 files there are too few for all uses, and connections get a quarter.
        let reserve = reserve.min(files - files / 4);
        let fits = files.saturating_sub(reserve).max(1);
        Self {
            connections_max: lowered(self.connections_max, fits),
            http_connections_max: lowered(self.http_connections_max, http),
        }
    }
}

fn lowered(wanted: u32, fits: u64) -> u32 {
    u32::try_from(fits).map_or(wanted, |fits| wanted.min(fits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_log() {
        let wanted = ConnectionLimits {
            connections_max: 20_000,
            http_connections_max: 1024,
        };
        let fitted = |files| {
            let limits = wanted.fitted(files);
            (limits.connections_max, limits.http_connections_max)
        };
        assert_eq!(fitted(u64::MAX), (20_000, 1024));
        assert_eq!(fitted(65_536), (20_000, 1024));
        assert_eq!(fitted(20_000), (15_000, 1024));
        assert_eq!(fitted(4096), (2816, 256));
        assert_eq!(fitted(1024), (512, 64));
        assert_eq!(fitted(300), (75, 18));
        assert_eq!(fitted(0), (1, 1), "useless, but no panic");
    }
}
