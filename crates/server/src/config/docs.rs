//! The documentation of the options, generated from their definitions.

use std::fmt::Write as _;

use cloverleaf_telemetry::Protocol;

use crate::config::options::{OPTIONS, OptionDef};

/// Maximum columns of a line of prose.
const COLUMNS_MAX: usize = 100;

const HEAD: &str = "\
# Options

This file is generated from the definitions of the options; `cloverleaf options` prints it.

Every option can be given as a flag of `cloverleaf serve`, as an environment variable or in the
configuration file. Flags go before the environment, the environment before the file, and the file
before the defaults. The file is named by `--config FILE` or `CLOVERLEAF_CONFIG`; it is TOML, and a
key that does not exist is an error:

```toml
data_dir = \"/var/lib/cloverleaf\"
durability = \"disk\"

[nsq]
tcp_address = \"127.0.0.1:4150\"
lookupd_tcp_address = [\"127.0.0.1:4160\"]
msg_timeout = \"30s\"

# After 5 attempts, messages of the channel `billing` of the topic `orders` go to `orders.lost`.
[nsq.dead_letter.\"orders/billing\"]
attempts_max = 5
topic = \"orders.lost\"
```

- **size**: bytes (`1048576`) or a number with `KiB`, `MiB` or `GiB`.
- **duration**: a number with `ms`, `s`, `m`, `h` or `d`, or several of them (`1h30m`).
- **address**: `host:port`; port 0 takes any free port; empty means off.
- **list of texts**: an array in the file; repeat the flag, or separate by commas.

Listening on an address that other machines can reach is refused unless clients must authenticate
there, or `--allow-anonymous-remote` says that all who can reach it are trusted.
";

const DEAD_LETTERS: &str = "
### Dead letters of single topics and channels

Tables `[nsq.dead_letter.\"TOPIC\"]` and `[nsq.dead_letter.\"TOPIC/CHANNEL\"]` of the file, with the
keys `attempts_max` and `topic`, go before `nsq.attempts_max` and `nsq.dead_letter_topic`; the
channel's table goes before the topic's.
";

const KAFKA_ADDRESSES: &str = "
### Kafka from another machine, through a port forward, in a container

A Kafka client connects twice: to the address that it was given, and then to the one that the broker
tells it. Without `kafka.advertised_address` each client is told the address that it has reached,
so that nothing is to be configured where the broker has an address of its own. Where the client's
way leads through something that changes addresses, say where it begins:

```sh
# Another machine reaches 192.0.2.7 directly: it is told 192.0.2.7:9092.
cloverleaf serve --kafka-address 0.0.0.0:9092 --allow-anonymous-remote

# ssh -L 19092:127.0.0.1:9092 server: programs beside the ssh use localhost:19092.
cloverleaf serve --kafka-advertised-address localhost:19092

# docker run -p 9092:9092: in the container no address is the one that programs outside use.
cloverleaf serve --kafka-address 0.0.0.0:9092 --allow-anonymous-remote \\
    --kafka-advertised-address localhost:9092
```

Two ways at once, such as `localhost` outside and a service name inside of a container network, need
two listeners: give the one with TLS its own `kafka.advertised_tls_address`.
";

/// The heading of a section; `None` for the options of the whole broker.
pub(crate) fn heading(section: &str) -> Option<&'static str> {
    let protocol: Protocol = section.parse().ok()?;
    Some(protocol.traits().title)
}

/// nsqd's flags that no option mirrors, and the reason or the replacement.
const LEFT_OUT: &str = "\
--config | `--config`, with the keys of this page
--e2e-processing-latency-percentile | `cloverleaf_ack_latency_seconds` of `/metrics`
--e2e-processing-latency-window-time | left to the monitoring system that reads `/metrics`
--enable-experiment | none: topology-aware consumption is not offered
--log-prefix | none: log lines say what they are about
--node-id | none: message ids are offsets in the log, unique without it
--queue-scan-selection-count | none: deadlines are kept in order, not searched for
--queue-scan-worker-pool-max | none: deadlines are kept in order, not searched for
--statsd-address | none: `/metrics` has the same numbers for Prometheus
--statsd-exclude-ephemeral | none, as `--statsd-address`
--statsd-interval | none, as `--statsd-address`
--statsd-mem-stats | none, as `--statsd-address`
--statsd-prefix | none, as `--statsd-address`
--statsd-udp-packet-size | none, as `--statsd-address`
--sync-timeout | none: the log hands everything to the disk within a second
--verbose | `--log-level debug`
--version | `cloverleaf --version`
--worker-id | none, as `--node-id`";

