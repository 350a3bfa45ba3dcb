//! A process with all that it has started: RabbitMQ is several.

use anyhow::{Context, Result};

use super::Usage;

/// Resources that a process, its descendants, and those of them that have ended have used together.
pub(crate) fn usage(root: u32) -> Result<Usage> {
    let mut sum = Usage::default();
    for pid in members(root)? {
        // One that has just ended is counted with its parent.
        let (Ok(one), Ok(stat)) = (super::usage(pid), Stat::read(pid)) else {
            continue;
        };
        sum.cpu_s += one.cpu_s + stat.ended_cpu_s;
        sum.rss_bytes += one.rss_bytes;
        sum.rss_peak_bytes += one.rss_peak_bytes;
    }
    Ok(sum)
}

/// Seconds of CPU of those that this process has started, waited for and seen end.
pub(crate) fn ended_cpu_s() -> Result<f64> {
    Ok(Stat::read(std::process::id())?.ended_cpu_s)
}

/// The process and its descendants.
fn members(root: u32) -> Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Ok(stat) = Stat::read(pid) {
            parents.push((pid, stat.parent));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(of) = found.get(next).copied() {
        let children = parents.iter().filter(|(_, parent)| *parent == of);
        found.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(found)
}

struct Stat {
    parent: u32,
    /// User and system time of children that have ended and were waited for.
    ended_cpu_s: f64,
}

impl Stat {
    fn read(pid: u32) -> Result<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?)
            .with_context(|| format!("/proc/{pid}/stat"))
    }

    /// The parent is field 4 of proc(5), the times of ended children are fields 16 and 17. The
    /// second field is the name in parentheses and may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            ended_cpu_s: (ticks(13)? + ticks(14)?) as f64
                / rustix::param::clock_ticks_per_second() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_times_of_ended_children_are_read() -> Result<()> {
        let line = "7 (a) b) S 3 7 7 0 -1 4194304 1 2 3 4 10 20 30 70 20 0 1 0 9 1 1";
        let stat = Stat::parse(line).context("it is read")?;
        assert_eq!(stat.parent, 3);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(stat.ended_cpu_s, 100.0 / ticks);
        assert!(Stat::parse("7 (a) S 3").is_none());
        Ok(())
    }

    #[test]
    fn a_grandchild_belongs_to_the_tree_and_a_stranger_does_not() -> Result<()> {
        let mut shell = Command::new("sh");
        // The echo says that the grandchild is there; the shell waits for its own end of input.
        shell.args(["-c", "sh -c 'echo; read line; true' & read line; wait"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut byte = [0];
        let out = child.stdout.as_mut().context("it is piped")?;
        std::io::Read::read_exact(out, &mut byte)?;
        let found = members(child.id())?;
        let all = members(std::process::id())?;
        child.kill()?;
        child.wait()?;
        assert!(found.len() >= 2 && !found.contains(&std::process::id()));
        assert!(all.contains(&child.id()));
        Ok(())
    }
}
