//! `/stats` as text for people, in nsqd's layout (`printStats` in `nsqd/http.go`).

use std::fmt::{self, Write};

use jiff::Timestamp;

use crate::stats::clients::host_of;
use crate::stats::{ChannelStats, ClientStats, Latency, MemoryStats, StatsDocument, TopicStats};

/// Writes `document` as text.
///
/// `now_ns` and `start_ns` are nanoseconds since the Unix epoch; clients' ages and the uptime come
/// from them.
pub fn render(document: &StatsDocument, start_ns: u64, now_ns: u64) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_document(&mut out, document, start_ns, now_ns);
    out
}

fn write_document(
    out: &mut String,
    document: &StatsDocument,
    start_ns: u64,
    now_ns: u64,
) -> fmt::Result {
    let ours = env!("CARGO_PKG_VERSION");
    writeln!(out, "nsqd v{} (cloverleaf v{ours})", document.version)?;
    let started = Timestamp::from_second(document.start_time).unwrap_or_default();
    writeln!(out, "start_time {started}")?;
    writeln!(
        out,
        "uptime {}",
        go_duration(now_ns.saturating_sub(start_ns))
    )?;
    writeln!(out, "\nHealth: {}", document.health)?;
    if let Some(memory) = &document.memory {
        write_memory(out, memory)?;
    }
    let topics = document.topics.as_deref().unwrap_or_default();
    if topics.is_empty() {
        writeln!(out, "\nTopics: None")?
    } else {
        write!(out, "\nTopics:")?
    }
    let now_s = (now_ns / 1_000_000_000) as i64;
    for topic in topics {
        write_topic(out, topic, now_s)?;
    }
    let producers = document.producers.as_deref().unwrap_or_default();
    if producers.is_empty() {
        writeln!(out, "\nProducers: None")?
    } else {
        writeln!(out, "\nProducers:")?
    }
    for producer in producers {
        writeln!(out, "   {}", client_line(producer, now_s))?;
    }
    Ok(())
}

fn write_memory(out: &mut String, memory: &MemoryStats) -> fmt::Result {
    writeln!(out, "\nMemory:")?;
    for (name, value) in [
        ("heap_objects", memory.heap_objects),
        ("heap_idle_bytes", memory.heap_idle_bytes),
        ("heap_in_use_bytes", memory.heap_in_use_bytes),
        ("heap_released_bytes", memory.heap_released_bytes),
        ("gc_pause_usec_100", memory.gc_pause_usec_100),
        ("gc_pause_usec_99", memory.gc_pause_usec_99),
        ("gc_pause_usec_95", memory.gc_pause_usec_95),
        ("next_gc_bytes", memory.next_gc_bytes),
        ("gc_total_runs", u64::from(memory.gc_total_runs)),
    ] {
        writeln!(out, "   {name:<25}\t{value}")?;
    }
    Ok(())
}

fn write_topic(out: &mut String, topic: &TopicStats, now_s: i64) -> fmt::Result {
    writeln!(
        out,
        "\n{}[{:<15}] depth: {:<5} be-depth: {:<5} msgs: {:<8} e2e%: {}",
        if topic.paused { "*P " } else { "   " },
        topic.topic_name,
        topic.depth,
        topic.backend_depth,
        topic.message_count,
        latency(&topic.e2e_processing_latency),
    )?;
    for channel in &topic.channels {
        write_channel(out, channel, now_s)?;
    }
    Ok(())
}

fn write_channel(out: &mut String, channel: &ChannelStats, now_s: i64) -> fmt::Result {
    writeln!(
        out,
        "{}[{:<25}] depth: {:<5} be-depth: {:<5} inflt: {:<4} def: {:<4} re-q: {:<5} \
         timeout: {:<5} msgs: {:<8} e2e%: {}",
        if channel.paused { "   *P " } else { "      " },
        channel.channel_name,
        channel.depth,
        channel.backend_depth,
        channel.in_flight_count,
        channel.deferred_count,
        channel.requeue_count,
        channel.timeout_count,
        channel.message_count,
        latency(&channel.e2e_processing_latency),
    )?;
    for client in channel.clients.iter().flatten() {
        writeln!(out, "        {}", client_line(client, now_s))?;
    }
    Ok(())
}

/// One client on one line: its publishes if it has any, otherwise its figures as a consumer.
fn client_line(client: &ClientStats, now_s: i64) -> String {
    let connected = go_duration(seconds_between(client.connect_ts, now_s) * 1_000_000_000);
    let host = host_of(&client.remote_address);
    let port = client
        .remote_address
        .rsplit_once(':')
        .map_or(host, |(_, port)| port);
    let id = format!("{}:{port} {}", client.hostname, client.user_agent);
    let version = client.version;
    if client.pub_counts.is_empty() {
        return format!(
            "[{version} {id:<21}] state: {} inflt: {:<4} rdy: {:<4} fin: {:<8} re-q: {:<8} \
             msgs: {:<8} connected: {connected}",
            client.state,
            client.in_flight_count,
            client.ready_count,
            client.finish_count,
            client.requeue_count,
            client.message_count,
        );
    }
    let total: u64 = client.pub_counts.iter().map(|c| c.count).sum();
    let topics: Vec<String> = client
        .pub_counts
        .iter()
        .map(|c| format!("{}={}", c.topic, c.count))
        .collect();
    let topics = topics.join(",");
    format!("[{version} {id:<21}] msgs: {total:<8} topics: {topics} connected: {connected}")
}

fn seconds_between(from_s: i64, to_s: i64) -> u64 {
    u64::try_from(to_s.saturating_sub(from_s)).unwrap_or(0)
}

