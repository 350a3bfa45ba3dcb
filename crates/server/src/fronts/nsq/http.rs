//! NSQ's HTTP interface on axum: passes requests to
//! [`NsqdHttp`](cloverleaf_nsq::http::nsqd::NsqdHttp) and returns its answers.
//!
//! A body is read only as far as the request may need, whatever `Content-Length` is, and a client
//! that stops sending gets an error.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode, header, request};
use axum::middleware::{Next, from_fn};
use bytes::{Bytes, BytesMut};
use cloverleaf_broker::Realm;
use cloverleaf_nsq::http::nsqd::{BodyError, NsqdHttp, RequestHead};
use cloverleaf_nsq::http::{Content, HttpError, NSQ_CONTENT_TYPE, NSQ_CONTENT_TYPE_NAME, Response};
use tokio::time::timeout;

use super::{HTTP, HTTPS, LOOKUP_HTTP, NsqFront, lookup_http, node};
use crate::config::value::TlsRequired;
use crate::context::ServerContext;
use crate::fronts::HttpDoor;
use crate::http::web_pages::{is_change_by_page, is_host_foreign};

/// How long a client may pause within a body: nsqd's client timeout.
const BODY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Bytes of an unwanted body that are read and dropped, so that the client receives the answer
/// instead of a reset connection. Go's server, and so nsqd, has the same limit.
const DISCARD_BYTES_MAX: usize = 256 * 1024;

/// All of NSQ's HTTP interfaces.
pub(super) fn doors(front: &NsqFront, context: &Arc<ServerContext>) -> Vec<HttpDoor> {
    let nsq = router(front, Arc::clone(context));
    let plain = match context.config.nsq.tls_required {
        TlsRequired::Yes => tls_required_router(context),
        TlsRequired::No | TlsRequired::TcpOnly => nsq.clone(),
    };
    let lookup = lookup_http::router(front, Arc::clone(context));
    // The doctor watches connections that publish, not those that look topics up.
    let all = [
        (HTTP, plain, None, true),
        (HTTPS, nsq, front.tls.clone(), true),
        (LOOKUP_HTTP, lookup, None, false),
    ];
    let doors = all.map(|(option, router, tls, is_watched)| HttpDoor {
        option,
        router: refuse_web_pages(router, context.addresses.of(option)),
        tls,
        is_watched,
    });
    doors.into()
}

/// nsqd's answer to plain HTTP when TLS is required.
fn tls_required_router(context: &ServerContext) -> Router {
    let https = context.addresses.of(HTTPS);
    let port = https.map_or(0, |address| address.port());
    let body = format!("{{\"message\": \"TLS_REQUIRED\", \"https_port\": {port}}}");
    Router::new().fallback(move || {
        let body = body.clone();
        async move {
            let kind = (
                header::CONTENT_TYPE.as_str(),
                "application/json; charset=utf-8",
            );
            (
                StatusCode::FORBIDDEN,
                [("X-NSQ-Content-Type", "nsq; version=1.0"), kind],
                body,
            )
        }
    })
}

/// Refuses requests from web pages of other sites. Clients reach an address that other machines can
/// reach by any name of a machine or container, so `Host` cannot be checked there. A loopback
/// address has no name but `localhost`: any other `Host` comes from a web page (DNS rebinding).
fn refuse_web_pages(router: Router, address: Option<SocketAddr>) -> Router {
    let is_local = address.is_some_and(|address| address.ip().to_canonical().is_loopback());
    router.layer(from_fn(move |request: Request, next: Next| async move {
        // `/ping` reveals nothing, and monitoring systems may call it by any name.
        let is_public = request.uri().path() == "/ping";
        let is_foreign = is_local && !is_public && is_host_foreign(request.headers());
        if is_foreign || is_change_by_page(&request) {
            return into_axum(HttpError::WebPage.response());
        }
        next.run(request).await
    }))
}

/// NSQ's HTTP interface, for plain and TLS listeners alike.
fn router(front: &NsqFront, context: Arc<ServerContext>) -> Router {
    let api = Arc::new(NsqdHttp {
        realm: Realm::unrestricted(context.broker.clone()),
        clients: Arc::clone(&front.clients),
        options: Arc::clone(&front.options),
        channel_policy: Arc::clone(&front.channel_policy),
        node: node::node(&context),
        runtime: Arc::clone(&front.runtime),
        fixed_options: node::fixed_options(&context),
        services: node::surroundings(context),
    });
    let serve = move |request: Request| {
        let api = Arc::clone(&api);
        async move { serve(&api, request).await }
    };
    Router::new().fallback(serve)
}

async fn serve(api: &NsqdHttp, request: Request) -> axum::response::Response {
    let (parts, body) = request.into_parts();
    let response = match api.begin(head(&parts)) {
        Ok(pending) => {
            let body = read_body(body, pending.body_bytes_max).await;
            api.finish(pending, body).await
        }
        Err(response) => {
            discard(body).await;
            response
        }
    };
    tracing::debug!(status = response.status, method = %parts.method, uri = %parts.uri, "NSQ HTTP");
    into_axum(response)
}

/// The head of a request in the form that the NSQ crate takes.
pub(crate) fn head(parts: &request::Parts) -> RequestHead<'_> {
    let length = parts
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok());
    RequestHead {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or_default(),
        content_length: length.and_then(|length| length.parse().ok()),
    }
}

/// The next piece of a body; `None` at its end.
async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        match timeout(BODY_PAUSE_MAX, frame).await {
            Ok(Some(Ok(frame))) => {
                // Trailers are ignored.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) | Err(_) => return Err(BodyError::Broken),
        }
    }
}

/// Reads a body of at most `bytes_max` bytes.
pub(crate) async fn read_body(mut body: Body, bytes_max: usize) -> Result<Bytes, BodyError> {
    let Some(first) = next_piece(&mut body).await? else {
        return Ok(Bytes::new());
    };
    if first.len() > bytes_max {
        return Err(BodyError::TooLong);
    }
    let mut whole = None::<BytesMut>;
    while let Some(piece) = next_piece(&mut body).await? {
        // Most bodies come in one piece and are not copied.
        let whole = whole.get_or_insert_with(|| BytesMut::from(first.as_ref()));
        if whole.len() + piece.len() > bytes_max {
            discard(body).await;
            return Err(BodyError::TooLong);
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.map_or(first, BytesMut::freeze))
}

/// Reads and drops the rest of an unwanted body, up to a limit.
pub(crate) async fn discard(mut body: Body) {
    let announced = body.size_hint().lower();
    if announced > DISCARD_BYTES_MAX as u64 {
        return;
    }
    let mut bytes = 0;
    while let Ok(Some(piece)) = next_piece(&mut body).await {
        bytes += piece.len();
        if bytes > DISCARD_BYTES_MAX {
            return;
        }
    }
}

/// An answer of the NSQ crate, for axum.
pub(crate) fn into_axum(response: Response) -> axum::response::Response {
    let content_type = response.content_type();
    let mut out = axum::response::Response::new(Body::from(response.body));
    *out.status_mut() =
        StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(published) = response.published {
        out.extensions_mut().insert(published);
    }
    let headers = out.headers_mut();
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    if response.content != Content::Plain {
        headers.insert(
            NSQ_CONTENT_TYPE_NAME,
            HeaderValue::from_static(NSQ_CONTENT_TYPE),
        );
    }
    if !response.allow.is_empty() {
        headers.insert(ALLOW, HeaderValue::from_static(response.allow));
    }
    out
}
