//! Rules about single lines, each with what to do instead.

use std::path::Path;

use super::{Finding, Source};

const COLUMNS_MAX: usize = 100;

/// Something that must not stand in a file.
struct Ban {
    text: &'static str,
    instead: &'static str,
    /// File name extensions that it is about; empty: all.
    extensions: &'static [&'static str],
    /// Files, and folders with all that is in them.
    allowed_in: &'static [&'static str],
}

const BANS: &[Ban] = &[
    Ban {
        text: "#[ignore",
        instead: "a test runs, or it is no test: make it pass or delete it",
        extensions: &["rs"],
        allowed_in: &[],
    },
    Ban {
        text: "todo!(",
        instead: "write it, or leave it out",
        extensions: &["rs"],
        allowed_in: &[],
    },
    Ban {
        text: "unimplemented!(",
        instead: "write it, or return an error that says what is not there",
        extensions: &["rs"],
        allowed_in: &[],
    },
    Ban {
        text: "dbg!(",
        instead: "tracing::debug!",
        extensions: &["rs"],
        allowed_in: &[],
    },
    Ban {
        text: "TODO",
        instead: "do it, or open an issue",
        extensions: &["rs", "py", "go", "js", "md", "toml"],
        allowed_in: &[],
    },
    Ban {
        text: "FIXME",
        instead: "mend it, or open an issue",
        extensions: &["rs", "py", "go", "js", "md", "toml"],
        allowed_in: &[],
    },
    Ban {
        text: "/work/",
        instead: "a path from the root of the checkout: no path of one machine",
        extensions: &[],
        allowed_in: &[],
    },
    Ban {
        text: "/tmp/c/",
        instead: "a path from the root of the checkout: no path of one machine",
        extensions: &[],
        allowed_in: &[],
    },
    Ban {
        text: "registry.npmjs.org",
        instead: "the package manager's own configuration names the registry",
        extensions: &[],
        allowed_in: &[],
    },
    Ban {
        text: "files.pythonhosted.org",
        instead: "the package manager's own configuration names the registry",
        extensions: &[],
        allowed_in: &[],
    },
    Ban {
        text: "//pypi.org",
        instead: "the package manager's own configuration names the registry",
        extensions: &[],
        allowed_in: &[],
    },
    Ban {
        text: "proxy.golang.org",
        instead: "the package manager's own configuration names the registry",
        extensions: &[],
        allowed_in: &[],
    },
    Ban {
        text: "index.crates.io",
        instead: "the package manager's own configuration names the registry",
        extensions: &[],
        allowed_in: &["Cargo.lock", "fuzz/Cargo.lock"],
    },
    Ban {
        text: "PartitionLog",
        instead: "cloverleaf_broker::Partition, which may stand on another log",
        extensions: &["rs"],
        allowed_in: &["crates/log", "crates/broker/src/topic/partition.rs"],
    },
    Ban {
        text: "PartitionOptions",
        instead: "a topic of the broker's: it opens its partitions",
        extensions: &["rs"],
        allowed_in: &["crates/log", "crates/broker/src"],
    },
];

/// In tests time passes by a driven clock or until a condition holds, never by sleeping.
const SLEEPS: &[&str] = &["thread::sleep(", "time::sleep("];
/// The helpers that wait for a condition, and so have to sleep between two looks.
const WAIT_HELPERS: &[&str] = &["xtask/src/wait.rs", "crates/server/tests/support/mod.rs"];

/// Files in which `unsafe` may stand: what they ask of the kernel has no safe interface.
const UNSAFE_ALLOWED: &[&str] = &[
    // The pages of a file that the page cache has.
    "crates/log/src/disk/mincore.rs",
    // TCP_INFO of a socket.
    "crates/server/src/tcp_info.rs",
    // The CPU time of another thread.
    "crates/server/src/cores/balance.rs",
    // Whether SIGHUP is ignored.
    "crates/server/src/process/signals.rs",
    // The CPU time of a process and of another thread.
    "crates/bench/src/cpu_clock.rs",
    // librdkafka is a C library.
    "crates/bench/src/kafka/native.rs",
    // Namespaces, TUN devices and TCP_INFO.
    "crates/bench/src/network/kernel.rs",
    // An allocator that counts is an unsafe trait.
    "crates/kafka/tests/memory.rs",
    "crates/nsq/tests/memory.rs",
];

