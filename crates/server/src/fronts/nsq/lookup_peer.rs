//! Registration with nsqlookupd processes: one connection to each, as long as the broker runs.
//!
//! The protocol is in [`LookupPeer`]; here are the sockets and the clock. The addresses can change
//! at any time through `PUT /config/nsqlookupd_tcp_addresses`. New topics get the channels that the
//! nsqlookupd processes know: see [`lookup_channels`](super::lookup_channels).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cloverleaf_broker::Realm;
use cloverleaf_nsq::COMPATIBLE_VERSION;
use cloverleaf_nsq::lookup::definitions::registrations;
use cloverleaf_nsq::lookup::peer::{LookupPeer, PeerError};
use cloverleaf_nsq::lookup::protocol::{LookupIdentity, LookupdInfo, Registration};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, interval_at, sleep, sleep_until, timeout};

use super::lookup_channels::NewTopics;
use super::{NsqFront, node};
use crate::context::ServerContext;

/// The interval of pings, as in nsqd.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// How long a connection may take to be made, as in nsqd.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long nsqlookupd may leave a command without any answer. nsqd waits for 1 s; a busy machine
/// can take longer, and nothing waits for this meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after the first failed attempt; each further one doubles it.
const BACK_OFF_MIN: Duration = Duration::from_secs(1);

/// Maximum pause: nsqd tries again with each ping.
const BACK_OFF_MAX: Duration = PING_INTERVAL;

/// Changes within this time after a change are sent together: finding out what has changed costs
/// more with more topics.
const CHANGES_INTERVAL: Duration = Duration::from_millis(5);

/// The registrations that all nsqlookupd processes should have.
type DesiredRegistrations = Arc<BTreeSet<Registration>>;

/// The facts that the connected nsqlookupd processes reported about themselves, by address.
pub(crate) type Lookupds = Arc<Mutex<BTreeMap<String, LookupdInfo>>>;

