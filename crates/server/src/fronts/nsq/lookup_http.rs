//! nsqlookupd's HTTP interface on axum, answered by
//! [`LookupHttp`](cloverleaf_nsq::lookup::http::LookupHttp).

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use cloverleaf_broker::Realm;
use cloverleaf_nsq::lookup::http::LookupHttp;

use super::http::{discard, head, into_axum};
use super::{NsqFront, node};
use crate::context::ServerContext;

/// The lookup interface, with which no nsqlookupd is necessary.
pub(super) fn router(front: &NsqFront, context: Arc<ServerContext>) -> Router {
    let api = Arc::new(LookupHttp::new(
        Realm::unrestricted(context.broker.clone()),
        Arc::clone(&front.channel_policy),
        node::node(&context),
        node::remote_address(&context),
    ));
    let surroundings = node::surroundings(context);
    let serve = move |request: Request| {
        let (api, surroundings) = (Arc::clone(&api), Arc::clone(&surroundings));
        async move {
            let (parts, body) = request.into_parts();
            discard(body).await;
            let response = api.answer(head(&parts), surroundings.now_ns());
            tracing::debug!(
                status = response.status, method = %parts.method, uri = %parts.uri, "NSQ lookup"
            );
            into_axum(response)
        }
    };
    Router::new().fallback(serve)
}
