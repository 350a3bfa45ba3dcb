//! The values that options may have, alone and beside each other.

use std::time::Duration;

use thiserror::Error;

use crate::config::Config;
use crate::config::value::OptionValue;

/// The longest time that any option can name. Beyond it sums with the clock could overflow, and
/// nobody means it.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The largest segment: positions within one are 32-bit numbers.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The smallest segment: with smaller ones nearly every batch would be a file.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Most bytes of a Produce request beside its batch, in practice: names of topics, a client id.
const REQUEST_BYTES_BESIDE: u64 = 64 << 10;

/// RabbitMQ's own range, about: a smaller frame could not hold what is said at the start.
const FRAME_BYTES: std::ops::RangeInclusive<u64> = 4 << 10..=16 << 20;

/// RabbitMQ takes no larger message either.
const MESSAGE_BYTES_MAX: u64 = 512 << 20;

/// More threads than any machine has cores; each costs memory.
const CORES_MAX: u32 = 1024;

/// A value that an option cannot have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{option}: {reason}")]
pub struct OutOfRange {
    /// Name of the option.
    pub option: &'static str,
    /// The fault of its value, in a sentence.
    pub reason: String,
}

fn ensure(fits: bool, option: &'static str, reason: &str) -> Result<(), OutOfRange> {
    if fits {
        return Ok(());
    }
    let reason = reason.to_owned();
    Err(OutOfRange { option, reason })
}

