//! The thread of all HTTP interfaces, apart from the cores that move messages: a large answer to a
//! monitoring system must not hold up a delivery. Kafka's groups are told the time here.

use std::net::TcpListener;
use std::sync::Arc;
use std::{io, thread};

use axum::Router;
use axum::http::{StatusCode, header};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::config_value::TlsRequired;
use crate::context::ServerContext;
use crate::fronts::{kafka, nsq};
use crate::http_listener::HttpListener;
use crate::web_pages::refuse_on_nsq;
use crate::{admin, timeline};

/// The listening sockets of the HTTP interfaces.
#[derive(Debug, Default)]
pub(crate) struct HttpListeners {
    pub(crate) admin: Option<TcpListener>,
    pub(crate) nsq: Option<TcpListener>,
    pub(crate) nsq_tls: Option<TcpListener>,
    pub(crate) nsq_lookup: Option<TcpListener>,
}

/// Starts the thread; it ends when the broker drains.
///
/// # Errors
/// The thread or its runtime cannot be made.
pub(crate) fn start(
    context: &Arc<ServerContext>,
    listeners: HttpListeners,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let interfaces = {
        let _runtime = runtime.enter();
        interfaces(context, listeners)?
    };
    let context = Arc::clone(context);
    thread::Builder::new()
        .name("http".to_owned())
        .spawn(move || runtime.block_on(serve_all(context, interfaces)))
}

/// What is listened on, with what answers there. Must be called within the runtime.
fn interfaces(
    context: &Arc<ServerContext>,
    listeners: HttpListeners,
) -> io::Result<Vec<HttpListener>> {
    let nsq = nsq::http::router(Arc::clone(context));
    let plain_nsq = match context.config.nsq.tls_required {
        TlsRequired::Yes => tls_required_router(context),
        TlsRequired::No | TlsRequired::TcpOnly => nsq.clone(),
    };
    let lookup = nsq::lookup_http::router(Arc::clone(context));
    let addresses = &context.addresses;
    let plain_nsq = refuse_on_nsq(plain_nsq, addresses.nsq_http);
    let nsq = refuse_on_nsq(nsq, addresses.nsq_https);
    let lookup = refuse_on_nsq(lookup, addresses.nsq_lookup_http);
    // Who publishes is watched, who asks is not.
    let all = [
        (
            listeners.admin,
            admin::router(Arc::clone(context)),
            None,
            false,
        ),
        (listeners.nsq, plain_nsq, None, true),
        (listeners.nsq_tls, nsq, context.tls.clone(), true),
        (listeners.nsq_lookup, lookup, None, false),
    ];
    let mut interfaces = Vec::new();
    for (listener, router, tls, is_watched) in all {
        if let Some(listener) = listener {
            interfaces.push(HttpListener {
                listener: tokio::net::TcpListener::from_std(listener)?,
                router,
                tls,
                is_watched,
            });
        }
    }
    Ok(interfaces)
}

async fn serve_all(context: Arc<ServerContext>, interfaces: Vec<HttpListener>) {
    let mut servers = JoinSet::new();
    for interface in interfaces {
        servers.spawn(interface.serve(Arc::clone(&context)));
    }
    servers.spawn(nsq::lookup_peer::run(Arc::clone(&context)));
    servers.spawn(kafka::groups::run(Arc::clone(&context)));
    servers.spawn(timeline::run(Arc::clone(&context)));
    context.drained().await;
    let limit = context.config.general.drain_timeout;
    let ended = timeout(limit, async {
        while servers.join_next().await.is_some() {}
    });
    if ended.await.is_err() {
        tracing::warn!("HTTP requests did not finish in time and are cut off");
    }
}

/// What plain HTTP is answered when TLS is required, as nsqd answers it.
fn tls_required_router(context: &ServerContext) -> Router {
    let port = context
        .addresses
        .nsq_https
        .map_or(0, |address| address.port());
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
