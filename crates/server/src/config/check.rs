//! The checks of options' values; the table of options names one in each row.

use std::time::Duration;

use cloverleaf_broker::PARTITIONS_MAX;
use thiserror::Error;

use crate::config::Config;
use crate::config::options::{OPTIONS, OptionDef};
use crate::config::value::{ByteSize, OptionValue};

/// The longest time that any option may have. Sums of a longer one and the clock could overflow,
/// and nobody needs it.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

// The help of `kafka.partitions_default` names this number.
const _: () = assert!(PARTITIONS_MAX == 1024);

/// A value that an option does not allow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{option}: {reason}")]
pub struct OutOfRange {
    /// Name of the option.
    pub option: String,
    /// The error in its value, as a sentence.
    pub reason: String,
}

impl OutOfRange {
    pub(super) fn of(option: impl Into<String>, reason: String) -> Self {
        let option = option.into();
        OutOfRange { option, reason }
    }
}

impl Config {
    /// Checks all values, so that a mistake is reported with a sentence at the start.
    ///
    /// # Errors
    /// The first value that is out of its range, or contradicts another.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let all = |check: fn(&OptionDef) -> fn(&Config) -> CheckResult| {
            OPTIONS.iter().try_for_each(|option| {
                check(option)(self).map_err(|reason| OutOfRange::of(option.name(), reason))
            })
        };
        all(|option| option.check)?;
        all(|option| option.check_bound)?;
        self.check_request_bytes()
    }
}

/// The result of a check: nothing, or a sentence for the operator.
pub(crate) type CheckResult = Result<(), String>;

pub(super) fn ensure(fits: bool, reason: impl Into<String>) -> CheckResult {
    if fits { Ok(()) } else { Err(reason.into()) }
}

/// Not zero, and otherwise any valid value of the type.
pub(super) fn positive<T: OptionValue + Default + PartialEq>(value: &T) -> CheckResult {
    value.check()?;
    ensure(*value != T::default(), "it cannot be 0")
}

/// Not zero, for the reason given.
pub(super) fn not_zero<T: Default + PartialEq>(consequence: &str) -> impl Fn(&T) -> CheckResult {
    let reason = format!("it cannot be 0: {consequence}");
    move |value| ensure(*value != T::default(), &*reason)
}

/// At most `max`, which is written as in the configuration file.
pub(super) fn at_most<T: OptionValue + PartialOrd>(max: &str) -> impl Fn(&T) -> CheckResult {
    move |value| {
        ensure(
            *value <= T::parse(max)?,
            format!("it cannot be above {max}"),
        )
    }
}

/// From `min` to `max`, which are written as in the configuration file.
pub(super) fn between<T>(min: &str, max: &str) -> impl Fn(&T) -> CheckResult
where
    T: OptionValue + PartialOrd,
{
    move |value| {
        let range = T::parse(min)?..=T::parse(max)?;
        let reason = format!("it must be from {min} to {max}");
        ensure(range.contains(value), reason)
    }
}

/// A time that is not longer than any option allows.
pub(super) fn duration(value: &Duration) -> CheckResult {
    let reason = format!("{} is too long: the longest is 8760h", value.text());
    ensure(*value <= DURATION_MAX, reason)
}

/// Whole seconds that fit into the 16 bits of a frame's field.
pub(super) fn whole_seconds(value: &Duration) -> CheckResult {
    ensure(
        value.as_secs() <= u64::from(u16::MAX) && value.subsec_nanos() == 0,
        "it must be whole seconds, 65535 at most",
    )
}

/// A length that Kafka's protocol can encode.
pub(super) fn kafka_length(value: &ByteSize) -> CheckResult {
    ensure(
        (1..=i32::MAX as u64).contains(&value.0),
        "it must be from 1 to 2147483647, because Kafka's lengths are signed",
    )
}

/// A length that NSQ's frames can encode.
pub(super) fn nsq_frame_length(value: &ByteSize) -> CheckResult {
    ensure(
        value.0 <= i32::MAX as u64,
        "it cannot be above 2147483647, because NSQ's frames have signed 32-bit lengths",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_refused_with_a_sentence() {
        assert_eq!(Config::default().check(), Ok(()));
        let cases = "\
            nsq.client_timeout=0s | nsq.client_timeout: it cannot be 0
            nsq.msg_timeout=1h | nsq.msg_timeout: it cannot be longer than nsq.max_msg_timeout
            nsq.max_req_timeout=18446744073709551615ms | is too long: the longest is 8760h
            nsq.max_body_size=2GiB | it cannot be above 2147483647
            segment_bytes=65535 | segment_bytes: it must be from 64KiB to 1GiB
            kafka.partitions_default=0 | kafka.partitions_default: it must be from 1 to 1024
            kafka.partitions_default=1025 | kafka.partitions_default: it must be from 1 to 1024
            kafka.request_bytes_max=1MiB | kafka.request_bytes_max: it must exceed \
            kafka.batch_bytes_max by 64KiB
            kafka.batch_bytes_max=100MiB | kafka.request_bytes_max: it must exceed \
            kafka.batch_bytes_max by 64KiB
            http_connections_max=0 | http_connections_max: it cannot be 0
            compaction_interval=0s | compaction_interval: it cannot be 0
            partitions_max=0 | partitions_max: it
            nsq.max_deflate_level=10 | it must be from 1 to 9
            kafka.request_bytes_max=2GiB | kafka.request_bytes_max: it must be from 1 to 2147483647
            kafka.session_timeout_min=1h | it cannot be longer than kafka.session_timeout_max
            kafka.answers_max=0 | kafka.answers_max: it cannot
            amqp.frame_bytes_max=100 | from 4KiB to 16MiB
            amqp.heartbeat=1500ms | amqp.heartbeat: it must be whole seconds
            amqp.message_bytes_max=1GiB | amqp.message_bytes_max: it must be from 1 to 512MiB";
        for (change, sentence) in cases.lines().filter_map(|case| case.split_once(" | ")) {
            let error = Config::with(change).check().err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(sentence), "{change}: {error}");
        }
    }
}
