//! The threads that serve connections: one single-threaded runtime per core.
//!
//! A connection is handed to a core once and stays there: no other core ever touches its session,
//! its buffers or its probe.

pub(crate) mod balance;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::{io, thread};

use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::context::{CoreContext, ServerContext};
use crate::cores::balance::CoreLoad;
use crate::fronts::{AcceptedConnection, Front};
use crate::health::VitalThreadGuard;

/// A connection on its way from the acceptor to its core. The acceptor enforces `connections_max`,
/// which bounds the channel between them.
pub(crate) struct UnservedConnection {
    pub(crate) stream: std::net::TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) front: Arc<dyn Front>,
    /// Whether the connection speaks TLS from the first byte.
    pub(crate) is_tls: bool,
}

/// The acceptor's end of one core.
pub(crate) struct CoreHandle {
    pub(crate) sender: UnboundedSender<UnservedConnection>,
    pub(crate) load: Arc<CoreLoad>,
}

impl AsRef<CoreLoad> for CoreHandle {
    fn as_ref(&self) -> &CoreLoad {
        &self.load
    }
}

/// Starts the threads. They end when the [`CoreHandle`]s are dropped and their connections have
/// ended.
///
/// # Errors
/// A thread or its runtime cannot be made.
pub(crate) fn start(
    context: &Arc<ServerContext>,
    count: usize,
) -> io::Result<(Vec<CoreHandle>, Vec<JoinHandle<()>>)> {
    let mut cores = Vec::with_capacity(count);
    let (ready, started) = mpsc::channel();
    let mut threads = Vec::with_capacity(count);
    for core in 0..count {
        let runtime = Builder::new_current_thread();
        let (sender, receiver) = unbounded_channel();
        let load = Arc::new(CoreLoad::default());
        let context = CoreStart {
            context: Arc::clone(context),
            core,
            load: Arc::clone(&load),
            receiver,
            runtime,
            ready: ready.clone(),
        };
        let thread = thread::Builder::new().name(format!("core-{core}"));
        threads.push(thread.spawn(move || context.run())?);
        cores.push(CoreHandle { sender, load });
    }
    drop(ready);
    for started in started.iter().take(count) {
        // On an error the senders are dropped, which ends the threads that did start.
        started?;
    }
    Ok((cores, threads))
}

struct CoreStart {
    context: Arc<ServerContext>,
    core: usize,
    load: Arc<CoreLoad>,
    receiver: UnboundedReceiver<UnservedConnection>,
    runtime: Builder,
    /// Gets the outcome of the runtime's start, which is possible only on the core's own thread.
    ready: mpsc::Sender<io::Result<()>>,
}

impl CoreStart {
    fn run(mut self) {
        self.load.measure_this_thread();
        let _vital = VitalThreadGuard::new(&self.context, format!("core-{}", self.core));
        let runtime = self.runtime.enable_all();
        let runtime = match runtime.build_local(LocalOptions::default()) {
            Ok(runtime) => runtime,
            Err(error) => {
                // The receiver is `start`, which waits for it.
                let _ = self.ready.send(Err(error));
                return;
            }
        };
        let _ = self.ready.send(Ok(()));
        drop(self.ready);
        runtime.block_on(serve_core(
            Rc::new(CoreContext {
                server: self.context,
                core: self.core,
            }),
            self.receiver,
            self.load,
        ));
    }
}

async fn serve_core(
    core: Rc<CoreContext>,
    mut receiver: UnboundedReceiver<UnservedConnection>,
    load: Arc<CoreLoad>,
) {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            accepted = receiver.recv() => match accepted {
                Some(accepted) => {
                    let session = serve_one(accepted, Rc::clone(&core), Arc::clone(&load));
                    sessions.spawn_local(session);
                }
                None => break,
            },
            Some(ended) = sessions.join_next() => report(ended),
        }
    }
    let drained = async {
        while let Some(ended) = sessions.join_next().await {
            report(ended);
        }
    };
    let limit = core.server.config.general.drain_timeout;
    if timeout(limit, drained).await.is_err() {
        let (core, left) = (core.core, sessions.len());
        tracing::warn!(
            core,
            left,
            "connections did not finish in time and are cut off"
        );
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection ended by a fault of the broker; others go on");
    }
}

/// Subtracts the connection from its core's load when dropped, also after a panic or a
/// cancellation.
struct LoadGuard(Arc<CoreLoad>);

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}

async fn serve_one(accepted: UnservedConnection, core: Rc<CoreContext>, load: Arc<CoreLoad>) {
    let _release = LoadGuard(load);
    let UnservedConnection {
        stream,
        peer,
        front,
        is_tls,
    } = accepted;
    match TcpStream::from_std(stream) {
        Ok(stream) => {
            let accepted = AcceptedConnection {
                stream,
                peer,
                is_tls,
                core,
            };
            front.serve(accepted).await;
        }
        Err(error) => tracing::warn!(%peer, %error, "a connection cannot be served"),
    }
}
