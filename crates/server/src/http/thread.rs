//! The thread of all HTTP interfaces, apart from the cores that move messages: a large answer to a
//! monitoring system must not delay a delivery. The timers of Kafka's groups also run here.

use std::sync::Arc;
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::context::ServerContext;
use crate::fronts::HttpDoor;
use crate::http::listener::HttpListener;
use crate::listener::{ADMIN, BoundDoor};
use crate::{admin, timeline};

/// Starts the thread; it ends when the broker drains.
///
/// # Errors
/// The thread or its runtime cannot be made.
pub(crate) fn start(
    context: &Arc<ServerContext>,
    listeners: Vec<BoundDoor>,
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

/// The HTTP listeners, each with its router. Must be called within the runtime.
fn interfaces(
    context: &Arc<ServerContext>,
    listeners: Vec<BoundDoor>,
) -> io::Result<Vec<HttpListener>> {
    let admin = HttpDoor {
        option: ADMIN,
        router: admin::router(context),
        tls: None,
        is_watched: false,
    };
    let fronts = context.fronts.iter();
    let fronts = fronts.flat_map(|front| Arc::clone(front).http(context));
    let mut doors: Vec<HttpDoor> = std::iter::once(admin).chain(fronts).collect();
    let mut interfaces = Vec::new();
    for bound in listeners {
        let Some(at) = doors.iter().position(|door| door.option == bound.option) else {
            continue;
        };
        let door = doors.swap_remove(at);
        interfaces.push(HttpListener {
            listener: tokio::net::TcpListener::from_std(bound.listener)?,
            router: door.router,
            tls: door.tls,
            is_watched: door.is_watched,
        });
    }
    Ok(interfaces)
}

async fn serve_all(context: Arc<ServerContext>, interfaces: Vec<HttpListener>) {
    let mut servers = JoinSet::new();
    for interface in interfaces {
        servers.spawn(interface.serve(Arc::clone(&context)));
    }
    for front in &context.fronts {
        for task in Arc::clone(front).tasks(&context) {
            servers.spawn(task);
        }
    }
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
