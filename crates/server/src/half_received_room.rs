//! Who has how much of the memory for half received commands, who waits for it, and who goes.
//! No lock and no clock: both belong to the caller.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::task::Waker;

use cloverleaf_telemetry::Protocol;

use crate::config::Config;
use crate::config_value::ms;

/// The protocols that have room of their own, each this part of all.
const PROTOCOLS: [Protocol; 3] = [Protocol::Nsq, Protocol::Kafka, Protocol::Amqp];
const OWN_PART: u64 = 8;

/// A peer that sends less than this has not moved: a byte now and then keeps no memory.
const MOVED_BYTES_MIN: u64 = 4 * 1024;

/// Who was silent for less gives no room to others: a lost packet is sent again within this time.
const SILENT_US_MIN: u64 = 1_000_000;

/// While room is short, each so many bytes of a command give its peer a second more.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// How much there is, and for how long.
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

/// Whose room it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) protocol: Protocol,
    /// Whether its commands are of usual size. Only for those there is room of their own.
    pub(crate) is_usual: bool,
}

impl Share {
    fn index(self) -> usize {
        let protocol = PROTOCOLS.iter().position(|it| *it == self.protocol);
        // Any other protocol's connections would share that of the first.
        2 * protocol.unwrap_or_default() + usize::from(self.is_usual)
    }
}

/// What the connections of one share have.
#[derive(Default)]
struct Lot {
    /// There is this much that nobody else takes.
    own_bytes: u64,
    bytes: u64,
    /// In the order in which they came.
    waiting: VecDeque<u64>,
    /// Who may go beyond the bounds.
    ahead: Option<u64>,
}

impl Lot {
    /// What is taken from the room for all.
    fn common_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.own_bytes)
    }
}

/// A connection that holds something or waits for it.
struct Place {
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
    /// Its connection ends, so that others have room.
    is_given_up: bool,
    waker: Option<Waker>,
}