impl Config {
    /// Checks all values, so that a mistake is a sentence at the start and no riddle later.
    ///
    /// # Errors
    /// The first value that is out of its range, or contradicts another.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.check_durations()?;
        self.check_sizes()?;
        self.check_numbers()?;
        self.check_kafka()?;
        self.check_amqp()
    }

    fn check_durations(&self) -> Result<(), OutOfRange> {
        let (general, nsq) = (&self.general, &self.nsq);
        // The second of each is whether zero means something.
        let all = [
            ("drain_timeout", general.drain_timeout, true),
            ("compaction_interval", general.compaction_interval, false),
            ("reader_retention", general.reader_retention, true),
            ("producer_expiry", general.producer_expiry, false),
            (
                "half_received_timeout",
                general.half_received_timeout,
                false,
            ),
            (
                "nsq.http_client_connect_timeout",
                nsq.http_client_connect_timeout,
                false,
            ),
            (
                "nsq.http_client_request_timeout",
                nsq.http_client_request_timeout,
                false,
            ),
            ("nsq.msg_timeout", nsq.msg_timeout, false),
            ("nsq.max_msg_timeout", nsq.max_msg_timeout, false),
            ("nsq.max_req_timeout", nsq.max_req_timeout, true),
            ("nsq.client_timeout", nsq.client_timeout, false),
            (
                "nsq.max_heartbeat_interval",
                nsq.max_heartbeat_interval,
                false,
            ),
            (
                "nsq.max_output_buffer_timeout",
                nsq.max_output_buffer_timeout,
                true,
            ),
            (
                "nsq.min_output_buffer_timeout",
                nsq.min_output_buffer_timeout,
                true,
            ),
            ("nsq.output_buffer_timeout", nsq.output_buffer_timeout, true),
        ];
        check_ranges(&all)?;
        ensure(
            nsq.msg_timeout <= nsq.max_msg_timeout,
            "nsq.msg_timeout",
            "it cannot be longer than nsq.max_msg_timeout",
        )?;
        ensure(
            nsq.min_output_buffer_timeout <= nsq.max_output_buffer_timeout,
            "nsq.min_output_buffer_timeout",
            "it cannot be longer than nsq.max_output_buffer_timeout",
        )
    }

    fn check_sizes(&self) -> Result<(), OutOfRange> {
        let (general, nsq) = (&self.general, &self.nsq);
        ensure(
            (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&general.segment_bytes.0),
            "segment_bytes",
            "it must be from 64KiB to 1GiB",
        )?;
        ensure(
            general.unwritten_bytes_max.0 > 0,
            "unwritten_bytes_max",
            "it cannot be 0: nothing could be published",
        )?;
        ensure(
            nsq.max_msg_size.0 > 0,
            "nsq.max_msg_size",
            "it cannot be 0: nothing could be published",
        )?;
        ensure(
            nsq.max_body_size.0 <= i32::MAX as u64,
            "nsq.max_body_size",
            "it cannot be above 2147483647, because NSQ's frames have signed 32-bit lengths",
        )
    }

    fn check_numbers(&self) -> Result<(), OutOfRange> {
        let (general, nsq) = (&self.general, &self.nsq);
        ensure(
            general.cores <= CORES_MAX,
            "cores",
            "it cannot be above 1024",
        )?;
        let none = "it cannot be 0: nobody could connect";
        ensure(general.connections_max > 0, "connections_max", none)?;
        ensure(
            general.http_connections_max > 0,
            "http_connections_max",
            none,
        )?;
        ensure(
            general.partitions_max > 0,
            "partitions_max",
            "it cannot be 0: there could be no topic",
        )?;
        ensure(
            general.producers_max > 0,
            "producers_max",
            "it cannot be 0: no idempotent producer could be told from another",
        )?;
        ensure(
            nsq.max_rdy_count > 0,
            "nsq.max_rdy_count",
            "it cannot be 0: no consumer could ask for messages",
        )?;
        ensure(
            (1..=9).contains(&nsq.max_deflate_level),
            "nsq.max_deflate_level",
            "it must be from 1 to 9",
        )
    }

    fn check_kafka(&self) -> Result<(), OutOfRange> {
        let kafka = &self.kafka;
        check_ranges(&[
            ("kafka.idle_timeout", kafka.idle_timeout, false),
            ("kafka.session_timeout_min", kafka.session_timeout_min, true),
            (
                "kafka.session_timeout_max",
                kafka.session_timeout_max,
                false,
            ),
            (
                "kafka.initial_rebalance_delay",
                kafka.initial_rebalance_delay,
                true,
            ),
            ("kafka.offsets_retention", kafka.offsets_retention, false),
            (
                "kafka.client_metrics_interval",
                kafka.client_metrics_interval,
                true,
            ),
        ])?;
        ensure(
            kafka.session_timeout_min <= kafka.session_timeout_max,
            "kafka.session_timeout_min",
            "it cannot be longer than kafka.session_timeout_max",
        )?;
        for (option, size) in [
            ("kafka.request_bytes_max", kafka.request_bytes_max),
            (
                "kafka.control_request_bytes_max",
                kafka.control_request_bytes_max,
            ),
            ("kafka.batch_bytes_max", kafka.batch_bytes_max),
            ("kafka.fetch_bytes_max", kafka.fetch_bytes_max),
            ("kafka.fetch_cold_bytes_max", kafka.fetch_cold_bytes_max),
        ] {
            let fits = (1..=i32::MAX as u64).contains(&size.0);
            let reason = "it must be from 1 to 2147483647, because Kafka's lengths are signed";
            ensure(fits, option, reason)?;
        }
        ensure(
            kafka.request_bytes_max.0 >= kafka.batch_bytes_max.0 + REQUEST_BYTES_BESIDE,
            "kafka.request_bytes_max",
            "it must exceed kafka.batch_bytes_max by 64KiB: \
             else no request could hold the largest batch",
        )?;
        let partitions_max = cloverleaf_broker::PARTITIONS_MAX;
        ensure(
            (1..=partitions_max).contains(&kafka.partitions_default),
            "kafka.partitions_default",
            &format!("it must be from 1 to {partitions_max}"),
        )?;
        let fits = kafka.node_id <= i32::MAX as u32;
        ensure(fits, "kafka.node_id", "it cannot be above 2147483647")?;
        let none = "it cannot be 0: nobody could use Kafka";
        for (option, count) in [
            ("kafka.answers_max", kafka.answers_max),
            ("kafka.group_members_max", kafka.group_members_max),
            ("kafka.groups_max", kafka.groups_max),
        ] {
            ensure(count > 0, option, none)?;
        }
        Ok(())
    }

    fn check_amqp(&self) -> Result<(), OutOfRange> {
        let amqp = &self.amqp;
        ensure(
            FRAME_BYTES.contains(&amqp.frame_bytes_max.0),
            "amqp.frame_bytes_max",
            "it must be from 4KiB to 16MiB",
        )?;
        ensure(
            (1..=MESSAGE_BYTES_MAX).contains(&amqp.message_bytes_max.0),
            "amqp.message_bytes_max",
            "it must be from 1 to 512MiB",
        )?;
        ensure(
            amqp.heartbeat.as_secs() <= u64::from(u16::MAX) && amqp.heartbeat.subsec_nanos() == 0,
            "amqp.heartbeat",
            "it must be whole seconds, 65535 at most",
        )?;
        let none = "it cannot be 0: nobody could use AMQP";
        ensure(amqp.channels_max > 0, "amqp.channels_max", none)?;
        ensure(amqp.consumers_max > 0, "amqp.consumers_max", none)
    }
}

