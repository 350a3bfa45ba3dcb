//! The memory budget for half received commands: how much memory each connection holds, which ones
//! wait for some, and which have to end. No lock and no clock: both belong to the caller.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::task::Waker;

use cloverleaf_telemetry::Protocol;

use crate::config::Config;
use crate::config::value::ms;

/// Each protocol that the broker speaks has one part in this many of the budget to itself.
const OWN_PART: u64 = 8;

/// A peer that sends fewer bytes than this counts as silent: a byte now and then keeps no memory.
const MOVED_BYTES_MIN: u64 = 4 * 1024;

/// A peer that is silent for less time keeps its memory: a lost packet is sent again within this
/// time.
const SILENT_US_MIN: u64 = 1_000_000;

/// While memory is short, a peer has one second more for each this many bytes of its command.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// The size of the budget, and how long a peer may hold a part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BudgetBounds {
    /// Maximum bytes of all connections together.
    pub(crate) bytes_max: u64,
    /// Maximum bytes of the connections from one address, which may be many clients behind a NAT;
    /// `None`: no such limit.
    pub(crate) address_bytes_max: Option<u64>,
    /// How long a peer may be silent, in microseconds.
    pub(crate) timeout_us: u64,
}

impl BudgetBounds {
    pub(crate) fn of(config: &Config) -> BudgetBounds {
        let general = &config.general;
        let address = general.half_received_address_bytes_max.0;
        BudgetBounds {
            bytes_max: general.half_received_bytes_max.0,
            address_bytes_max: (address > 0).then_some(address),
            timeout_us: ms(general.half_received_timeout).saturating_mul(1000),
        }
    }
}

/// The protocol and size class of commands whose memory is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) protocol: Protocol,
    /// Whether the commands are of usual size. Only those have memory that no other protocol can
    /// take.
    pub(crate) is_usual: bool,
}

impl Share {
    fn index(self) -> usize {
        2 * self.protocol.index() + usize::from(self.is_usual)
    }
}

/// How many shares there are.
const SHARES: usize = 2 * Protocol::ALL.len();

/// The part of the budget that the connections of one share hold, and those that wait for it.
#[derive(Default)]
struct ShareUse {
    /// Bytes reserved for this share alone.
    own_bytes: u64,
    bytes: u64,
    /// The tickets that wait, by turn, so in order of arrival.
    waiting: BTreeMap<u64, u64>,
    /// The ticket that may go beyond the budget.
    ahead: Option<u64>,
}

impl ShareUse {
    /// Bytes taken from the common part of the budget.
    fn common_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.own_bytes)
    }
}

/// A connection that holds memory or waits for some.
struct ChargedConnection {
    share: Share,
    address: IpAddr,
    bytes: u64,
    needed_bytes: u64,
    /// When the connection began to hold a part of its command, moved forward by all pauses.
    began_us: u64,
    /// When the peer last sent enough, moved forward by all pauses; and the bytes that had come by
    /// then.
    moved_us: u64,
    moved_bytes: u64,
    /// Since when the connection is paused: not read from.
    paused_us: Option<u64>,
    /// While it waits: its turn, and the bytes that it wants to hold in all.
    waits: Option<(u64, u64)>,
    /// The connection is being closed, so that others get its memory.
    is_given_up: bool,
    waker: Option<Waker>,
}

