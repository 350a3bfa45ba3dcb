//! Requests to the kernel over a routing socket, see rtnetlink(7): those that set up the two ends
//! of a link, so that no `ip` program is needed.
//!
//! ```text
//! message    length u32 · what u16 · flags u16 · number u32 · 0 u32 · head · attributes
//! attribute  length u16 · what u16 · value · zeros, up to a multiple of four
//! ```
//!
//! Numbers are in the machine's byte order, addresses in the network's.

use std::io;
use std::net::Ipv4Addr;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send,
    socket_with,
};

const HEAD_BYTES: usize = 16;
const ANSWER_BYTES: usize = 4096;
const IPV4: u8 = libc::AF_INET as u8;
/// The index of the loopback device, the same in each namespace.
const LOOPBACK: u32 = 1;
/// `IFLA_INET_CONF` of linux/if_link.h.
const SETTINGS: u16 = 1;
/// `IPV4_DEVCONF_RP_FILTER` of linux/ip.h: whether packets are dropped whose source address is
/// implausible.
const RP_FILTER: u16 = 8;
/// `IPV4_DEVCONF_ACCEPT_LOCAL` of linux/ip.h: whether packets may have a local source address.
const ACCEPT_LOCAL: u16 = 23;
/// `IPV4_DEVCONF_ROUTE_LOCALNET` of linux/ip.h: whether packets of 127.0.0.1 may use the device.
const ROUTE_LOCALNET: u16 = 26;
/// `FR_ACT_TO_TBL` of linux/fib_rules.h: the rule names a routing table.
const LOOK_IN_TABLE: u8 = 1;
/// `FRA_PRIORITY`: rules apply in ascending order.
const PRIORITY: u16 = 6;
/// `FRA_IP_PROTO`.
const IP_PROTOCOL: u16 = 22;
/// `FRA_DPORT_RANGE`: the destination ports.
const PORTS: u16 = 24;

/// The index of a device.
pub(super) fn index_of(device: &str) -> io::Result<u32> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok(netdevice::name_to_index(socket, device)?)
}

/// Switches the loopback device on with this address alone. It is off in a new namespace, and by
/// default has all of 127.0.0.0/8.
pub(super) fn loopback_up(address: Ipv4Addr) -> io::Result<()> {
    add_address(LOOPBACK, address)?;
    Message::link(LOOPBACK).ask()
}

/// Switches the loopback device on with its default addresses, all of 127.0.0.0/8.
pub(super) fn loopback_up_as_usual() -> io::Result<()> {
    Message::link(LOOPBACK).ask()
}

/// Switches a device on over which 127.0.0.1 may be reached. `packet_bytes`: the maximum of a
/// packet; `packets_max`: the length of its queue.
pub(super) fn device_up(index: u32, packet_bytes: u32, packets_max: u32) -> io::Result<()> {
    let mut message = Message::link(index);
    message.attribute(libc::IFLA_MTU, &packet_bytes.to_ne_bytes());
    message.attribute(libc::IFLA_TXQLEN, &packets_max.to_ne_bytes());
    message.nested(libc::IFLA_AF_SPEC, |families| {
        families.nested(libc::AF_INET as u16, |ipv4| {
            ipv4.nested(SETTINGS, |settings| {
                settings.attribute(RP_FILTER, &0u32.to_ne_bytes());
                settings.attribute(ACCEPT_LOCAL, &1u32.to_ne_bytes());
                settings.attribute(ROUTE_LOCALNET, &1u32.to_ne_bytes());
            });
        });
    });
    message.ask()
}

/// Gives a device its address.
pub(super) fn add_address(index: u32, address: Ipv4Addr) -> io::Result<()> {
    let [a, b, c, d] = index.to_ne_bytes();
    // A prefix of 32 bits: the device's net has no other address.
    let head = [IPV4, 32, 0, libc::RT_SCOPE_UNIVERSE, a, b, c, d];
    let mut message = Message::new(libc::RTM_NEWADDR, &head);
    message.attribute(libc::IFA_LOCAL, &address.octets());
    message.ask()
}

/// Adds a route to a routing table: packets to the address `to` leave by the device `index`, from
/// the address `source` if there is one.
pub(super) fn add_route(
    to: Ipv4Addr,
    index: u32,
    source: Option<Ipv4Addr>,
    table: u8,
) -> io::Result<()> {
    let by = libc::RTPROT_BOOT;
    let (scope, kind) = (libc::RT_SCOPE_LINK, libc::RTN_UNICAST);
    let head = [IPV4, 32, 0, 0, table, by, scope, kind, 0, 0, 0, 0];
    let mut message = Message::new(libc::RTM_NEWROUTE, &head);
    message.attribute(libc::RTA_DST, &to.octets());
    message.attribute(libc::RTA_OIF, &index.to_ne_bytes());
    if let Some(source) = source {
        message.attribute(libc::RTA_PREFSRC, &source.octets());
    }
    message.ask()
}

