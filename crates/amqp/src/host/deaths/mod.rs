//! The headers in which a dead-lettered message carries its history: `x-death` and its relatives.
//!
//! Source: <https://www.rabbitmq.com/docs/dlx#effects>. `x-death` has one entry per queue and
//! reason, with a count, the latest death first. Entries that a client has set are ignored: the
//! history is read only from messages that this broker has dead-lettered.

use crate::wire::{Array, Properties, Table, Value, Writer, array_bytes, table_bytes};

/// The history.
const X_DEATH: &str = "x-death";
/// Reason, queue and exchange of the first death.
const FIRST_DEATH: [&str; 3] = [
    "x-first-death-reason",
    "x-first-death-queue",
    "x-first-death-exchange",
];
/// Reason, queue and exchange of the latest death.
const LAST_DEATH: [&str; 3] = [
    "x-last-death-reason",
    "x-last-death-queue",
    "x-last-death-exchange",
];
/// Maximum number of entries; the oldest are dropped, because the headers must fit into a frame.
const DEATHS_MAX: usize = 128;
/// Maximum number of routing keys per entry of `x-death`.
const KEYS_MAX: usize = 16;
/// Maximum size of `x-death`, in bytes; the oldest entries are dropped first. A content header
/// cannot be split, so it must fit into one frame of each consumer's `frame_max`, usually 128 KiB,
/// whatever its publisher's was.
const DEATHS_BYTES_MAX: usize = 32 << 10;
/// Maximum size of `x-death` and the message's own headers together, in bytes. The latest entry is
/// written even if it does not fit.
const HEADERS_BYTES_MAX: usize = 120 << 10;

/// The reason of a message that a consumer has rejected.
pub(super) const REJECTED: &str = "rejected";

/// RabbitMQ's name of the reason for which a message died.
pub(super) fn reason(word: &[u8]) -> &'static str {
    match word {
        b"expired" => "expired",
        b"length" | b"maxlen" => "maxlen",
        b"attempts" | b"delivery_limit" => "delivery_limit",
        _ => REJECTED,
    }
}

/// The deaths in one queue for one reason: an entry of `x-death`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Death<'a> {
    pub(super) queue: &'a str,
    pub(super) reason: &'a str,
    /// Number of deaths.
    pub(super) count: i64,
    /// Time of the first of them, in seconds since 1970.
    pub(super) time_s: u64,
    /// The exchange to which the message had been published at the first of them.
    pub(super) exchange: &'a str,
    /// The routing keys with which it had been published.
    pub(super) keys: Vec<&'a str>,
    /// The `expiration` that was removed from the message at this death (`original-expiration`).
    pub(super) expiration: Option<&'a str>,
}

/// The history of a message, the latest death first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Deaths<'a> {
    all: Vec<Death<'a>>,
    /// Reason, queue and exchange of the first death.
    first: Option<[&'a str; 3]>,
}

impl<'a> Deaths<'a> {
    /// Reads the history from a message that this broker has dead-lettered.
    pub(super) fn read(headers: Table<'a>) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.as_text());
        let first = || {
            Some([
                text(FIRST_DEATH[0])?,
                text(FIRST_DEATH[1])?,
                text(FIRST_DEATH[2])?,
            ])
        };
        let all = match headers.get(X_DEATH) {
            Some(Value::Array(deaths)) => deaths.values().filter_map(read_death).collect(),
            _ => Vec::new(),
        };
        Self {
            all,
            first: first(),
        }
    }

    /// Adds a death: an entry for the same queue and reason is counted up and becomes the latest.
    pub(super) fn add(&mut self, death: Death<'a>) {
        self.first
            .get_or_insert([death.reason, death.queue, death.exchange]);
        let is_like = |old: &Death<'_>| old.queue == death.queue && old.reason == death.reason;
        let latest = match self.all.iter().position(is_like) {
            None => death,
            Some(at) => {
                let mut old = self.all.remove(at);
                old.count = old.count.saturating_add(1);
                old
            }
        };
        self.all.insert(0, latest);
        self.all.truncate(DEATHS_MAX);
    }

    /// Whether the message has died in that queue before, and no consumer has rejected it since:
    /// then it would cycle forever.
    pub(super) fn is_cycle(&self, queue: &str) -> bool {
        match self.all.iter().position(|death| death.queue == queue) {
            // The queue may be in an entry that was left out.
            None => self.is_truncated() && self.all.iter().all(|death| death.reason != REJECTED),
            Some(at) => self.all[..=at].iter().all(|death| death.reason != REJECTED),
        }
    }

    /// Whether old entries were left out: then the entry of the first death is missing.
    fn is_truncated(&self) -> bool {
        let is_first = |first: &[&str; 3]| {
            let mut all = self.all.iter();
            !all.any(|death| death.reason == first[0] && death.queue == first[1])
        };
        self.first.as_ref().is_some_and(is_first)
    }