/// Why a connection to an nsqlookupd ended.
#[derive(Debug, Error)]
enum ConnectionEnd {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    ConnectTimeout,
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
    #[error("closed by nsqlookupd")]
    Closed,
    #[error("no answer within {ANSWER_TIMEOUT:?}")]
    AnswerTimeout,
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Keeps all nsqlookupd processes informed until the broker shuts down.
pub(super) async fn run(front: Arc<NsqFront>, context: Arc<ServerContext>) {
    let (sender, mut addresses) = watch::channel(front.runtime.values());
    front.runtime.on_change(move |values| {
        sender.send_replace(values.clone());
    });
    let defined = Arc::new(Notify::new());
    let signal = Arc::clone(&defined);
    context.broker.on_change(move || signal.notify_one());
    let mut peers = LookupdPeers::new(front, Arc::clone(&context));
    loop {
        let wanted = addresses.borrow_and_update().lookupd_tcp_addresses.clone();
        peers.set_addresses(&wanted);
        tokio::select! {
            () = context.drained() => return,
            changed = addresses.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = defined.notified() => {
                peers.definitions_changed();
                sleep(CHANGES_INTERVAL).await;
            }
        }
    }
}

/// One task per address. Dropping this ends the tasks, and so closes the connections.
struct LookupdPeers {
    context: Arc<ServerContext>,
    identity: LookupIdentity,
    lookupds: Lookupds,
    wanted: watch::Sender<DesiredRegistrations>,
    new_topics: NewTopics,
    running: BTreeMap<String, AbortHandle>,
    tasks: JoinSet<()>,
}

impl LookupdPeers {
    fn new(front: Arc<NsqFront>, context: Arc<ServerContext>) -> LookupdPeers {
        let node = node::node(&context);
        let identity = LookupIdentity {
            broadcast_address: node.broadcast_address,
            hostname: node.hostname,
            http_port: node.http_port,
            tcp_port: node.tcp_port,
            topology_region: node.topology_region,
            topology_zone: node.topology_zone,
            version: COMPATIBLE_VERSION.to_owned(),
        };
        let lookupds = Lookupds::default();
        LookupdPeers {
            new_topics: NewTopics::new(front, Arc::clone(&context), Arc::clone(&lookupds)),
            wanted: watch::Sender::new(DesiredRegistrations::default()),
            context,
            identity,
            lookupds,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    fn set_addresses(&mut self, addresses: &[String]) {
        let lookupds = &self.lookupds;
        self.running.retain(|address, task| {
            let stays = addresses.contains(address);
            if !stays {
                tracing::info!(%address, "no longer registering with this nsqlookupd");
                task.abort();
                lookupds.lock().remove(address);
            }
            stays
        });
        // Only aborted tasks are finished: the others run until the broker ends.
        while self.tasks.try_join_next().is_some() {}
        for address in addresses {
            if self.running.contains_key(address) {
                continue;
            }
            if self.running.is_empty() {
                self.wanted
                    .send_replace(Arc::new(registrations(&Realm::unrestricted(
                        self.context.broker.clone(),
                    ))));
                self.new_topics.skip();
            }
            let task = keep_connected(
                address.clone(),
                self.identity.clone(),
                self.wanted.subscribe(),
                Arc::clone(&self.lookupds),
            );
            self.running.insert(address.clone(), self.tasks.spawn(task));
        }
    }

    fn definitions_changed(&mut self) {
        if self.running.is_empty() {
            return;
        }
        self.wanted
            .send_replace(Arc::new(registrations(&Realm::unrestricted(
                self.context.broker.clone(),
            ))));
        self.new_topics.ask();
    }
}

/// Connects to one nsqlookupd again and again.
async fn keep_connected(
    address: String,
    identity: LookupIdentity,
    mut wanted: watch::Receiver<DesiredRegistrations>,
    lookupds: Lookupds,
) {
    let mut peer = LookupPeer::new();
    let mut back_off = BACK_OFF_MIN;
    loop {
        let end = run_connection(&address, &identity, &mut peer, &mut wanted, &lookupds).await;
        peer.disconnected();
        if lookupds.lock().remove(&address).is_some() {
            back_off = BACK_OFF_MIN;
        }
        if let Err(reason) = end {
            tracing::warn!(%address, %reason, retry_in = ?back_off, "nsqlookupd");
        }
        sleep(back_off).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

/// One connection from its start to its end, which is always an error while the broker runs.
async fn run_connection(
    address: &str,
    identity: &LookupIdentity,
    peer: &mut LookupPeer,
    wanted: &mut watch::Receiver<DesiredRegistrations>,
    lookupds: &Lookupds,
) -> Result<(), ConnectionEnd> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let connected = connecting.map_err(|_| ConnectionEnd::ConnectTimeout)?;
    let mut stream = connected.map_err(ConnectionEnd::Connect)?;
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = stream.split();
    peer.connected(identity);
    peer.set_wanted(wanted.borrow_and_update().clone());
    let mut ping = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    let mut last_heard = Instant::now();
    let mut buffer = vec![0; 4096];
    loop {
        while let Some(output) = peer.take_output() {
            let writing = timeout(ANSWER_TIMEOUT, writer.write_all(&output)).await;
            writing.map_err(|_| ConnectionEnd::AnswerTimeout)??;
            last_heard = Instant::now();
        }
        tokio::select! {
            read = reader.read(&mut buffer) => {
                let count = read?;
                if count == 0 {
                    return Err(ConnectionEnd::Closed);
                }
                last_heard = Instant::now();
                let was_unknown = peer.info().is_none();
                peer.receive(&buffer[..count])?;
                if let Some(info) = peer.info().filter(|_| was_unknown) {
                    let version = info.version.as_str();
                    tracing::info!(%address, version, "registering with nsqlookupd");
                    lookupds.lock().insert(address.to_owned(), info.clone());
                }
            }
            changed = wanted.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                peer.set_wanted(wanted.borrow_and_update().clone());
            }
            _ = ping.tick() => peer.ping(),
            () = sleep_until(last_heard + ANSWER_TIMEOUT), if peer.awaits_answer() => {
                return Err(ConnectionEnd::AnswerTimeout);
            }
        }
    }
}
