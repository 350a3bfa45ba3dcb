//! Processes that listen on an address of this machine: those of the broker, if they do not only
//! pass on what they hear.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Programs that listen for others: their CPU time is not a broker's.
const CARRIERS: [&str; 14] = [
    "conmon",
    "containerd-shim",
    "docker-proxy",
    "gvproxy",
    "inetd",
    "kubectl",
    "passt",
    "pasta",
    "rootlesskit",
    "rootlessport",
    "slirp4netns",
    "socat",
    "ssh",
    "sshd",
];
/// The first process, which may listen for services that it starts when somebody comes.
const INIT: u32 = 1;
/// The kernel keeps so much of a name.
const NAME_BYTES_MAX: usize = 15;
/// A listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// The processes that listen on these addresses, if they are of this machine.
pub(crate) fn of(addresses: &[SocketAddr]) -> Vec<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let tables: Vec<String> = tables.into_iter().flatten().collect();
    let local = addresses.iter().filter(|address| {
        let ip = address.ip().to_canonical();
        ip.is_loopback() || ip.is_unspecified()
    });
    let sockets = local.flat_map(|address| sockets_in(&tables, address));
    let sockets: BTreeSet<String> = sockets.collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let is_it = |process: &u32| {
        let is_other = ![INIT, std::process::id()].contains(process);
        is_other && owns_one(*process, &sockets) && !is_carrier(&name(*process))
    };
    numbers_in("/proc").filter(is_it).collect()
}

/// A process's name; empty: it is not there.
pub(crate) fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Entries of a folder that are numbers.
pub(crate) fn numbers_in(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_carrier(name: &str) -> bool {
    CARRIERS
        .iter()
        .any(|carrier| name == &carrier[..carrier.len().min(NAME_BYTES_MAX)])
}

/// Names, as they stand in `/proc/PID/fd`, of the sockets that hear who connects to this address:
/// those that listen on it, or else those that listen on all of its port.
fn sockets_in(tables: &[String], address: &SocketAddr) -> BTreeSet<String> {
    let (mut exact, mut any) = (BTreeSet::new(), BTreeSet::new());
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(local), Some(&LISTENS), Some(inode)) =
            (fields.get(1), fields.get(3), fields.get(9))
        else {
            continue;
        };
        let Some(there) = parse_address(local).filter(|it| it.port() == address.port()) else {
            continue;
        };
        let socket = format!("socket:[{inode}]");
        let (there, wanted) = (there.ip().to_canonical(), address.ip().to_canonical());
        if there == wanted {
            exact.insert(socket);
        } else if there.is_unspecified() || wanted.is_unspecified() {
            any.insert(socket);
        }
    }
    if exact.is_empty() { any } else { exact }
}

/// An address as it stands in `/proc/net/tcp`: words of 32 bits in this machine's order, and the
/// port, in hexadecimal digits.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok();
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn owns_one(process: u32, sockets: &BTreeSet<String>) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    let mut targets = files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok());
    targets.any(|target| target.to_str().is_some_and(|name| sockets.contains(name)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read;
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_socket_of_another_address_is_another() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = one.local_addr().unwrap();
        let other = TcpListener::bind(("127.0.0.2", address.port())).unwrap();
        let tables = [fs::read_to_string("/proc/net/tcp").unwrap()];
        let sockets = sockets_in(&tables, &address);
        assert_eq!(sockets.len(), 1, "{sockets:?}");
        assert_ne!(sockets, sockets_in(&tables, &other.local_addr().unwrap()));
        assert_eq!(of(&[address]), [0; 0], "it is this process's");
    }

    #[test]
    fn who_listens_everywhere_listens_there_unless_another_does() {
        let line = |local: &str, inode: u32| {
            format!("  0: {local} 00000000:0000 0A 00000000:00000000 00:0 0 0 0 {inode} 1\n")
        };
        let table = |lines: &[String]| vec![format!("head\n{}", lines.concat())];
        let everywhere = line("00000000:1F90", 7);
        let both = table(&[everywhere.clone(), line("0100007F:1F90", 8)]);
        let loopback: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let found = |tables: &[String], address: &SocketAddr| {
            let found = sockets_in(tables, address);
            found.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found(&both, &loopback), "socket:[8]");
        assert_eq!(found(&table(&[everywhere]), &loopback), "socket:[7]");
        let other = "127.0.0.1:8081".parse().unwrap();
        assert_eq!(found(&both, &other), "");
        let six = table(&[line("00000000000000000000000001000000:1F90", 9)]);
        assert_eq!(found(&six, &"[::1]:8080".parse().unwrap()), "socket:[9]");
        assert_eq!(found(&six, &loopback), "");
        let mapped = table(&[line("0000000000000000FFFF00000100007F:1F90", 9)]);
        assert_eq!(found(&mapped, &loopback), "socket:[9]");
    }

    /// A shell that has the socket, called so, and waits for a word.
    fn listening_as(program: &std::path::Path) -> Vec<u32> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut child = Command::new(program)
            .args(["-c", "echo >&2; read word"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(OwnedFd::from(listener))
            .spawn()
            .unwrap();
        // It has its name once it speaks.
        child.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let found = of(&[address]);
        let is_it = found == [child.id()];
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(is_it, !found.is_empty(), "{found:?}");
        found
    }

    #[test]
    fn who_passes_it_on_is_no_broker() {
        assert_eq!(listening_as("/bin/sh".as_ref()).len(), 1);
        let folder = std::env::temp_dir().join(format!("listeners-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let carrier = folder.join("docker-proxy");
        std::os::unix::fs::symlink("/bin/sh", &carrier).unwrap();
        assert_eq!(listening_as(&carrier), [0; 0]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(is_carrier("ssh") && !is_carrier("ssh-broker"));
    }
}