    /// Encodes the properties with this history, and without the expiration. If the size limit is
    /// reached, old entries lose their routing keys, and the oldest are left out.
    pub(super) fn write(&self, properties: &Properties<'_>) -> Vec<u8> {
        let kept = properties.headers.unwrap_or_default();
        let own = kept.fields().filter(|(name, _)| !is_death_header(name));
        let own = table_bytes(&own.collect::<Vec<_>>()).len();
        let mut left = DEATHS_BYTES_MAX.min(HEADERS_BYTES_MAX.saturating_sub(own));
        let mut tables: Vec<Vec<u8>> = Vec::new();
        for death in &self.all {
            let mut table = write_death(death, true);
            if table.len() > left {
                table = write_death(death, false);
            }
            match left.checked_sub(table.len()) {
                Some(rest) => left = rest,
                // The latest entry always stays.
                None if tables.is_empty() => left = 0,
                None => break,
            }
            tables.push(table);
        }
        let tables: Vec<Value<'_>> = tables.iter().map(|bytes| table(bytes)).collect();
        let deaths = array_bytes(&tables);
        let mut fields: Vec<(&str, Value<'_>)> = vec![(X_DEATH, array(&deaths))];
        let latest = self.all.first();
        let last = latest.map(|death| [death.reason, death.queue, death.exchange]);
        for (names, texts) in [(FIRST_DEATH, self.first), (LAST_DEATH, last)] {
            let texts = texts
                .iter()
                .flatten()
                .map(|text| Value::String(text.as_bytes()));
            fields.extend(names.into_iter().zip(texts));
        }
        fields.extend(kept.fields().filter(|(name, _)| !is_death_header(name)));
        fields.sort_by_key(|(name, _)| *name);
        let headers = table_bytes(&fields);
        let mut bytes = Vec::new();
        let properties = Properties {
            headers: Some(Table::check(&headers).unwrap_or_default()),
            expiration: None,
            ..*properties
        };
        properties.write(&mut Writer::new(&mut bytes));
        bytes
    }
}

/// Whether this module writes the header.
fn is_death_header(name: &str) -> bool {
    name == X_DEATH || FIRST_DEATH.contains(&name) || LAST_DEATH.contains(&name)
}

/// Encodes an entry; without `whole`, its routing keys and expiration are left out.
fn write_death(death: &Death<'_>, whole: bool) -> Vec<u8> {
    let keys = death.keys.iter().filter(|_| whole);
    let keys = keys.map(|key| Value::String(key.as_bytes()));
    let keys = array_bytes(&keys.collect::<Vec<Value<'_>>>());
    let mut fields: Vec<(&str, Value<'_>)> = Vec::with_capacity(7);
    if let Some(expiration) = death.expiration.filter(|_| whole) {
        let expiration = Value::String(expiration.as_bytes());
        fields.push(("original-expiration", expiration));
    }
    fields.extend([
        ("count", Value::I64(death.count)),
        ("reason", Value::String(death.reason.as_bytes())),
        ("queue", Value::String(death.queue.as_bytes())),
        ("time", Value::Timestamp(death.time_s)),
        ("exchange", Value::String(death.exchange.as_bytes())),
        ("routing-keys", array(&keys)),
    ]);
    table_bytes(&fields)
}

fn read_death(value: Value<'_>) -> Option<Death<'_>> {
    let Value::Table(table) = value else {
        return None;
    };
    let text = |name| table.get(name).and_then(|value| value.as_text());
    let keys = match table.get("routing-keys") {
        Some(Value::Array(keys)) => keys.values().filter_map(|key| key.as_text()).collect(),
        _ => Vec::new(),
    };
    Some(Death {
        queue: text("queue")?,
        reason: text("reason")?,
        count: table.get("count")?.as_integer()?,
        time_s: match table.get("time") {
            Some(Value::Timestamp(time_s)) => time_s,
            _ => 0,
        },
        exchange: text("exchange")?,
        keys,
        expiration: text("original-expiration"),
    })
}

/// The routing keys for an `x-death` entry: the message's own and `CC`, but not `BCC`, which
/// consumers must not see.
pub(super) fn death_keys<'a>(routing_key: &'a str, headers: Table<'a>) -> Vec<&'a str> {
    let more = match headers.get("CC") {
        Some(Value::Array(keys)) => Some(keys),
        _ => None,
    };
    let more = more.into_iter().flat_map(|keys| keys.values());
    let more = more.filter_map(|key| key.as_text());
    std::iter::once(routing_key)
        .chain(more)
        .take(KEYS_MAX)
        .collect()
}

/// Cannot fail: the bytes were encoded by `table_bytes`.
fn table(bytes: &[u8]) -> Value<'_> {
    Value::Table(Table::check(bytes).unwrap_or_default())
}

fn array(bytes: &[u8]) -> Value<'_> {
    Value::Array(Array::check(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests;
