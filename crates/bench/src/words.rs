//! Settings and findings as people read them: the same words in the table and in the report.

pub use cloverleaf_page::words::*;

use crate::driver::Promise;
use crate::outcome::{Kind, Outcome, Row, Subject, Variation};
use crate::payload::PayloadKind;
use crate::plan::{Acks, Amount, Plan};
use crate::schedule::Arrivals;

/// A broker's durability class, for titles: "disk", and "disk (claimed)" where its user says so.
pub fn class(subject: &Subject) -> String {
    let claimed = if subject.is_claimed { " (claimed)" } else { "" };
    format!("{}{claimed}", promise(subject.promise))
}

/// The durability class in one word.
pub fn promise(promise: Promise) -> &'static str {
    match promise {
        Promise::None => "no acks",
        Promise::Memory => "memory",
        Promise::Kernel => "kernel",
        Promise::Disk => "disk",
        Promise::Configured => "as configured",
    }
}

/// The durability class in a sentence.
pub fn promise_sentence(promise: Promise) -> &'static str {
    match promise {
        Promise::None => "Nothing is acknowledged: what is counted was sent, not stored.",
        Promise::Memory => "Acknowledged in the broker's memory: a killed broker loses it.",
        Promise::Kernel => {
            "Acknowledged in the kernel: a killed broker loses nothing, a power loss may."
        }
        Promise::Disk => "Acknowledged once synced to disk: a power loss takes nothing.",
        Promise::Configured => "Acknowledged as the broker is configured; it does not say how.",
    }
}

/// The measured sides, in words.
pub fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Produce => "Producer",
        Kind::Consume => "Consumer",
        Kind::EndToEnd => "End to end",
    }
}

/// The value of a setting that differs between rows: "1,024 bytes", "8 connections".
pub fn variation(variation: &Variation) -> String {
    let value = whole_or_number(variation.value);
    match variation.name.split_once(", ") {
        Some((_, unit)) => format!("{value}{SPACE}{unit}"),
        None => format!("{}{SPACE}{value}", variation.name),
    }
}

/// All that makes a row different from others of its subject; empty: nothing does.
pub fn variations(row: &Row) -> String {
    let each: Vec<String> = row.variations.iter().map(variation).collect();
    each.join(", ")
}

/// When messages are sent.
pub fn arrivals(arrivals: &Arrivals) -> String {
    match *arrivals {
        Arrivals::Closed => "closed loop".to_owned(),
        Arrivals::Constant { rate } => format!("open loop, {} evenly", self::rate(rate)),
        Arrivals::Poisson { rate } => format!("open loop, {} at random times", self::rate(rate)),
        Arrivals::Bursts { rate, size } => {
            let size = count(size.into());
            format!("open loop, {} in bursts of {size}", self::rate(rate))
        }
        Arrivals::Ramp { from, to, seconds } => {
            let (from, to) = (self::rate(from), self::rate(to));
            format!(
                "open loop, from {from} to {to} within {}{SPACE}s",
                number(seconds)
            )
        }
    }
}

/// Messages per second that were asked for; `None` in a closed loop and on a ramp.
pub fn asked(arrivals: &Arrivals) -> Option<f64> {
    match *arrivals {
        Arrivals::Constant { rate } | Arrivals::Poisson { rate } => Some(rate),
        Arrivals::Bursts { rate, .. } => Some(rate),
        Arrivals::Closed | Arrivals::Ramp { .. } => None,
    }
}

/// The settings of a plan with their names, in the order of the command line's help.
pub fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    let seconds = |seconds: f64| format!("{}{SPACE}s", whole_or_number(seconds));
    let limit = |limit: u32| match limit {
        0 => "no limit".to_owned(),
        limit => count(limit.into()),
    };
    let units = |number: u64, unit: &str| format!("{}{SPACE}{unit}", count(number));
    let amount = match plan.amount {
        Amount::Messages(messages) => units(messages, "messages"),
        Amount::Seconds(time) => seconds(time),
    };
    let acks = match plan.acks {
        Acks::None => "none",
        Acks::One => "one",
        Acks::All => "all",
    };
    let keys = match plan.keys {
        0 => "none".to_owned(),
        keys => count(keys),
    };
    vec![
        ("message size", units(plan.size_bytes as u64, "bytes")),
        ("payload", payload(&plan.payload)),
        ("amount", amount),
        ("warm-up", seconds(plan.warm_up_s)),
        ("arrivals", arrivals(&plan.arrivals)),
        ("producers", count(plan.producers.into())),
        ("consumers", count(plan.consumers.into())),
        ("batch", units(plan.batch_messages.into(), "messages")),
        ("in flight per connection", limit(plan.in_flight)),
        ("acks", acks.to_owned()),
        ("partitions", count(plan.partitions.into())),
        ("keys", keys),
        ("topic", plan.topic.clone()),
        ("seed", plan.seed.to_string()),
    ]
}

/// Settings that all these measurements share, of those that change what is measured.
pub fn shared_settings<'o>(
    mut outcomes: impl Iterator<Item = &'o Outcome>,
) -> Vec<(&'static str, String)> {
    let of = |outcome: &Outcome| {
        let mut settings = settings(&outcome.plan);
        settings.retain(|(name, _)| match *name {
            // Each measurement has its own; JSON has them.
            "topic" | "seed" => false,
            "consumers" => outcome.kind != Kind::Produce,
            "arrivals" | "producers" => outcome.kind != Kind::Consume,
            _ => true,
        });
        settings
    };
    let mut shared = outcomes.next().map(of).unwrap_or_default();
    for outcome in outcomes {
        let settings = of(outcome);
        shared.retain(|setting| settings.contains(setting));
    }
    shared
}

/// The content of the messages.
pub fn payload(kind: &PayloadKind) -> String {
    match kind {
        PayloadKind::Random => "random".to_owned(),
        PayloadKind::Compressible => "compressible".to_owned(),
        PayloadKind::File(_) => "from a file".to_owned(),
    }
}

/// The findings of the checks of some runs, in a sentence.
pub fn findings<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> String {
    let (mut lost, mut twice, mut unordered, mut checked) = (0, 0, 0, None);
    for outcome in outcomes {
        let Some(findings) = outcome.findings else {
            continue;
        };
        lost += findings.lost;
        twice += findings.duplicates;
        unordered += findings.out_of_order;
        let came = outcome.consumed.as_ref().map_or(0, |stats| stats.messages);
        checked = Some(checked.unwrap_or(0) + came);
    }
    let Some(checked) = checked else {
        return "Not checked for losses: nobody consumed.".to_owned();
    };
    let some = |number, none: &str, some: &str| match number {
        0 => none.to_owned(),
        number => format!("{} {some}", count(number)),
    };
    format!(
        "Of {} messages that came: {}, {}, {}.",
        count(checked),
        some(lost, "none is missing", "more are missing"),
        some(twice, "none came twice", "came again"),
        some(unordered, "none out of order", "out of order"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_has_its_unit() {
        let size = Variation {
            name: "message size, bytes".to_owned(),
            value: 5_120.0,
        };
        assert_eq!(variation(&size), "5,120\u{a0}bytes");
    }
}
