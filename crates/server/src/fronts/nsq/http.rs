//! NSQ's HTTP interface on axum: carries requests to
//! [`NsqdHttp`](cloverleaf_nsq::http_nsqd::NsqdHttp) and its answers back.
//!
//! A body is read no further than the request may need, whatever `Content-Length` says, and a
//! client that stops sending is given up.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode, request};
use bytes::{Bytes, BytesMut};
use cloverleaf_nsq::http::{Content, NSQ_CONTENT_TYPE, NSQ_CONTENT_TYPE_NAME, Response};
use cloverleaf_nsq::http_nsqd::{BodyError, NsqdHttp, RequestHead};
use tokio::time::timeout;

use crate::context::ServerContext;
use crate::fronts::nsq::node;

/// How long a client may pause within a body: nsqd's client timeout.
const BODY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Bytes of an unwanted body that are read and thrown away, so that the client gets to see the
/// answer instead of a reset connection. Go's server, and so nsqd, has the same limit.
const DISCARD_BYTES_MAX: usize = 256 * 1024;

/// NSQ's HTTP interface, for plain and TLS listeners alike.
pub(crate) fn router(context: Arc<ServerContext>) -> Router {
    let api = Arc::new(NsqdHttp {
        broker: context.broker.clone(),
        clients: Arc::clone(&context.nsq_clients),
        options: Arc::clone(&context.nsq),
        channel_policy: Arc::clone(&context.nsq_channel_policy),
        node: node::node(&context),
        runtime: Arc::clone(&context.nsq_runtime),
        fixed_options: node::fixed_options(&context),
        surroundings: node::surroundings(context),
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

/// The head of a request as the NSQ crate takes it.
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
                // Trailers are of no interest.
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

/// Reads what is left of a body that nobody wants, up to a limit.
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

/// An answer of the NSQ crate as axum takes it.
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