/// Adds a rule: TCP packets to this port use this routing table.
pub(super) fn add_rule_of_port(port: u16, table: u8, priority: u32) -> io::Result<()> {
    let mut message = Message::rule(libc::RTM_NEWRULE, table, priority);
    message.attribute(IP_PROTOCOL, &[libc::IPPROTO_TCP as u8]);
    message.attribute(PORTS, &[port.to_ne_bytes(), port.to_ne_bytes()].concat());
    message.ask()
}

/// Moves the rule for local addresses to this priority. By default it applies before all others.
pub(super) fn move_rule_of_own_addresses(priority: u32) -> io::Result<()> {
    Message::rule(libc::RTM_NEWRULE, libc::RT_TABLE_LOCAL, priority).ask()?;
    Message::rule(libc::RTM_DELRULE, libc::RT_TABLE_LOCAL, 0).ask()
}

/// A request.
struct Message(Vec<u8>);

impl Message {
    fn new(what: u16, head: &[u8]) -> Message {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE;
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[4..6].copy_from_slice(&what.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
        bytes.extend(head);
        Message(bytes)
    }

    /// The request that switches a device on.
    fn link(index: u32) -> Message {
        let up = (libc::IFF_UP as u32).to_ne_bytes();
        let index = index.to_ne_bytes();
        // No family and no type; then the flags, and the mask of flags to change.
        Message::new(libc::RTM_NEWLINK, &[[0; 4], index, up, up].concat())
    }

    /// The request for a rule that names a routing table.
    fn rule(what: u16, table: u8, priority: u32) -> Message {
        let head = [IPV4, 0, 0, 0, table, 0, 0, LOOK_IN_TABLE, 0, 0, 0, 0];
        let mut message = Message::new(what, &head);
        message.attribute(PRIORITY, &priority.to_ne_bytes());
        message
    }

    fn attribute(&mut self, what: u16, value: &[u8]) {
        self.nested(what, |inside| inside.0.extend(value));
    }

    fn nested(&mut self, what: u16, fill: impl FnOnce(&mut Message)) {
        let begin = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(what.to_ne_bytes());
        fill(self);
        let length = (self.0.len() - begin) as u16;
        self.0[begin..begin + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Sends the request to this thread's network namespace, and waits for the answer.
    fn ask(mut self) -> io::Result<()> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        send(&socket, &self.0, SendFlags::empty())?;
        let mut answer = [0; ANSWER_BYTES];
        let (_, bytes) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        outcome(&answer[..bytes.min(ANSWER_BYTES)])
    }
}

/// The result in an answer, which is an error message; the number 0 means success.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let what = answer.get(4..6).and_then(|it| it.try_into().ok());
    let error = answer.get(HEAD_BYTES..HEAD_BYTES + 4);
    let error = error.and_then(|it| it.try_into().ok());
    match (what.map(u16::from_ne_bytes), error.map(i32::from_ne_bytes)) {
        (Some(what), Some(0)) if i32::from(what) == libc::NLMSG_ERROR => Ok(()),
        (Some(what), Some(error)) if i32::from(what) == libc::NLMSG_ERROR => {
            Err(io::Error::from_raw_os_error(error.saturating_neg()))
        }
        _ => Err(io::Error::other("the kernel's answer is none")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn attributes_have_their_length_and_stand_on_multiples_of_four() {
        let mut message = Message::new(7, &[9; 4]);
        message.nested(1, |outer| {
            outer.attribute(2, b"abc");
            outer.attribute(3, b"");
        });
        let words = |words: &[u16]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let expected = [
            words(&[16, 1]),
            words(&[7, 2]),
            b"abc\0".to_vec(),
            words(&[4, 3]),
        ];
        assert_eq!(message.0[HEAD_BYTES + 4..], expected.concat());
        assert_eq!(message.0[4..6], 7u16.to_ne_bytes());
    }

    #[test]
    fn an_answer_is_an_error_or_none() {
        let answer = |what: u16, error: i32| {
            let mut bytes = vec![0; HEAD_BYTES];
            bytes[4..6].copy_from_slice(&what.to_ne_bytes());
            bytes.extend(error.to_ne_bytes());
            outcome(&bytes)
        };
        assert!(answer(2, 0).is_ok());
        let refused = answer(2, -libc::EPERM).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(answer(3, 0).is_err());
        assert!(outcome(&[0; 19]).is_err());
    }
}
