//! The conditions under which something was measured.

use std::fs;

use serde::{Deserialize, Serialize};

/// The machine of a measurement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// The processor's name.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's name and version.
    pub kernel: String,
    /// The version of this program.
    pub version: String,
    /// Whether this program was compiled with optimisation: without it no figure means anything.
    pub is_release: bool,
}

impl Conditions {
    /// Those of here and now. Fields that the system does not tell are left empty.
    pub fn here() -> Conditions {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let kilobytes = value_of(&memory, "MemTotal").and_then(|text| {
            let number = text.split_whitespace().next()?;
            number.parse::<u64>().ok()
        });
        Conditions {
            processor: value_of(&cpu, "model name").unwrap_or_default().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes.unwrap_or(0) * 1024,
            kernel: format!("Linux {}", kernel.trim()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_release: !cfg!(debug_assertions),
        }
    }
}

/// The value of the first line "name : value".
fn value_of<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_known() {
        let here = Conditions::here();
        assert!(here.cores > 0 && here.memory_bytes > 1 << 20, "{here:?}");
        assert!(here.kernel.len() > "Linux ".len(), "{here:?}");
        assert_eq!(value_of("a : 1\nb\t: x: y\n", "b"), Some("x: y"));
    }
}
