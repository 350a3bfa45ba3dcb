//! Requests from web pages: a page of another site must not publish or delete anything in a broker
//! that the visitor's browser can reach.
//!
//! Browsers add `Origin` to every request by which a page could change something. If a page's site
//! name is resolved to the broker's address (DNS rebinding), `Host` has the site's name. Programs
//! send neither.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};

/// Whether a web page asks for a change.
pub(crate) fn is_change_by_page(request: &Request) -> bool {
    let method = request.method();
    let reads = [Method::GET, Method::HEAD].contains(method);
    !reads && request.headers().contains_key(header::ORIGIN)
}

/// Whether `Host` is neither an IP address nor `localhost`.
pub(crate) fn is_host_foreign(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return false;
    };
    let host = host.to_str().unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name != "localhost" && address.parse::<IpAddr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_no_foreign_hosts() {
        let foreign = |host: &'static str| {
            let host = header::HeaderValue::from_static(host);
            is_host_foreign(&HeaderMap::from_iter([(header::HOST, host)]))
        };
        for host in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "localhost:80",
            "localhost",
        ] {
            assert!(!foreign(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
        ] {
            assert!(foreign(host), "{host}");
        }
    }
}