/// The protocols, whose sessions have rights.
const REALM_USERS: &[&str] = &["crates/nsq/src", "crates/kafka/src", "crates/amqp/src"];

pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    let path = source.path.as_path();
    // This folder names what it bans.
    if path.starts_with("xtask/src/tidy") {
        return;
    }
    let rust = source.is(&["rs"]);
    for (index, line) in source.text.lines().enumerate() {
        let number = index + 1;
        for ban in BANS
            .iter()
            .filter(|ban| ban.applies(source) && line.contains(ban.text))
        {
            findings.push(source.find(number, format!("{}: {}", ban.text, ban.instead)));
        }
        if !rust {
            continue;
        }
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let what = format!("{columns} columns where {COLUMNS_MAX} are the limit: break it");
            findings.push(source.find(number, what));
        }
        let code = line.split("//").next().unwrap_or_default();
        if is_unsafe(code) && !is_one_of(path, UNSAFE_ALLOWED) {
            let what = "unsafe: use a safe interface (rustix has most), or add the file with its \
                        reason to UNSAFE_ALLOWED in tidy/lines.rs";
            findings.push(source.find(number, what));
        }
    }
    if rust && is_one_of(path, REALM_USERS) && imports_broker(&source.text) {
        let what = "Broker: a session reaches topics, groups and protocol values through its Realm";
        findings.push(source.find(1, what));
    }
    if !rust || is_one_of(path, WAIT_HELPERS) {
        return;
    }
    for (number, code) in source.test_lines() {
        if SLEEPS.iter().any(|sleep| code.contains(sleep)) {
            let what = "a test that sleeps: wait for a condition, or drive the clock";
            findings.push(source.find(number, what));
        }
    }
}

impl Ban {
    fn applies(&self, source: &Source) -> bool {
        (self.extensions.is_empty() || source.is(self.extensions))
            && !is_one_of(&source.path, self.allowed_in)
    }
}

fn is_one_of(path: &Path, list: &[&str]) -> bool {
    list.iter().any(|entry| path.starts_with(entry))
}

/// Whether `Broker` is among what a file takes from the crate of the broker.
fn imports_broker(text: &str) -> bool {
    text.split("cloverleaf_broker::").skip(1).any(|taken| {
        let taken = taken.split(';').next().unwrap_or_default();
        taken
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|name| name == "Broker")
    })
}

fn is_unsafe(code: &str) -> bool {
    [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe extern",
        "unsafe trait",
    ]
    .iter()
    .any(|form| code.contains(form))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        super::super::found(check, path, text)
    }

    #[test]
    fn what_is_banned_is_found() {
        assert_eq!(found("crates/x/src/a.rs", "    todo!()\n"), 1);
        assert_eq!(found("crates/x/src/a.rs", &"x".repeat(101)), 1);
        assert_eq!(found("README.md", "in /work/there"), 1);
        let raw = "log: &Arc<PartitionLog>";
        assert_eq!(found("crates/kafka/src/fetch/pass.rs", raw), 1);
        assert_eq!(found("crates/broker/src/topic/mod.rs", raw), 1);
        assert_eq!(found("crates/log/src/partition/read.rs", raw), 0);
        let broker = "use cloverleaf_broker::{\n    Broker, Topic};";
        assert_eq!(found("crates/kafka/src/a.rs", broker), 1);
        assert_eq!(found("crates/server/src/a.rs", broker), 0);
        let others = "use cloverleaf_broker::{BrokerOptions};\nenum Owner { Broker }";
        assert_eq!(found("crates/kafka/src/a.rs", others), 0);
        assert_eq!(found("crates/x/src/a.rs", "unsafe { f() }"), 1);
        assert_eq!(found("crates/x/src/a.rs", "// unsafe { f() }"), 0);
    }

    #[test]
    fn only_tests_may_not_sleep() {
        let sleep = "std::thread::sleep(d);\n";
        assert_eq!(found("crates/x/src/a.rs", sleep), 0);
        assert_eq!(found("crates/x/tests/a.rs", sleep), 1);
        assert_eq!(
            found(
                "crates/x/src/a.rs",
                &format!("#[cfg(test)]\nmod tests {{{sleep}")
            ),
            1
        );
        assert_eq!(found("xtask/src/wait.rs", sleep), 0);
    }
}
