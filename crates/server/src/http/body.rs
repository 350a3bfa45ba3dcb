//! The body of an HTTP request, with a time limit.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::Sleep;

/// How long a whole body may take: at the default maximum of 5 MiB, the client needs no more than
/// 45 KB/s.
const BODY_MAX: Duration = Duration::from_secs(120);

/// Fails when the client takes too long in total, even if it sends all the time.
pub(crate) struct TimedBody {
    body: Incoming,
    /// Starts when the body is first waited for.
    limit: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, limit: None }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        let limit = self
            .limit
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(BODY_MAX)));
        limit
            .as_mut()
            .poll(cx)
            .map(|()| Some(Err("the body of the request took too long".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