fn latency(latency: &Latency) -> String {
    let values = latency.percentiles.iter().flatten();
    let texts: Vec<String> = values.map(|quantile| human_ns(quantile.value)).collect();
    texts.join(", ")
}

/// A time of `ns` nanoseconds with one digit after the point, in s, ms, us or ns.
fn human_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns > 1e9 => (ns / 1e9, "s"),
        ns if ns > 1e6 => (ns / 1e6, "ms"),
        ns if ns > 1e3 => (ns / 1e3, "us"),
        ns => (ns, "ns"),
    };
    format!("{value:.1}{unit}")
}

/// A duration as Go prints one: `1h2m3.5s`, `1.5ms`, `0s`.
fn go_duration(ns: u64) -> String {
    let (seconds, below) = (ns / 1_000_000_000, ns % 1_000_000_000);
    if ns < 1_000_000_000 {
        return match ns {
            0 => "0s".to_owned(),
            1..1_000 => format!("{ns}ns"),
            1_000..1_000_000 => format!("{}µs", decimal(ns / 1_000, ns % 1_000, 3)),
            _ => format!("{}ms", decimal(ns / 1_000_000, ns % 1_000_000, 6)),
        };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let seconds = decimal(seconds % 60, below, 9);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `whole.fraction` with `digits` digits after the point, without trailing zeros.
fn decimal(whole: u64, fraction: u64, digits: usize) -> String {
    if fraction == 0 {
        return whole.to_string();
    }
    format!("{whole}.{fraction:0digits$}")
        .trim_end_matches('0')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{PubCount, Quantile};

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn an_empty_broker_says_so() {
        let mut document = StatsDocument::new("OK".into(), 1_700_000_000);
        let start_ns = 1_700_000_000 * SECOND_NS;
        let text = render(&document, start_ns, start_ns + 3_500_000_000);
        let (first, rest) = text.split_once('\n').unwrap_or_default();
        assert!(first.starts_with("nsqd v1.3.0 (cloverleaf v"), "{first}");
        assert_eq!(
            rest,
            "start_time 2023-11-14T22:13:20Z\nuptime 3.5s\n\nHealth: OK\n\nTopics: None\n\n\
             Producers: None\n"
        );
        document.memory = Some(MemoryStats {
            heap_in_use_bytes: 7,
            ..MemoryStats::default()
        });
        let text = render(&document, start_ns, start_ns);
        assert!(
            text.contains("\nMemory:\n   heap_objects             \t0\n"),
            "{text}"
        );
        assert!(text.contains("   heap_in_use_bytes        \t7\n"));
    }

    #[test]
    fn topics_channels_and_clients_stand_in_columns() {
        let consumer = ClientStats {
            hostname: "box".into(),
            remote_address: "127.0.0.1:50000".into(),
            user_agent: "go-nsq/1.1.0".into(),
            version: "V2",
            state: 3,
            in_flight_count: 1,
            ready_count: 2500,
            finish_count: 7,
            requeue_count: 1,
            message_count: 9,
            connect_ts: 100,
            ..ClientStats::default()
        };
        let producer = ClientStats {
            pub_counts: vec![
                PubCount {
                    topic: "a".into(),
                    count: 2,
                },
                PubCount {
                    topic: "b".into(),
                    count: 3,
                },
            ],
            ..consumer.clone()
        };
        let channel = ChannelStats {
            channel_name: "work".into(),
            depth: 12,
            backend_depth: 12,
            in_flight_count: 1,
            message_count: 20,
            clients: Some(vec![consumer]),
            paused: true,
            ..ChannelStats::default()
        };
        let topic = TopicStats {
            topic_name: "orders".into(),
            channels: vec![channel],
            message_count: 20,
            ..TopicStats::default()
        };
        let mut document = StatsDocument::new("OK".into(), 0);
        document.topics = Some(vec![topic]);
        document.producers = Some(vec![producer]);
        let text = render(&document, 0, 165 * SECOND_NS);
        let lines: Vec<&str> = text.lines().skip(6).collect();
        assert_eq!(
            lines,
            [
                "Topics:",
                "   [orders         ] depth: 0     be-depth: 0     msgs: 20       e2e%: ",
                "   *P [work                     ] depth: 12    be-depth: 12    inflt: 1    \
                 def: 0    re-q: 0     timeout: 0     msgs: 20       e2e%: ",
                "        [V2 box:50000 go-nsq/1.1.0] state: 3 inflt: 1    rdy: 2500 fin: 7        \
                 re-q: 1        msgs: 9        connected: 1m5s",
                "",
                "Producers:",
                "   [V2 box:50000 go-nsq/1.1.0] msgs: 5        topics: a=2,b=3 connected: 1m5s",
            ]
        );
    }

    #[test]
    fn quantiles_are_readable() {
        let quantile = |value| Quantile {
            quantile: 0.5,
            value,
        };
        let all = Latency {
            count: 4,
            percentiles: Some([12.0, 1_500.0, 2_500_000.0, 3.04e9].map(quantile).to_vec()),
        };
        assert_eq!(latency(&all), "12.0ns, 1.5us, 2.5ms, 3.0s");
    }

    #[test]
    fn durations_are_gos() {
        for (ns, text) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1.5µs"),
            (12_000_000, "12ms"),
            (SECOND_NS, "1s"),
            (61 * SECOND_NS, "1m1s"),
            (3_600 * SECOND_NS, "1h0m0s"),
            (3_661 * SECOND_NS + 1, "1h1m1.000000001s"),
        ] {
            assert_eq!(go_duration(ns), text);
        }
    }
}