/// Name and value of each, and whether zero means something.
fn check_ranges(all: &[(&'static str, Duration, bool)]) -> Result<(), OutOfRange> {
    for (option, value, zero) in all {
        let longest = format!("{} is too long: the longest is 8760h", value.text());
        ensure(*value <= DURATION_MAX, option, &longest)?;
        ensure(*zero || !value.is_zero(), option, "it cannot be 0")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Config);

    #[test]
    fn what_cannot_work_is_refused_with_a_sentence() {
        let with = |change: Change| {
            let mut config = Config::default();
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        let cases: [(Change, &str); 19] = [
            (
                |c| c.nsq.client_timeout = Duration::ZERO,
                "nsq.client_timeout: it cannot be 0",
            ),
            (
                |c| c.nsq.msg_timeout = Duration::from_secs(3600),
                "nsq.msg_timeout: it cannot be longer than nsq.max_msg_timeout",
            ),
            (
                |c| c.nsq.max_req_timeout = Duration::from_millis(u64::MAX),
                "is too long: the longest is 8760h",
            ),
            (
                |c| c.nsq.max_body_size.0 = 1 << 31,
                "it cannot be above 2147483647",
            ),
            (
                |c| c.general.segment_bytes.0 = 65_535,
                "segment_bytes: it must be from 64KiB to 1GiB",
            ),
            (
                |c| c.kafka.partitions_default = 0,
                "kafka.partitions_default: it must be from 1 to 1024",
            ),
            (
                |c| c.kafka.partitions_default = 1025,
                "kafka.partitions_default: it must be from 1 to 1024",
            ),
            (
                |c| c.kafka.request_bytes_max.0 = 1 << 20,
                "kafka.request_bytes_max: it must exceed kafka.batch_bytes_max by 64KiB",
            ),
            (
                |c| c.kafka.batch_bytes_max.0 = 100 << 20,
                "kafka.request_bytes_max: it must exceed kafka.batch_bytes_max by 64KiB",
            ),
            (
                |c| c.general.http_connections_max = 0,
                "http_connections_max: it cannot be 0",
            ),
            (
                |c| c.general.compaction_interval = Duration::ZERO,
                "compaction_interval: it cannot be 0",
            ),
            (|c| c.general.partitions_max = 0, "partitions_max: it"),
            (|c| c.nsq.max_deflate_level = 10, "it must be from 1 to 9"),
            (
                |c| c.kafka.request_bytes_max.0 = 1 << 31,
                "kafka.request_bytes_max: it must be from 1 to 2147483647",
            ),
            (
                |c| c.kafka.session_timeout_min = Duration::from_secs(3600),
                "it cannot be longer than kafka.session_timeout_max",
            ),
            (|c| c.kafka.answers_max = 0, "kafka.answers_max: it cannot"),
            (|c| c.amqp.frame_bytes_max.0 = 100, "from 4KiB to 16MiB"),
            (
                |c| c.amqp.heartbeat = Duration::from_millis(1500),
                "amqp.heartbeat: it must be whole seconds",
            ),
            (
                |c| c.amqp.message_bytes_max.0 = 1 << 30,
                "amqp.message_bytes_max: it must be from 1 to 512MiB",
            ),
        ];
        for (change, sentence) in cases {
            let error = with(change).err().unwrap_or_default();
            assert!(error.contains(sentence), "{error}");
        }
    }
}