impl ChargedConnection {
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

pub(crate) struct HalfReceivedBudget {
    bounds: BudgetBounds,
    shares: [ShareUse; SHARES],
    /// Connections by ticket.
    connections: BTreeMap<u64, ChargedConnection>,
    last_ticket: u64,
    last_turn: u64,
    /// Bytes held by address; empty when addresses have no limit.
    addresses: HashMap<IpAddr, u64>,
    /// The ticket that may go beyond the limit of its address, by address and index of its share.
    /// This is apart from [`ShareUse::ahead`], so that it delays no other address.
    ahead_of_address: HashMap<(IpAddr, usize), u64>,
}

impl HalfReceivedBudget {
    /// Each of `protocols` gets a part of its own; connections of any other protocol use the common
    /// part.
    pub(crate) fn new(bounds: BudgetBounds, protocols: &[Protocol]) -> HalfReceivedBudget {
        let mut shares: [ShareUse; SHARES] = Default::default();
        for &protocol in protocols {
            let share = Share {
                protocol,
                is_usual: true,
            };
            shares[share.index()].own_bytes = bounds.bytes_max / OWN_PART;
        }
        HalfReceivedBudget {
            bounds,
            shares,
            connections: BTreeMap::new(),
            last_ticket: 0,
            last_turn: 0,
            addresses: HashMap::new(),
            ahead_of_address: HashMap::new(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shares.iter().map(|usage| usage.bytes).sum()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.shares.iter().map(|usage| usage.waiting.len()).sum()
    }

    /// Whether a connection waits, or the next one would.
    pub(crate) fn is_tight(&self) -> bool {
        self.common_bytes() >= self.common_bytes_max()
            || self.shares.iter().any(|usage| !usage.waiting.is_empty())
    }

    /// Whether a connection waits that could use this one's memory, or the next one would wait.
    fn is_tight_for(&self, connection: &ChargedConnection) -> bool {
        let may_help =
            |it: Waiter<'_>| it.connection.address == connection.address || !it.for_address;
        self.common_bytes() >= self.common_bytes_max()
            || (self.shares.iter()).any(|usage| self.waiters(usage).any(may_help))
    }

    fn common_bytes(&self) -> u64 {
        self.shares.iter().map(ShareUse::common_bytes).sum()
    }

    fn common_bytes_max(&self) -> u64 {
        let own: u64 = self.shares.iter().map(|usage| usage.own_bytes).sum();
        self.bounds.bytes_max - own
    }

    fn usage(&mut self, share: Share) -> &mut ShareUse {
        &mut self.shares[share.index()]
    }

    /// Adds a connection that holds nothing yet; returns its ticket.
    pub(crate) fn open(&mut self, share: Share, address: IpAddr, now_us: u64) -> u64 {
        self.last_ticket += 1;
        let connection = ChargedConnection {
            share,
            address,
            bytes: 0,
            needed_bytes: 0,
            began_us: now_us,
            moved_us: now_us,
            moved_bytes: 0,
            paused_us: None,
            waits: None,
            is_given_up: false,
            waker: None,
        };
        self.connections.insert(self.last_ticket, connection);
        self.last_ticket
    }

    /// Removes a connection and frees its memory.
    pub(crate) fn close(&mut self, ticket: u64) {
        self.resize(ticket, 0);
        self.leave_share(ticket);
        if self.connections.remove(&ticket).is_some() {
            self.wake_next();
        }
    }

    /// Removes the connection from its share's queue, and from the tickets that may go beyond.
    fn leave_share(&mut self, ticket: u64) {
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        let (share, address, waits) = (
            connection.share,
            connection.address,
            connection.waits.take(),
        );
        let usage = self.usage(share);
        if let Some((turn, _)) = waits {
            usage.waiting.remove(&turn);
        }
        usage.ahead.take_if(|ahead| *ahead == ticket);
        if self.ahead_of_address(share, address) == Some(ticket) {
            self.ahead_of_address.remove(&(address, share.index()));
        }
    }

    fn ahead_of_address(&self, share: Share, address: IpAddr) -> Option<u64> {
        let ahead = self.ahead_of_address.get(&(address, share.index()));
        ahead.copied()
    }

    /// Sets the command that the connection holds a part of, and the waker to wake.
    pub(crate) fn describe(&mut self, ticket: u64, share: Share, needed_bytes: u64, waker: &Waker) {
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        connection.needed_bytes = needed_bytes;
        match &mut connection.waker {
            Some(old) => old.clone_from(waker),
            none @ None => *none = Some(waker.clone()),
        }
        if connection.share != share {
            // The command turned out to be larger than it seemed.
            let (old, bytes) = (connection.share, connection.bytes);
            self.leave_share(ticket);
            self.usage(old).bytes -= bytes;
            self.usage(share).bytes += bytes;
            if let Some(connection) = self.connections.get_mut(&ticket) {
                connection.share = share;
            }
            self.wake_next();
        }
    }

    /// Sets the bytes that the connection holds, whether or not they are within the budget.
    pub(crate) fn resize(&mut self, ticket: u64, bytes: u64) {
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        let held = std::mem::replace(&mut connection.bytes, bytes);
        let (share, address) = (connection.share, connection.address);
        let usage = self.usage(share);
        usage.bytes = usage.bytes - held + bytes;
        if self.bounds.address_bytes_max.is_some() {
            let sum = self.addresses.entry(address).or_default();
            *sum = *sum - held + bytes;
            if *sum == 0 {
                self.addresses.remove(&address);
            }
        }
        // If addresses have a limit, a connection that grows can free the way too: a waiting one
        // may now wait for its address, and no longer delays the connections after it.
        if bytes < held || bytes > held && self.bounds.address_bytes_max.is_some() {
            self.wake_next();
        }
    }

    /// Lets the connection hold `bytes` bytes, if it overtakes no other, and enough is free or it
    /// may go beyond the bounds.
    pub(crate) fn try_hold(&mut self, ticket: u64, bytes: u64, may_go_ahead: bool) -> bool {
        let Some(connection) = self.connections.get(&ticket) else {
            return false;
        };
        let (share, address) = (connection.share, connection.address);
        let shortage = self.shortage(connection, bytes);
        let is_next = self.is_next(ticket, connection);
        let (of_address, of_budget) = (self.ahead_of_address(share, address), self.ahead(share));
        let is_ahead = |of: Option<u64>| of == Some(ticket);
        let may_go = |of: Option<u64>| is_ahead(of) || may_go_ahead && is_next && of.is_none();
        // The connection that goes beyond the budget always makes progress, or the others could
        // wait for it in vain.
        let fits_address = shortage.of_address == 0 || is_ahead(of_budget) || may_go(of_address);
        let fits = fits_address && (shortage.of_budget == 0 || may_go(of_budget));
        if !fits || !(is_next || is_ahead(of_address) || is_ahead(of_budget)) {
            return false;
        }
        if shortage.of_budget > 0 {
            self.usage(share).ahead = Some(ticket);
        } else if shortage.of_address > 0 && !is_ahead(of_budget) {
            self.ahead_of_address
                .insert((address, share.index()), ticket);
        }
        self.resize(ticket, bytes);
        self.leave_queue(ticket);
        true
    }

    fn ahead(&self, share: Share) -> Option<u64> {
        self.shares[share.index()].ahead
    }

    /// Queues the connection until it may hold `bytes` bytes. The wait does not count as silence of
    /// its peer.
    pub(crate) fn enqueue(&mut self, ticket: u64, bytes: u64, now_us: u64) {
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        let share = connection.share;
        match &mut connection.waits {
            // It may now wait for its address, and no longer delay the connections after it.
            Some((_, wanted)) if *wanted != bytes => {
                *wanted = bytes;
                self.wake_next();
            }
            Some(_) => {}
            none @ None => {
                self.last_turn += 1;
                *none = Some((self.last_turn, bytes));
                let turn = self.last_turn;
                self.usage(share).waiting.insert(turn, ticket);
            }
        }
        self.pause(ticket, now_us);
    }

    pub(crate) fn is_waiting(&self, ticket: u64) -> bool {
        let connection = self.connections.get(&ticket);
        connection.is_some_and(|connection| connection.waits.is_some())
    }

    /// Whether it overtakes no other connection. A connection that waits for its address delays no
    /// other address, nor the ticket of its address that may go beyond.
    fn is_next(&self, ticket: u64, connection: &ChargedConnection) -> bool {
        let is_ahead = self.ahead_of_address(connection.share, connection.address) == Some(ticket);
        self.waiters(&self.shares[connection.share.index()])
            .take_while(|other| other.ticket != ticket)
            .all(|it| (is_ahead || it.connection.address != connection.address) && it.for_address)
    }

    /// The waiting connections of a share, in order.
    fn waiters<'a>(&'a self, usage: &'a ShareUse) -> impl Iterator<Item = Waiter<'a>> {
        let mut held_up = HashSet::new();
        usage.waiting.values().filter_map(move |&ticket| {
            let connection = self.connections.get(&ticket)?;
            let is_ahead =
                self.ahead_of_address(connection.share, connection.address) == Some(ticket);
            let for_address = self.waits_for_address(ticket, connection)
                || !is_ahead && held_up.contains(&connection.address);
            if for_address {
                held_up.insert(connection.address);
            }
            Some(Waiter {
                ticket,
                connection,
                for_address,
            })
        })
    }

    /// Whether the connection waits because its address is at its limit.
    fn waits_for_address(&self, ticket: u64, connection: &ChargedConnection) -> bool {
        let Some((_, bytes)) = connection.waits else {
            return false;
        };
        let ahead = self.ahead_of_address(connection.share, connection.address);
        self.bounds.address_bytes_max.is_some()
            && ahead.is_some_and(|ahead| ahead != ticket)
            && self.ahead(connection.share) != Some(ticket)
            && self.shortage(connection, bytes).of_address > 0
    }

    /// How many bytes are missing for a connection to hold `bytes` bytes.
    fn shortage(&self, connection: &ChargedConnection, bytes: u64) -> Shortage {
        let more = bytes.saturating_sub(connection.bytes);
        let sum = self
            .addresses
            .get(&connection.address)
            .copied()
            .unwrap_or(0);
        let address_max = self.bounds.address_bytes_max;
        let usage = &self.shares[connection.share.index()];
        let beyond = (usage.bytes + more).saturating_sub(usage.own_bytes) - usage.common_bytes();
        Shortage {
            of_address: address_max.map_or(0, |max| (sum + more).saturating_sub(max)),
            of_budget: match beyond {
                0 => 0,
                _ => (self.common_bytes() + beyond).saturating_sub(self.common_bytes_max()),
            },
        }
    }

    /// Closes the connections that have been silent longest, until there will be memory for the
    /// waiting connection `ticket`, if that is next. Returns when to check again if it has not been
    /// woken.
    pub(crate) fn close_silent(&mut self, ticket: u64, bytes: u64, now_us: u64) -> Option<u64> {
        let connection = self.connections.get(&ticket)?;
        if !self.is_next(ticket, connection) {
            return None;
        }
        let shortage = self.shortage(connection, bytes);
        let is_of_address = self.waits_for_address(ticket, connection);
        let (share, address) = (connection.share, connection.address);
        let helps = |other: &ChargedConnection| {
            if is_of_address {
                other.address == address
            } else {
                other.share == share || self.shares[other.share.index()].common_bytes() > 0
            }
        };
        let mut missing = if is_of_address {
            shortage.of_address
        } else {
            shortage.of_budget
        };
        let mut silent = Vec::new();
        for (other, connection) in &self.connections {
            if connection.is_given_up && helps(connection) {
                missing = missing.saturating_sub(connection.bytes);
            } else if connection.paused_us.is_none() && connection.bytes > 0 && helps(connection) {
                silent.push((connection.moved_us, *other));
            }
        }
        silent.sort_unstable();
        let silent_us = SILENT_US_MIN.min(self.bounds.timeout_us);
        let mut again_us = now_us + silent_us;
        for (moved_us, other) in silent {
            if missing == 0 {
                break;
            }
            if now_us < moved_us + silent_us {
                again_us = moved_us + silent_us;
                break;
            }
            if let Some(connection) = self.connections.get_mut(&other) {
                connection.is_given_up = true;
                connection.wake();
                missing = missing.saturating_sub(connection.bytes);
            }
        }
        Some(again_us)
    }

    pub(crate) fn leave_queue(&mut self, ticket: u64) {
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        if let Some((turn, _)) = connection.waits.take() {
            let share = connection.share;
            self.usage(share).waiting.remove(&turn);
            self.wake_next();
        }
    }

    /// Wakes the connections that may get memory now.
    fn wake_next(&self) {
        for usage in &self.shares {
            let connections = || self.waiters(usage);
            let next = connections().find(|it| !it.for_address);
            if let Some(next) = next.or_else(|| connections().next()) {
                next.connection.wake();
            }
        }
    }

    /// The connection is not read from, which must not count as silence of its peer.
    pub(crate) fn pause(&mut self, ticket: u64, now_us: u64) {
        if let Some(connection) = self.connections.get_mut(&ticket) {
            connection.paused_us.get_or_insert(now_us);
        }
    }

    /// The connection is read from again.
    pub(crate) fn resume(&mut self, ticket: u64, now_us: u64) {
        if let Some(connection) = self.connections.get_mut(&ticket)
            && let Some(since_us) = connection.paused_us.take()
        {
            let paused_us = now_us.saturating_sub(since_us);
            connection.began_us += paused_us;
            connection.moved_us += paused_us;
        }
    }

    /// `bytes` bytes of its command have come in total.
    pub(crate) fn received(&mut self, ticket: u64, bytes: u64, now_us: u64) {
        if let Some(connection) = self.connections.get_mut(&ticket)
            && bytes >= connection.moved_bytes + MOVED_BYTES_MIN
        {
            (connection.moved_us, connection.moved_bytes) = (now_us, bytes);
            // The bytes had come in time, but the connection's core was busy.
            connection.is_given_up = false;
        }
    }

    /// When the connection has to end; `None` while it does not wait for its peer.
    pub(crate) fn end_us(&self, ticket: u64) -> Option<u64> {
        let connection = self.connections.get(&ticket)?;
        if connection.is_given_up {
            return Some(0);
        }
        if connection.paused_us.is_some() {
            return None;
        }
        let timeout_us = self.bounds.timeout_us;
        let silent_us = connection.moved_us.saturating_add(timeout_us);
        if !self.is_tight_for(connection) {
            return Some(silent_us);
        }
        let allowed_us = connection.needed_bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND_MIN;
        let whole_us = connection.began_us.saturating_add(timeout_us);
        Some(silent_us.min(whole_us.saturating_add(allowed_us)))
    }
}

/// A waiting connection.
struct Waiter<'a> {
    ticket: u64,
    connection: &'a ChargedConnection,
    /// It waits for its address, or is queued after a connection of its address that does.
    for_address: bool,
}

/// How many bytes are missing.
#[derive(Clone, Copy)]
struct Shortage {
    /// Bytes above the limit of its address.
    of_address: u64,
    /// Bytes above the common part of the budget.
    of_budget: u64,
}