/// The text of `docs/options.md`.
pub fn options_markdown() -> String {
    let mut text = HEAD.to_owned();
    let mut section = None;
    for option in OPTIONS {
        if section != Some(option.section) {
            section = Some(option.section);
            // A text that belongs at the end of the section before this one.
            match option.section {
                "kafka" => text.push_str(DEAD_LETTERS),
                "amqp" => text.push_str(KAFKA_ADDRESSES),
                _ => {}
            }
            let title = heading(option.section).unwrap_or("The broker");
            // Writing to a string cannot fail, so the results are dropped here and below.
            let _ = write!(text, "\n## {title}\n");
        }
        describe(&mut text, option);
    }
    text.push_str("\n## nsqd's flags and where they went\n\n| nsqd | here |\n|---|---|\n");
    for (flag, here) in nsqd_flags() {
        let _ = writeln!(text, "| `{flag}` | {here} |");
    }
    text
}

fn describe(text: &mut String, option: &OptionDef) {
    let default = match option.default {
        "" => "none".to_owned(),
        default => format!("`{default}`"),
    };
    let _ = write!(
        text,
        "\n### `{}`\n\n{}\n\n- {}, default {default}\n- `--{}`, `{}`\n",
        option.name(),
        cloverleaf_page::wrap(option.doc, COLUMNS_MAX).join("\n"),
        option.kind,
        option.flag(),
        option.variable(),
    );
    if !option.mirrors.is_empty() {
        let _ = writeln!(text, "- as `{}`", option.mirrors);
    }
}

/// All flags of nsqd 1.3 in alphabetical order, each with its replacement.
fn nsqd_flags() -> Vec<(String, String)> {
    let left_out = LEFT_OUT.lines().filter_map(|line| line.split_once(" | "));
    let mut flags: Vec<(String, String)> = left_out
        .map(|(flag, here)| (flag.to_owned(), here.to_owned()))
        .collect();
    for option in OPTIONS {
        let Some(flag) = option.mirrors.strip_prefix("nsqd ") else {
            continue;
        };
        let here = format!("`--{}`", option.flag());
        match flags.iter_mut().find(|(known, _)| known == flag) {
            Some((_, other)) => *other = format!("{other}, {here}"),
            None => flags.push((flag.to_owned(), here)),
        }
    }
    flags.sort();
    flags
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_committed_page_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/options.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        let generated = options_markdown();
        assert!(
            committed == generated,
            "docs/options.md is out of date; write it anew with\n\
             cargo run -p cloverleaf -- options > docs/options.md"
        );
    }

    #[test]
    fn every_flag_of_nsqd_is_accounted_for() {
        // The flags of nsqd 1.3.0, from `nsqd --help`.
        let nsqd = "auth-http-address auth-http-request-method broadcast-address \
            broadcast-http-port broadcast-tcp-port config data-path deflate \
            e2e-processing-latency-percentile e2e-processing-latency-window-time \
            enable-experiment http-address http-client-connect-timeout \
            http-client-request-timeout https-address log-level log-prefix lookupd-tcp-address \
            max-body-size max-bytes-per-file max-channel-consumers max-deflate-level \
            max-heartbeat-interval max-msg-size max-msg-timeout max-output-buffer-size \
            max-output-buffer-timeout max-rdy-count max-req-timeout mem-queue-size \
            min-output-buffer-timeout msg-timeout node-id output-buffer-timeout \
            queue-scan-selection-count queue-scan-worker-pool-max snappy statsd-address \
            statsd-exclude-ephemeral statsd-interval statsd-mem-stats statsd-prefix \
            statsd-udp-packet-size sync-every sync-timeout tcp-address tls-cert \
            tls-client-auth-policy tls-key tls-min-version tls-required tls-root-ca-file \
            topology-region topology-zone verbose version worker-id";
        let listed: Vec<String> = nsqd_flags().into_iter().map(|(flag, _)| flag).collect();
        let expected: Vec<String> = nsqd
            .split_whitespace()
            .map(|flag| format!("--{flag}"))
            .collect();
        assert_eq!(listed, expected);
    }
}