impl Place {
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

pub(crate) struct Room {
    bounds: Bounds,
    lots: [Lot; 2 * PROTOCOLS.len()],
    /// By ticket.
    places: BTreeMap<u64, Place>,
    tickets: u64,
    /// What is held by address, where that has a bound.
    addresses: HashMap<IpAddr, u64>,
}

impl Room {
    pub(crate) fn new(bounds: Bounds) -> Room {
        let mut lots: [Lot; 2 * PROTOCOLS.len()] = Default::default();
        for protocol in PROTOCOLS {
            let is_usual = true;
            let share = Share { protocol, is_usual };
            lots[share.index()].own_bytes = bounds.bytes_max / OWN_PART;
        }
        Room {
            bounds,
            lots,
            places: BTreeMap::new(),
            tickets: 0,
            addresses: HashMap::new(),
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

    fn common_bytes(&self) -> u64 {
        self.lots.iter().map(Lot::common_bytes).sum()
    }

    fn common_bytes_max(&self) -> u64 {
        let own: u64 = self.lots.iter().map(|lot| lot.own_bytes).sum();
        self.bounds.bytes_max - own
    }

    fn lot(&mut self, share: Share) -> &mut Lot {
        &mut self.lots[share.index()]
    }

    /// A place for a connection that holds nothing yet.
    pub(crate) fn open(&mut self, share: Share, address: IpAddr, now_us: u64) -> u64 {
        self.tickets += 1;
        let place = Place {
            share,
            address,
            bytes: 0,
            needed_bytes: 0,
            began_us: now_us,
            moved_us: now_us,
            moved_bytes: 0,
            paused_us: None,
            is_given_up: false,
            waker: None,
        };
        self.places.insert(self.tickets, place);
        self.tickets
    }

    /// Takes a place away, with all that it has.
    pub(crate) fn close(&mut self, ticket: u64) {
        self.resize(ticket, 0);
        if let Some(place) = self.places.remove(&ticket) {
            let lot = self.lot(place.share);
            lot.waiting.retain(|other| *other != ticket);
            lot.ahead.take_if(|ahead| *ahead == ticket);
            self.wake_next();
        }
    }

    /// Says of which command it holds a part, and who is woken.
    pub(crate) fn describe(
        &mut self,
        ticket: u64,
        share: Share,
        needed_bytes: u64,
        waker: Option<&Waker>,
    ) {
        let Some(place) = self.places.get_mut(&ticket) else {
            return;
        };
        place.needed_bytes = needed_bytes;
        match (&mut place.waker, waker) {
            (Some(old), Some(new)) => old.clone_from(new),
            (old @ None, Some(new)) => *old = Some(new.clone()),
            (_, None) => {}
        }
        if place.share != share {
            // It turned out to be larger than it seemed.
            let (old, bytes) = (std::mem::replace(&mut place.share, share), place.bytes);
            let lot = self.lot(old);
            lot.bytes -= bytes;
            lot.waiting.retain(|other| *other != ticket);
            lot.ahead.take_if(|ahead| *ahead == ticket);
            self.lot(share).bytes += bytes;
            self.wake_next();
        }
    }

    /// It holds so much, whether or not there is room.
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
        if bytes < held {
            self.wake_next();
        }
    }

    /// Gives it room up to `bytes`, if it overtakes nobody, and there is as much or it may go
    /// beyond.
    pub(crate) fn take(&mut self, ticket: u64, bytes: u64, may_go_ahead: bool) -> bool {
        let Some(place) = self.places.get(&ticket) else {
            return false;
        };
        let share = place.share;
        let fits = self.lack(place, bytes).bytes() == 0;
        let is_next = self.is_next(ticket, share);
        let lot = self.lot(share);
        let is_ahead = lot.ahead == Some(ticket);
        let goes_ahead = may_go_ahead && is_next && lot.ahead.is_none();
        if !(is_ahead || goes_ahead || is_next && fits) {
            return false;
        }
        if !fits {
            lot.ahead = Some(ticket);
        }
        self.resize(ticket, bytes);
        self.leave_queue(ticket);
        true
    }

    /// It waits, for which its peer is not to blame.
    pub(crate) fn wait(&mut self, ticket: u64, now_us: u64) {
        if let Some(place) = self.places.get(&ticket) {
            let share = place.share;
            let waiting = &mut self.lot(share).waiting;
            if !waiting.contains(&ticket) {
                waiting.push_back(ticket);
            }
            self.pause(ticket, now_us);
        }
    }

    pub(crate) fn is_waiting(&self, ticket: u64) -> bool {
        self.lots.iter().any(|lot| lot.waiting.contains(&ticket))
    }

    /// Whether it does not overtake anybody. Who waits for others of its address holds up nobody
    /// else.
    fn is_next(&self, ticket: u64, share: Share) -> bool {
        let mut before = self.lots[share.index()].waiting.iter();
        before
            .by_ref()
            .take_while(|other| **other != ticket)
            .all(|other| self.places.get(other).is_none_or(|it| self.is_full(it)))
    }

    /// Whether its address has all that it may have.
    fn is_full(&self, place: &Place) -> bool {
        let sum = self.addresses.get(&place.address).copied();
        let max = self.bounds.address_bytes_max;
        max.is_some_and(|max| sum.is_some_and(|sum| sum >= max))
    }

    /// How much is missing for a place to have `bytes`.
    fn lack(&self, place: &Place, bytes: u64) -> Lack {
        let more = bytes.saturating_sub(place.bytes);
        if let Some(max) = self.bounds.address_bytes_max {
            let sum = self.addresses.get(&place.address).copied();
            let lack = (sum.unwrap_or(0) + more).saturating_sub(max);
            if lack > 0 {
                return Lack::OfAddress(lack);
            }
        }
        let lot = &self.lots[place.share.index()];
        let beyond = (lot.bytes + more).saturating_sub(lot.own_bytes) - lot.common_bytes();
        match beyond {
            0 => Lack::OfAll(0),
            _ => {
                Lack::OfAll((self.common_bytes() + beyond).saturating_sub(self.common_bytes_max()))
            }
        }
    }

    /// Gives up the places that have been silent longest, until there will be room for one that
    /// waits and is next. Returns when to look again if it has not been woken.
    pub(crate) fn make_room(&mut self, ticket: u64, bytes: u64, now_us: u64) -> Option<u64> {
        let place = self.places.get(&ticket)?;
        if !self.is_next(ticket, place.share) {
            return None;
        }
        let lack = self.lack(place, bytes);
        let (share, address) = (place.share, place.address);
        let helps = |other: &Place| match lack {
            Lack::OfAddress(_) => other.address == address,
            Lack::OfAll(_) => {
                other.share == share || self.lots[other.share.index()].common_bytes() > 0
            }
        };
        let mut missing = lack.bytes();
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
        let Some(place) = self.places.get(&ticket) else {
            return;
        };
        let waiting = &mut self.lots[place.share.index()].waiting;
        let before = waiting.len();
        waiting.retain(|other| *other != ticket);
        if waiting.len() < before {
            self.wake_next();
        }
    }

    /// Wakes those who may find room now.
    fn wake_next(&self) {
        for lot in &self.lots {
            let places = || lot.waiting.iter().filter_map(|it| self.places.get(it));
            let next = places().find(|place| !self.is_full(place));
            if let Some(place) = next.or_else(|| places().next()) {
                place.wake();
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
        if !self.is_tight() {
            return Some(silent_us);
        }
        let allowed_us = place.needed_bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND_MIN;
        let whole_us = place.began_us.saturating_add(timeout_us);
        Some(silent_us.min(whole_us.saturating_add(allowed_us)))
    }
}

/// How many bytes are missing, and of what.
#[derive(Clone, Copy)]
enum Lack {
    OfAddress(u64),
    OfAll(u64),
}

impl Lack {
    fn bytes(self) -> u64 {
        match self {
            Lack::OfAddress(bytes) | Lack::OfAll(bytes) => bytes,
        }
    }
}
