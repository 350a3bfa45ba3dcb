//! The budget of memory for half received commands: which connection holds how much, which waits,
//! and which has to go. No lock and no clock: both belong to the caller.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::task::Waker;

use cloverleaf_telemetry::Protocol;

use crate::config::Config;
use crate::config::value::ms;

/// Each protocol that the broker speaks has this part of all for itself.
const OWN_PART: u64 = 8;

/// A peer that sends less than this has not moved: a byte now and then keeps no memory.
const MOVED_BYTES_MIN: u64 = 4 * 1024;

/// A peer silent for less keeps its memory: a lost packet is sent again within this time.
const SILENT_US_MIN: u64 = 1_000_000;

/// While memory is short, each so many bytes of a command give its peer a second more.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// The size of the budget, and how long a peer may hold a part of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// All connections together.
    pub(crate) bytes_max: u64,
    /// Those of one address, where that has a bound: there may be many clients behind it.
    pub(crate) address_bytes_max: Option<u64>,
    /// How long a peer may be silent.
    pub(crate) timeout_us: u64,
}

impl Bounds {
    pub(crate) fn of(config: &Config) -> Bounds {
        let general = &config.general;
        let address = general.half_received_address_bytes_max.0;
        Bounds {
            bytes_max: general.half_received_bytes_max.0,
            address_bytes_max: (address > 0).then_some(address),
            timeout_us: ms(general.half_received_timeout).saturating_mul(1000),
        }
    }
}

/// The protocol and size of commands whose memory is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) protocol: Protocol,
    /// Whether its commands are of usual size. Only those have memory that no other protocol takes.
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
    /// Bytes that no other share takes.
    own_bytes: u64,
    bytes: u64,
    /// Tickets, by the turns in which they came.
    waiting: BTreeMap<u64, u64>,
    /// The ticket that may go beyond the bounds.
    ahead: Option<u64>,
}

impl ShareUse {
    /// Bytes taken from the common part of the budget.
    fn common_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.own_bytes)
    }
}

/// A connection that holds memory or waits for it.
struct ChargedConnection {
    share: Share,
    address: IpAddr,
    bytes: u64,
    needed_bytes: u64,
    /// When its command began to be held, without the time that its peer is not to blame for.
    began_us: u64,
    /// The same of when it has moved last, and how much had come by then.
    moved_us: u64,
    moved_bytes: u64,
    /// Since when it is not read from.
    paused_us: Option<u64>,
    /// Its turn, and how much it wants to have, while it waits.
    waits: Option<(u64, u64)>,
    /// Its connection ends, so that others get its memory.
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
    bounds: Bounds,
    lots: [ShareUse; SHARES],
    /// By ticket.
    places: BTreeMap<u64, ChargedConnection>,
    tickets: u64,
    turns: u64,
    /// Bytes held by address, where that has a bound.
    addresses: HashMap<IpAddr, u64>,
    /// The ticket that may go beyond the bound of its address, by that and the index of its share:
    /// that holds up no other address.
    ahead_of_address: HashMap<(IpAddr, usize), u64>,
}

