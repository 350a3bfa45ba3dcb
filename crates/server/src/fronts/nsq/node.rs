//! The facts about this process that NSQ's HTTP interfaces and nsqlookupd show.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cloverleaf_nsq::http::nsqd::{Node, ProcessServices};
use cloverleaf_nsq::stats::MemoryStats;
use serde_json::{Value, json};

use super::{HTTP, TCP};
use crate::config::value::{TlsRequired, TlsVersion};
use crate::context::ServerContext;

/// This broker's names, ports and start time. A broadcast port that is not configured is the port
/// of the listening socket.
pub(crate) fn node(context: &ServerContext) -> Node {
    let nsq = &context.config.nsq;
    let port = |configured: u16, bound: Option<std::net::SocketAddr>| match configured {
        0 => bound.map_or(0, |address| address.port()),
        configured => configured,
    };
    let hostname = hostname();
    let broadcast_address = match nsq.broadcast_address.as_str() {
        "" => hostname.clone(),
        configured => configured.to_owned(),
    };
    Node {
        broadcast_address,
        hostname,
        tcp_port: port(nsq.broadcast_tcp_port, context.addresses.of(TCP)),
        http_port: port(nsq.broadcast_http_port, context.addresses.of(HTTP)),
        topology_zone: nsq.topology_zone.clone(),
        topology_region: nsq.topology_region.clone(),
        start_ns: context.started_ms.saturating_mul(1_000_000),
    }
}

/// The address from which nsqlookupd would see this broker connect: its TCP address, unless that is
/// a wildcard.
pub(crate) fn remote_address(context: &ServerContext) -> String {
    let node = node(context);
    match context.addresses.of(TCP) {
        Some(address) if !address.ip().is_unspecified() => address.to_string(),
        _ => format!("{}:{}", node.broadcast_address, node.tcp_port),
    }
}

/// The host name of this machine.
fn hostname() -> String {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let known = from_kernel.or_else(|| std::env::var("HOSTNAME").ok());
    let known = known
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty());
    known.unwrap_or_else(|| "localhost".to_owned())
}

/// The options that `GET /config/` shows, under nsqd's names and in its units: durations in
/// nanoseconds, sizes in bytes.
pub(crate) fn fixed_options(context: &ServerContext) -> Vec<(&'static str, Value)> {
    let nsq = &context.config.nsq;
    let node = node(context);
    let file = |path: &Option<std::path::PathBuf>| match path {
        Some(path) => Value::from(text(path)),
        None => Value::from(""),
    };
    vec![
        ("tcp_address", json!(nsq.tcp_address.0)),
        ("http_address", json!(nsq.http_address.0)),
        ("https_address", json!(nsq.https_address.0)),
        ("broadcast_address", json!(node.broadcast_address)),
        ("broadcast_tcp_port", json!(node.tcp_port)),
        ("broadcast_http_port", json!(node.http_port)),
        ("auth_http_addresses", json!(nsq.auth_http_address)),
        (
            "auth_http_request_method",
            json!(nsq.auth_http_request_method.to_string()),
        ),
        (
            "http_client_connect_timeout",
            ns(nsq.http_client_connect_timeout),
        ),
        (
            "http_client_request_timeout",
            ns(nsq.http_client_request_timeout),
        ),
        ("topology_region", json!(nsq.topology_region)),
        ("topology_zone", json!(nsq.topology_zone)),
        ("data_path", json!(text(&context.config.general.data_dir))),
        // nsqd has no such option. It tells a client what an OK promises.
        (
            "durability",
            json!(context.config.general.durability.to_string()),
        ),
        ("mem_queue_size", json!(nsq.mem_queue_size)),
        (
            "max_bytes_per_file",
            json!(context.config.general.segment_bytes.0),
        ),
        ("msg_timeout", ns(nsq.msg_timeout)),
        ("max_msg_timeout", ns(nsq.max_msg_timeout)),
        ("max_msg_size", json!(nsq.max_msg_size.0)),
        ("max_body_size", json!(nsq.max_body_size.0)),
        ("max_req_timeout", ns(nsq.max_req_timeout)),
        ("max_heartbeat_interval", ns(nsq.max_heartbeat_interval)),
        ("max_rdy_count", json!(nsq.max_rdy_count)),
        (
            "max_output_buffer_size",
            json!(nsq.max_output_buffer_size.0),
        ),
        (
            "max_output_buffer_timeout",
            ns(nsq.max_output_buffer_timeout),
        ),
        (
            "min_output_buffer_timeout",
            ns(nsq.min_output_buffer_timeout),
        ),
        ("output_buffer_timeout", ns(nsq.output_buffer_timeout)),
        ("max_channel_consumers", json!(nsq.max_channel_consumers)),
        ("tls_cert", file(&nsq.tls_cert)),
        ("tls_key", file(&nsq.tls_key)),
        (
            "tls_client_auth_policy",
            json!(nsq.tls_client_auth_policy.to_string()),
        ),
        ("tls_root_ca_file", file(&nsq.tls_root_ca_file)),
        ("tls_required", json!(tls_required_number(nsq.tls_required))),
        (
            "tls_min_version",
            json!(tls_version_number(nsq.tls_min_version)),
        ),
        ("deflate", json!(nsq.deflate)),
        ("max_deflate_level", json!(nsq.max_deflate_level)),
        ("snappy", json!(nsq.snappy)),
    ]
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn ns(duration: Duration) -> Value {
    json!(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// The numbers that nsqd shows: no, except for HTTP, yes.
fn tls_required_number(required: TlsRequired) -> u8 {
    match required {
        TlsRequired::No => 0,
        TlsRequired::TcpOnly => 1,
        TlsRequired::Yes => 2,
    }
}

/// The version numbers of the wire format, which Go shows.
fn tls_version_number(version: TlsVersion) -> u16 {
    match version {
        TlsVersion::Tls12 => 0x0303,
        TlsVersion::Tls13 => 0x0304,
    }
}

/// The facts about this process that the HTTP interfaces ask for.
pub(crate) fn surroundings(context: Arc<ServerContext>) -> Arc<dyn ProcessServices> {
    Arc::new(BrokerProcess { context })
}

struct BrokerProcess {
    context: Arc<ServerContext>,
}

impl ProcessServices for BrokerProcess {
    fn now_ns(&self) -> u64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }

    fn health(&self) -> Result<(), String> {
        let general = &self.context.config.general;
        let metrics = self.context.log.metrics();
        let reserve = general.disk_free_bytes_min.0;
        self.context
            .health
            .trouble(&metrics, &general.data_dir, reserve)
            .map_or(Ok(()), Err)
    }

    fn is_exiting(&self) -> bool {
        self.context.is_draining()
    }

    fn memory(&self) -> MemoryStats {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let heap_in_use_bytes = anonymous_bytes(&status).unwrap_or(0);
        MemoryStats {
            heap_in_use_bytes,
            ..MemoryStats::default()
        }
    }
}

/// Bytes of resident memory that no file backs, from the text of `/proc/self/status`.
fn anonymous_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernels_words() {
        assert_eq!(
            anonymous_bytes("VmRSS:\t 9 kB\nRssAnon:\t    1234 kB\n"),
            Some(1_263_616)
        );
        assert_eq!(anonymous_bytes("RssAnon: many"), None);
        assert_eq!(anonymous_bytes(""), None);
    }

    #[test]
    fn there_is_a_host_name() {
        assert!(!hostname().is_empty());
        assert!(!hostname().contains(char::is_whitespace));
    }
}
