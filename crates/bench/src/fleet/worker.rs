//! The worker: carries out the requests of one coordinator at a time.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::FleetError;
use super::frame::{HELLO_BYTES_MAX, REQUEST_BYTES_MAX};
use super::line::{LineError, Listener, Speaker, halves};
use super::message::{Job, Place, Reply, Request, VERSION, report};
use crate::clock::Clock;
use crate::conditions::Conditions;
use crate::distant::connect_over;
use crate::driver::{Connect, Stop};
use crate::measure::{Progress, Watch};
use crate::recorder::Live;
use crate::sides::{Connections, Standing};
use crate::times::Times;
use crate::usage::{BrokerPlace, GENERATOR_THREADS, Meter};

/// Time limit for a peer's Hello with the token.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// Interval of checking whether the worker should end.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};
/// Maximum of simultaneous connections: that of the coordinator, and others until they are refused.
const CONVERSATIONS_MAX: usize = 16;
/// Capacity of the queue of requests. They wait while the worker opens connections, for instance.
const WAITING: usize = 16;

/// A machine that generates load for a coordinator.
#[derive(Debug)]
pub struct Worker {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    token: String,
    /// A coordinator is connected.
    is_busy: AtomicBool,
    conversations: AtomicUsize,
}

impl Worker {
    /// Listens on the address. A peer that knows the token can make this machine connect to any
    /// broker.
    ///
    /// # Errors There is no token although the address is not a loopback address, or the address
    /// cannot be bound.
    pub fn bind(listen: SocketAddr, token: Option<&str>) -> Result<Worker, FleetError> {
        let token = token.unwrap_or_default();
        if token.is_empty() && !listen.ip().is_loopback() {
            return Err(FleetError::NeedsToken(listen));
        }
        let listener = TcpListener::bind(listen);
        let failed = |source| FleetError::Listen { listen, source };
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Worker {
            listener,
            shared: Arc::new(Shared {
                token: token.to_owned(),
                is_busy: AtomicBool::new(false),
                conversations: AtomicUsize::new(0),
            }),
        })
    }

    /// The address that the worker listens on.
    ///
    /// # Errors The operating system does not report it.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Works until `stop` is set. `say` gets a sentence for each event.
    ///
    /// # Errors The worker cannot accept connections any more.
    pub fn run(&self, stop: &Stop, say: &(dyn Fn(&str) + Sync)) -> std::io::Result<()> {
        thread::scope(|scope| {
            while !stop.is_set() {
                let (stream, peer) = match self.listener.accept() {
                    Ok(accepted) => accepted,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        let mut polled = [PollFd::new(&self.listener, PollFlags::IN)];
                        match poll(&mut polled, Some(&LOOK)) {
                            Ok(_) | Err(rustix::io::Errno::INTR) => continue,
                            Err(error) => return Err(error.into()),
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                let shared = &*self.shared;
                if shared.conversations.fetch_add(1, Ordering::AcqRel) >= CONVERSATIONS_MAX {
                    shared.conversations.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                let work = move || {
                    let ended = serve(shared, stream, peer, stop, say);
                    shared.conversations.fetch_sub(1, Ordering::AcqRel);
                    if let Err(error) = ended {
                        say(&format!("{peer}: {error}"));
                    }
                };
                let name = format!("{GENERATOR_THREADS}worker");
                thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, work)?;
            }
            Ok(())
        })
    }
}

/// Whether both texts are the same. The comparison is in constant time: its duration does not
/// depend on the position of a difference.
fn is_same(one: &str, two: &str) -> bool {
    let differences = one.bytes().zip(two.bytes()).map(|(one, two)| one ^ two);
    one.len() == two.len() && differences.fold(0, |all, one| all | one) == 0
}

fn serve(
    shared: &Shared,
    stream: TcpStream,
    peer: SocketAddr,
    stop: &Stop,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), LineError> {
    // On some systems, accepted sockets inherit the listener's flags.
    stream.set_nonblocking(false)?;
    let (speaker, mut listener) = halves(stream, HELLO_BYTES_MAX)?;
    let hello: Request = listener.hear(Some(HELLO_PATIENCE))?;
    let refusal = match &hello {
        Request::Hello { token, .. } if !is_same(token, &shared.token) => {
            Some("its token is another one".to_owned())
        }
        Request::Hello { version, .. } if *version != VERSION => {
            let text = format!("it speaks version {VERSION}, the coordinator version {version}");
            Some(text)
        }
        Request::Hello { .. } if shared.is_busy.swap(true, Ordering::AcqRel) => {
            Some("it works for another coordinator".to_owned())
        }
        Request::Hello { .. } => None,
        _ => Some("the first word was no hello".to_owned()),
    };
    if let Some(reason) = refusal {
        say(&format!("{peer} was refused: {reason}"));
        return speaker.say(&Reply::Refused { reason });
    }
    say(&format!("{peer} coordinates"));
    listener.allow(REQUEST_BYTES_MAX);
    let worked = thread::scope(|scope| {
        let (send, requests) = sync_channel(WAITING);
        let hears = &speaker;
        let clock = Clock::new();
        let read = move || read_on(listener, hears, clock, |said| send.send(said).is_ok());
        let name = format!("{GENERATOR_THREADS}ear");
        thread::Builder::new()
            .name(name)
            .spawn_scoped(scope, read)?;
        let conditions = Box::new(Conditions::here());
        let worked = speaker.say(&Reply::Welcome { conditions });
        let worked = worked.and_then(|()| work(&speaker, &requests, clock, stop, say));
        speaker.hang_up();
        // Otherwise the reading thread could wait forever because the channel is full.
        drop(requests);
        worked
    });
    shared.is_busy.store(false, Ordering::Release);
    worked
}

/// Reads requests until the connection ends. A request for the time is answered at once, by this
/// thread. A coordinator may be silent during a whole measurement, so there is no timeout: TCP
/// keepalive detects that it is gone.
fn read_on(
    mut listener: Listener,
    speaker: &Speaker,
    clock: Clock,
    mut pass: impl FnMut(Result<Request, LineError>) -> bool,
) {
    loop {
        match listener.hear::<Request>(None) {
            Ok(Request::Time { number }) => {
                let unix_ns = clock.to_unix_ns(clock.now_ns());
                // If this fails, the connection has ended, and the next read returns an error.
                let _ = speaker.say(&Reply::Time { number, unix_ns });
            }
            Ok(request) => {
                if !pass(Ok(request)) {
                    return;
                }
            }
            Err(error) => {
                pass(Err(error));
                return;
            }
        }
    }
}

type Requests = Receiver<Result<Request, LineError>>;

fn work(
    speaker: &Speaker,
    requests: &Requests,
    clock: Clock,
    stop: &Stop,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), LineError> {
    let mut ready: Option<Ready> = None;
    loop {
        let request = match requests.recv_timeout(Duration::from_millis(200)) {
            Ok(Ok(request)) => request,
            Ok(Err(LineError::Closed)) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(RecvTimeoutError::Timeout) if stop.is_set() => {
                return Err(LineError::Broken("the worker was ended".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => continue,
        };
        match request {
            Request::Prepare(job) => {
                // Closes the connections of an earlier job first.
                ready = None;
                let reply = match prepare(&job) {
                    Ok((connections, client)) => {
                        ready = Some((job, client, connections));
                        Reply::Ready
                    }
                    Err(reason) => Reply::Failed { reason },
                };
                speaker.say(&reply)?;
            }
            Request::Begin {
                zero_unix_ns,
                start_ns,
                ahead_ns,
            } => {
                let Some((job, _client, mut connections)) = ready.take() else {
                    let reason = "there is nothing to begin".to_owned();
                    speaker.say(&Reply::Failed { reason })?;
                    continue;
                };
                let clock = clock.another(zero_unix_ns, ahead_ns);
                if clock.now_ns() >= start_ns {
                    let reason = "the moment to begin was over when it heard of it".to_owned();
                    speaker.say(&Reply::Failed { reason })?;
                    continue;
                }
                let times = Times::new(clock, start_ns, &job.plan, job.is_filled);
                let (producers, consumers) = (job.part().producers, job.part().consumers);
                say(&format!(
                    "{} producers and {} consumers work with {}",
                    producers.len(),
                    consumers.len(),
                    job.url
                ));
                measure(speaker, requests, &job, &mut connections, times, stop)?;
            }
            // The measurement has ended already.
            Request::End | Request::Abort => {}
            Request::Hello { .. } | Request::Time { .. } => {}
        }
    }
}

/// A job, the client, and the connections that the client has made.
type Ready = (Box<Job>, Box<dyn Connect>, Connections);

fn prepare(job: &Job) -> Result<(Connections, Box<dyn Connect>), String> {
    job.check()?;
    let client = connect_over(&job.url, &job.link).map_err(|error| error.to_string())?;
    client.begin_at(job.starts.clone());
    let connections = Connections::open(&*client, &job.plan, &job.part());
    Ok((connections.map_err(|error| error.to_string())?, client))
}

/// Runs one measurement, and sends its report.
fn measure(
    speaker: &Speaker,
    requests: &Requests,
    job: &Job,
    connections: &mut Connections,
    times: Times,
    stop: &Stop,
) -> Result<(), LineError> {
    let (produced, consumed) = (Live::default(), Live::default());
    let abort = Stop::default();
    let mut end = false;
    let mut lost: Option<LineError> = None;
    let mut meter = Meter::begin(&BrokerPlace::Elsewhere);
    let mut is_warm = false;
    // The watch fills this and the progress callback drains it, both on this thread.
    let seconds = std::cell::RefCell::new(Vec::new());
    let mut keep = |progress: &Progress| seconds.borrow_mut().push(progress.clone());
    let mut watch = Watch::new(&times, &produced, &consumed, &mut keep);
    let live = (&produced, &consumed);
    let (sent, came) = connections.run(&job.plan, &times, &abort, live, |standing: &Standing| {
        if !is_warm && standing.now_ns >= times.measured_from_ns() {
            is_warm = true;
            meter = Meter::begin(&BrokerPlace::Elsewhere);
        }
        watch.show(standing.now_ns);
        loop {
            match requests.try_recv() {
                Ok(Ok(Request::End)) => end = true,
                Ok(Ok(Request::Abort)) => {
                    end = true;
                    abort.set();
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    lost.get_or_insert(error);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    lost.get_or_insert(LineError::Closed);
                    break;
                }
            }
        }
        let mut told = speaker.say(&Reply::Standing(Place::of(standing)));
        for progress in seconds.borrow_mut().drain(..) {
            let second = Reply::Live {
                at: progress.second,
                produced: Box::new(progress.produced),
                consumed: Box::new(progress.consumed),
            };
            told = told.and_then(|()| speaker.say(&second));
        }
        if let Err(error) = told {
            lost.get_or_insert(error);
        }
        if lost.is_some() || stop.is_set() {
            // The coordinator is gone, or the worker ends: the figures are not needed any more.
            end = true;
            abort.set();
        }
        end && standing.producers_are_done
    });
    let usage = meter.end();
    if let Some(error) = lost {
        return Err(error);
    }
    for reply in report(sent, came, usage) {
        speaker.say(&reply)?;
    }
    Ok(())
}