impl HalfReceivedBudget {
    /// Each of these protocols has a part of its own; the connections of another would share what
    /// is for all.
    pub(crate) fn new(bounds: Bounds, protocols: &[Protocol]) -> HalfReceivedBudget {
        let mut lots: [ShareUse; SHARES] = Default::default();
        for &protocol in protocols {
            let share = Share {
                protocol,
                is_usual: true,
            };
            lots[share.index()].own_bytes = bounds.bytes_max / OWN_PART;
        }
        HalfReceivedBudget {
            bounds,
            lots,
            places: BTreeMap::new(),
            tickets: 0,
            turns: 0,
            addresses: HashMap::new(),
            ahead_of_address: HashMap::new(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.lots.iter().map(|lot| lot.bytes).sum()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lots.iter().map(|lot| lot.waiting.len()).sum()
    }

    /// Whether somebody waits, or the next one will.
    pub(crate) fn is_tight(&self) -> bool {
        self.common_bytes() >= self.common_bytes_max()
            || self.lots.iter().any(|lot| !lot.waiting.is_empty())
    }

    /// Whether a connection waits that could get this place's memory, or the next one will wait.
    fn is_tight_for(&self, place: &ChargedConnection) -> bool {
        let may_help = |it: Waiting<'_>| it.place.address == place.address || !it.for_address;
        self.common_bytes() >= self.common_bytes_max()
            || (self.lots.iter()).any(|lot| self.waiting_places(lot).any(may_help))
    }

    fn common_bytes(&self) -> u64 {
        self.lots.iter().map(ShareUse::common_bytes).sum()
    }

    fn common_bytes_max(&self) -> u64 {
        let own: u64 = self.lots.iter().map(|lot| lot.own_bytes).sum();
        self.bounds.bytes_max - own
    }

    fn lot(&mut self, share: Share) -> &mut ShareUse {
        &mut self.lots[share.index()]
    }

    /// A place for a connection that holds nothing yet.
    pub(crate) fn open(&mut self, share: Share, address: IpAddr, now_us: u64) -> u64 {
        self.tickets += 1;
        let place = ChargedConnection {
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
        self.places.insert(self.tickets, place);
        self.tickets
    }

    /// Takes a place away, with all that it has.
    pub(crate) fn close(&mut self, ticket: u64) {
        self.resize(ticket, 0);
        self.leave_share(ticket);
        if self.places.remove(&ticket).is_some() {
            self.wake_next();
        }
    }

    /// It waits no longer among those of its share, nor goes ahead of them.
    fn leave_share(&mut self, ticket: u64) {
        let Some(place) = self.places.get_mut(&ticket) else {
            return;
        };
        let (share, address, waits) = (place.share, place.address, place.waits.take());
        let lot = self.lot(share);
        if let Some((turn, _)) = waits {
            lot.waiting.remove(&turn);
        }
        lot.ahead.take_if(|ahead| *ahead == ticket);
        if self.ahead_of_address(share, address) == Some(ticket) {
            self.ahead_of_address.remove(&(address, share.index()));
        }
    }

    fn ahead_of_address(&self, share: Share, address: IpAddr) -> Option<u64> {
        let ahead = self.ahead_of_address.get(&(address, share.index()));
        ahead.copied()
    }

    /// Says of which command it holds a part, and who is woken.
    pub(crate) fn describe(&mut self, ticket: u64, share: Share, needed_bytes: u64, waker: &Waker) {
        let Some(place) = self.places.get_mut(&ticket) else {
            return;
        };
        place.needed_bytes = needed_bytes;
        match &mut place.waker {
            Some(old) => old.clone_from(waker),
            none @ None => *none = Some(waker.clone()),
        }
        if place.share != share {
            // It turned out to be larger than it seemed.
            let (old, bytes) = (place.share, place.bytes);
            self.leave_share(ticket);
            self.lot(old).bytes -= bytes;
            self.lot(share).bytes += bytes;
            if let Some(place) = self.places.get_mut(&ticket) {
                place.share = share;
            }
            self.wake_next();
        }
    }

    /// It holds so many bytes, whether or not they are within the budget.
    pub(crate) fn resize(&mut self, ticket: u64, bytes: u64) {
        let Some(place) = self.places.get_mut(&ticket) else {
            return;
        };
        let held = std::mem::replace(&mut place.bytes, bytes);
        let (share, address) = (place.share, place.address);
        let lot = self.lot(share);
        lot.bytes = lot.bytes - held + bytes;
        if self.bounds.address_bytes_max.is_some() {
            let sum = self.addresses.entry(address).or_default();
            *sum = *sum - held + bytes;
            if *sum == 0 {
                self.addresses.remove(&address);
            }
        }
        // A connection that waits for others of its address holds up nobody else: so one that grows
        // may help.
        if bytes < held || bytes > held && self.bounds.address_bytes_max.is_some() {
            self.wake_next();
        }
    }

    /// Gives it memory up to `bytes`, if it overtakes no other connection, and as much is free or
    /// it may go beyond the bounds.
    pub(crate) fn take(&mut self, ticket: u64, bytes: u64, may_go_ahead: bool) -> bool {
        let Some(place) = self.places.get(&ticket) else {
            return false;
        };
        let (share, address) = (place.share, place.address);
        let lack = self.lack(place, bytes);
        let is_next = self.is_next(ticket, place);
        let (of_address, of_all) = (self.ahead_of_address(share, address), self.ahead(share));
        let is_ahead = |of: Option<u64>| of == Some(ticket);
        let may_go = |of: Option<u64>| is_ahead(of) || may_go_ahead && is_next && of.is_none();
        // One that goes ahead of all always goes on, or the others might wait for it in vain.
        let fits_address = lack.of_address == 0 || is_ahead(of_all) || may_go(of_address);
        let fits = fits_address && (lack.of_all == 0 || may_go(of_all));
        if !fits || !(is_next || is_ahead(of_address) || is_ahead(of_all)) {
            return false;
        }
        if lack.of_all > 0 {
            self.lot(share).ahead = Some(ticket);
        } else if lack.of_address > 0 && !is_ahead(of_all) {
            self.ahead_of_address
                .insert((address, share.index()), ticket);
        }
        self.resize(ticket, bytes);
        self.leave_queue(ticket);
        true
    }

    fn ahead(&self, share: Share) -> Option<u64> {
        self.lots[share.index()].ahead
    }

    /// It waits until it may have `bytes`, for which its peer is not to blame.
    pub(crate) fn wait(&mut self, ticket: u64, bytes: u64, now_us: u64) {
        let Some(place) = self.places.get_mut(&ticket) else {
            return;
        };
        let share = place.share;
        match &mut place.waits {
            // It may wait for others of its address now, and hold up nobody else.
            Some((_, wanted)) if *wanted != bytes => {
                *wanted = bytes;
                self.wake_next();
            }
            Some(_) => {}
            none @ None => {
                self.turns += 1;
                *none = Some((self.turns, bytes));
                let turn = self.turns;
                self.lot(share).waiting.insert(turn, ticket);
            }
        }
        self.pause(ticket, now_us);
    }

    pub(crate) fn is_waiting(&self, ticket: u64) -> bool {
        let place = self.places.get(&ticket);
        place.is_some_and(|place| place.waits.is_some())
    }

    /// Whether it overtakes no other. A connection that waits for others of its address holds up
    /// nobody else, nor the one that it waits for.
    fn is_next(&self, ticket: u64, place: &ChargedConnection) -> bool {
        let is_ahead = self.ahead_of_address(place.share, place.address) == Some(ticket);
        self.waiting_places(&self.lots[place.share.index()])
            .take_while(|other| other.ticket != ticket)
            .all(|it| (is_ahead || it.place.address != place.address) && it.for_address)
    }

    /// The waiting places of a share, in order.
    fn waiting_places<'a>(&'a self, lot: &'a ShareUse) -> impl Iterator<Item = Waiting<'a>> {
        let mut held_up = HashSet::new();
        lot.waiting.values().filter_map(move |&ticket| {
            let place = self.places.get(&ticket)?;
            let is_ahead = self.ahead_of_address(place.share, place.address) == Some(ticket);
            let for_address = self.waits_for_address(ticket, place)
                || !is_ahead && held_up.contains(&place.address);
            if for_address {
                held_up.insert(place.address);
            }
            Some(Waiting {
                ticket,
                place,
                for_address,
            })
        })
    }

    /// Whether one that waits does so for others of its address, which has all that it may have.
    fn waits_for_address(&self, ticket: u64, place: &ChargedConnection) -> bool {
        let Some((_, bytes)) = place.waits else {
            return false;
        };
        let ahead = self.ahead_of_address(place.share, place.address);
        self.bounds.address_bytes_max.is_some()
            && ahead.is_some_and(|ahead| ahead != ticket)
            && self.ahead(place.share) != Some(ticket)
            && self.lack(place, bytes).of_address > 0
    }

    /// How much is missing for a place to have `bytes`.
    fn lack(&self, place: &ChargedConnection, bytes: u64) -> Lack {
        let more = bytes.saturating_sub(place.bytes);
        let sum = self.addresses.get(&place.address).copied().unwrap_or(0);
        let address_max = self.bounds.address_bytes_max;
        let lot = &self.lots[place.share.index()];
        let beyond = (lot.bytes + more).saturating_sub(lot.own_bytes) - lot.common_bytes();
        Lack {
            of_address: address_max.map_or(0, |max| (sum + more).saturating_sub(max)),
            of_all: match beyond {
                0 => 0,
                _ => (self.common_bytes() + beyond).saturating_sub(self.common_bytes_max()),
            },
        }
    }

    /// Gives up the places that have been silent longest, until there will be memory for one that
    /// waits and is next. Returns when to look again if it has not been woken.
    pub(crate) fn make_room(&mut self, ticket: u64, bytes: u64, now_us: u64) -> Option<u64> {
        let place = self.places.get(&ticket)?;
        if !self.is_next(ticket, place) {
            return None;
        }
        let lack = self.lack(place, bytes);
        let is_of_address = self.waits_for_address(ticket, place);
        let (share, address) = (place.share, place.address);
        let helps = |other: &ChargedConnection| {
            if is_of_address {
                other.address == address
            } else {
                other.share == share || self.lots[other.share.index()].common_bytes() > 0
            }
        };
        let mut missing = if is_of_address {
            lack.of_address
        } else {
            lack.of_all
        };
        let mut silent = Vec::new();
        for (other, place) in &self.places {
            if place.is_given_up && helps(place) {
                missing = missing.saturating_sub(place.bytes);
            } else if place.paused_us.is_none() && place.bytes > 0 && helps(place) {
                silent.push((place.moved_us, *other));
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
            if let Some(place) = self.places.get_mut(&other) {
                place.is_given_up = true;
                place.wake();
                missing = missing.saturating_sub(place.bytes);
            }
        }
        Some(again_us)
    }

    pub(crate) fn leave_queue(&mut self, ticket: u64) {
        let Some(place) = self.places.get_mut(&ticket) else {
            return;
        };
        if let Some((turn, _)) = place.waits.take() {
            let share = place.share;
            self.lot(share).waiting.remove(&turn);
            self.wake_next();
        }
    }

    /// Wakes the connections that may get memory now.
    fn wake_next(&self) {
        for lot in &self.lots {
            let places = || self.waiting_places(lot);
            let next = places().find(|it| !it.for_address);
            if let Some(next) = next.or_else(|| places().next()) {
                next.place.wake();
            }
        }
    }

    /// It is not read from, for which its peer is not to blame.
    pub(crate) fn pause(&mut self, ticket: u64, now_us: u64) {
        if let Some(place) = self.places.get_mut(&ticket) {
            place.paused_us.get_or_insert(now_us);
        }
    }

    /// It is read from again.
    pub(crate) fn resume(&mut self, ticket: u64, now_us: u64) {
        if let Some(place) = self.places.get_mut(&ticket)
            && let Some(since_us) = place.paused_us.take()
        {
            let paused_us = now_us.saturating_sub(since_us);
            place.began_us += paused_us;
            place.moved_us += paused_us;
        }
    }

    /// So much of its command has come in all.
    pub(crate) fn came(&mut self, ticket: u64, bytes: u64, now_us: u64) {
        if let Some(place) = self.places.get_mut(&ticket)
            && bytes >= place.moved_bytes + MOVED_BYTES_MIN
        {
            (place.moved_us, place.moved_bytes) = (now_us, bytes);
            // It had come already, but its core was busy.
            place.is_given_up = false;
        }
    }

    /// When the connection has to end; `None` while it is not the peer that is waited for.
    pub(crate) fn end_us(&self, ticket: u64) -> Option<u64> {
        let place = self.places.get(&ticket)?;
        if place.is_given_up {
            return Some(0);
        }
        if place.paused_us.is_some() {
            return None;
        }
        let timeout_us = self.bounds.timeout_us;
        let silent_us = place.moved_us.saturating_add(timeout_us);
        if !self.is_tight_for(place) {
            return Some(silent_us);
        }
        let allowed_us = place.needed_bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND_MIN;
        let whole_us = place.began_us.saturating_add(timeout_us);
        Some(silent_us.min(whole_us.saturating_add(allowed_us)))
    }
}

/// A connection that waits.
struct Waiting<'a> {
    ticket: u64,
    place: &'a ChargedConnection,
    /// It does so for others of its address, or stands behind one that does.
    for_address: bool,
}

/// How many bytes are missing.
#[derive(Clone, Copy)]
struct Lack {
    /// Bytes above the bound of its address.
    of_address: u64,
    /// Bytes above the common part of the budget.
    of_all: u64,
}
