//! A running broker: its start, and its shutdown, which loses nothing.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{io, mem};

use cloverleaf_broker::{Broker, BrokerOptions, Clock, DurabilityMode, SystemClock};
use cloverleaf_doctor::{Advice, Query, Report};
use cloverleaf_log::{Disk, Log, LogClock, LogOptions, OpenError, RealDisk};
use cloverleaf_telemetry::Registry;
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::config::check::OutOfRange;
use crate::config::value::{
    ClientAuthPolicy, DurabilityMode as ConfiguredDurability, TlsRequired, ms,
};
use crate::config::{AnonymousRemote, Config};
use crate::context::{Addresses, ServerContext, Sleepers};
use crate::doctor::advice::{self, AdviceFolderError};
use crate::doctor::{DoctorThread, Observer, SharedDoctor};
use crate::failed_logins::FailedLogins;
use crate::fronts::{self, FrontOpening, REGISTRATIONS, Registrations, UnopenedFront};
use crate::half_received::HalfReceived;
use crate::half_received::budget::BudgetBounds;
use crate::health::{Health, VitalThreadGuard};
use crate::listener::{BindError, BoundDoor, SessionListener, accept_all, bind_all};
use crate::process::file_limit::{self, ConnectionLimits};
use crate::timeline::TimelineQuery;
use crate::timeline::types::Timeline;
use crate::transport::tls::TlsError;
use crate::{cores, http, timeline, verifications};

/// Why the broker did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An option has a value that is not allowed.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The broker would accept anonymous clients from other machines.
    #[error(transparent)]
    AnonymousRemote(#[from] AnonymousRemote),
    /// The operator's own advice for the doctor cannot be used.
    #[error(transparent)]
    Advice(#[from] AdviceFolderError),
    /// TLS cannot be offered as configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The data folder cannot be used; names the other broker if one has it open.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// The stored state cannot be used.
    #[error("the stored state cannot be used: {0}")]
    State(#[from] cloverleaf_broker::OpenError),
    /// The stored declarations of AMQP clients cannot be used.
    #[error("the exchanges and queues of AMQP cannot be used: {0}")]
    Amqp(#[from] cloverleaf_broker::CatalogError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system refuses a thread or a runtime.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// The real disk under the data folder.
pub(crate) fn real_disk(folder: &Path) -> Result<Arc<dyn Disk>, OpenError> {
    Ok(RealDisk::open(folder)?)
}

/// A running broker. Dropping it shuts it down.
pub struct Server {
    context: Arc<ServerContext>,
    recovery: Vec<String>,
    threads: Vec<JoinHandle<()>>,
    doctor: DoctorThread,
    housekeeping: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens the data folder, restores the stored state, and listens. When this returns, clients
    /// can connect.
    ///
    /// # Errors
    /// See [`StartError`]; no thread, socket or lock is left over then.
    pub fn start(config: Config) -> Result<Server, StartError> {
        Server::start_with(config, Arc::new(SystemClock::default()), None)
    }

    /// Like [`Server::start`], with the caller's clock for deadlines, idle timeouts, groups and all
    /// measurements. If that clock is driven by a test, the doctor runs only when [`Server::check`]
    /// is called. Waits for the kernel or for other programs (HTTP, nsqlookupd, the drain, NSQ's
    /// auth services) use the machine's time even then.
    ///
    /// `observer` is called on the doctor's thread with the observations of each of the doctor's
    /// checks.
    ///
    /// # Errors
    /// See [`StartError`]; no thread, socket or lock is left over then.
    pub fn start_with(
        config: Config,
        clock: Arc<dyn Clock>,
        observer: Option<Observer>,
    ) -> Result<Server, StartError> {
        Server::start_on(real_disk, config, clock, observer)
    }

    /// Like [`Server::start_with`], on the disk that `open_disk` makes of the data folder's path.
    ///
    /// # Errors
    /// See [`StartError`]; no thread, socket or lock is left over then.
    pub fn start_on(
        open_disk: impl FnOnce(&Path) -> Result<Arc<dyn Disk>, OpenError>,
        config: Config,
        clock: Arc<dyn Clock>,
        observer: Option<Observer>,
    ) -> Result<Server, StartError> {
        Server::start_speaking(REGISTRATIONS, open_disk, config, clock, observer)
    }

    /// Like [`Server::start_on`], with the protocols of `registrations`.
    pub(crate) fn start_speaking(
        registrations: &Registrations,
        open_disk: impl FnOnce(&Path) -> Result<Arc<dyn Disk>, OpenError>,
        mut config: Config,
        clock: Arc<dyn Clock>,
        observer: Option<Observer>,
    ) -> Result<Server, StartError> {
        if config.nsq.tls_client_auth_policy != ClientAuthPolicy::None
            && config.nsq.tls_required == TlsRequired::No
        {
            // As in nsqd: a configuration that asks for client certificates requires TLS.
            config.nsq.tls_required = TlsRequired::Yes;
        }
        config.check()?;
        config.check_listen_addresses(registrations)?;
        let protocols = fronts::load(registrations, &config)?;
        let advice = advice::load(config.general.doctor_advice_dir.as_deref())?;
        let files = file_limit::raise_open_files_max();
        tracing::debug!(files, "open files allowed");
        fit_connections(&mut config, files);
        let disk = open_disk(&config.general.data_dir)?;
        let (log, recovery) = Log::open(disk, log_options(&config, Arc::clone(&clock)))?;
        let report = recovery.report.clone();
        let broker = Broker::open(
            log.clone(),
            recovery,
            broker_options(&config),
            Arc::clone(&clock),
        );
        let started = broker.map_err(StartError::from).and_then(|broker| {
            let log = log.clone();
            StartedParts::start(config, log, broker, clock, protocols, advice, observer)
        });
        match started {
            Ok(running) => Ok(Server {
                context: running.context,
                recovery: report,
                threads: running.threads,
                doctor: running.doctor,
                housekeeping: Some(running.housekeeping),
            }),
            Err(error) => {
                log.close();
                Err(error)
            }
        }
    }

    /// State that all parts of the broker share.
    pub fn context(&self) -> &Arc<ServerContext> {
        &self.context
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &Addresses {
        &self.context.addresses
    }

    /// The findings of recovery at the start, a line each.
    pub fn recovery(&self) -> &[String] {
        &self.recovery
    }

    /// The causes that slow clients down, as far as the broker sees them. The doctor checks once a
    /// second: a finding appears after some seconds of a client's behaviour, and disappears a few
    /// seconds after the cause has ended.
    ///
    /// Blocks while the doctor evaluates its rules, which takes tens of milliseconds with thousands
    /// of connections.
    pub fn doctor(&self, query: &Query) -> Report {
        self.context.doctor.report(query)
    }

    /// Makes the doctor check now. By itself it checks once a second, but not if the clock is
    /// driven by a test.
    pub fn check(&self) {
        self.doctor.look(&self.context);
    }

    /// The latest messages in flight by consumer, and publishes by producer.
    ///
    /// # Errors
    /// A text for people: a topic or a subscription does not exist.
    pub fn timeline(&self, query: &TimelineQuery) -> Result<Timeline, String> {
        timeline::gather(&self.context, query).map_err(|refused| refused.1)
    }

    /// Calls `change` when the log level is changed while the broker runs (NSQ's `/config`).
    pub fn on_log_level(&self, change: impl Fn(tracing::Level) + Send + Sync + 'static) {
        let change: Arc<dyn Fn(tracing::Level) + Send + Sync> = Arc::new(change);
        for front in &self.context.fronts {
            front.on_log_level(Arc::clone(&change));
        }
    }

    /// Stops accepting connections, lets the open ones finish pending work for at most
    /// `drain_timeout`, stores all progress and closes the log. Blocks until that is done.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(housekeeping) = self.housekeeping.take() else {
            return;
        };
        self.context.draining.send_replace(true);
        self.context.log.stop_waiting();
        self.doctor.stop();
        for thread in mem::take(&mut self.threads) {
            join(thread);
        }
        self.context.fronts.iter().for_each(|front| front.stop());
        self.context.broker.close();
        join(housekeeping);
        self.context.log.close();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of the broker ended by a fault");
    }
}

/// The parts that are built once the log is open.
struct StartedParts {
    context: Arc<ServerContext>,
    threads: Vec<JoinHandle<()>>,
    doctor: DoctorThread,
    housekeeping: JoinHandle<()>,
}

impl StartedParts {
    fn start(
        mut config: Config,
        log: Log,
        broker: Broker,
        clock: Arc<dyn Clock>,
        protocols: Vec<UnopenedFront>,
        advice: Advice,
        observer: Option<Observer>,
    ) -> Result<StartedParts, StartError> {
        let doors = bind_all(&config, &protocols)?;
        let addresses = doors.iter().map(BoundDoor::address);
        let addresses = addresses.collect::<io::Result<_>>()?;
        let mut fronts = Vec::with_capacity(protocols.len());
        let mut tags = Vec::with_capacity(protocols.len());
        for UnopenedFront { registration, tls } in protocols {
            fronts.push((registration.open)(FrontOpening {
                config: &config,
                broker: &broker,
                tls,
            })?);
            tags.push(registration.protocol);
            // A front's secrets are only in its own section: the fronts that open later do not need
            // it.
            (registration.forget_secrets)(&mut config);
        }
        let context = Arc::new(ServerContext {
            registry: Registry::new(),
            fronts,
            addresses: Addresses(addresses),
            started_ms: clock.unix_us() / 1_000,
            half_received: HalfReceived::new(BudgetBounds::of(&config), &tags),
            failed_logins: FailedLogins::default(),
            verifications: verifications::permits(),
            health: Health::default(),
            doctor: SharedDoctor::new(advice),
            sleepers: Sleepers::of(&*clock),
            started_us: clock.now_us(),
            clock,
            draining: watch::Sender::new(false),
            broker,
            log,
            config,
        });
        context
            .broker
            .record_holds_in(Arc::clone(context.registry.lanes()));
        let mut running = ThreadStarter {
            context: Arc::clone(&context),
            threads: Vec::new(),
        };
        let result = running.start_threads(doors, observer);
        match result {
            Ok((housekeeping, doctor)) => Ok(StartedParts {
                context,
                threads: running.threads,
                doctor,
                housekeeping,
            }),
            Err(error) => {
                context.draining.send_replace(true);
                running.threads.drain(..).for_each(join);
                context.fronts.iter().for_each(|front| front.stop());
                context.broker.close();
                Err(error.into())
            }
        }
    }
}

struct ThreadStarter {
    context: Arc<ServerContext>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadStarter {
    /// Starts all threads. Returns housekeeping, which must end last, and the doctor's thread.
    fn start_threads(
        &mut self,
        doors: Vec<BoundDoor>,
        observer: Option<Observer>,
    ) -> io::Result<(JoinHandle<()>, DoctorThread)> {
        let context = &self.context;
        for front in &context.fronts {
            front.start(context)?;
        }
        let doctor = DoctorThread::start(context, observer)?;
        let (http, sessions) = doors.into_iter().partition(|door| door.kind.is_http());
        let (cores, threads) = cores::start(context, core_count(&context.config))?;
        self.threads.extend(threads);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let accepting = {
            let _runtime = runtime.enter();
            accept_all(
                session_listeners(context, sessions)?,
                cores,
                Arc::clone(context),
            )
        };
        let acceptor = thread::Builder::new().name("acceptor".to_owned());
        let vital = VitalThreadGuard::new(context, "acceptor");
        self.threads.push(acceptor.spawn(move || {
            let _vital = vital;
            runtime.block_on(accepting);
        })?);
        self.threads.push(http::thread::start(context, http)?);
        let broker = context.broker.clone();
        let housekeeping = thread::Builder::new().name("housekeeping".to_owned());
        let vital = VitalThreadGuard::new(context, "housekeeping");
        let housekeeping = housekeeping.spawn(move || {
            let _vital = vital;
            broker.run_housekeeping();
        })?;
        Ok((housekeeping, doctor))
    }
}

/// Each bound socket with the front that serves its connections. Must be called within the
/// acceptor's runtime.
fn session_listeners(
    context: &ServerContext,
    doors: Vec<BoundDoor>,
) -> io::Result<Vec<SessionListener>> {
    let own = doors.into_iter().filter_map(|door| {
        let front = context.fronts.get(door.front?)?;
        Some((door, Arc::clone(front)))
    });
    let listeners = own.map(|(door, front)| {
        Ok(SessionListener {
            listener: tokio::net::TcpListener::from_std(door.listener)?,
            front,
            is_tls: door.kind.needs_tls(),
        })
    });
    listeners.collect()
}

/// Lowers the limits of connections to the open files that the system allows.
fn fit_connections(config: &mut Config, files: u64) {
    let general = &mut config.general;
    let wanted = ConnectionLimits {
        connections_max: general.connections_max,
        http_connections_max: general.http_connections_max,
    };
    let fitted = wanted.fitted(files);
    if fitted != wanted {
        tracing::warn!(
            files,
            connections_max = fitted.connections_max,
            http_connections_max = fitted.http_connections_max,
            "fewer connections than configured: the system allows too few open files (ulimit -n)"
        );
    }
    general.connections_max = fitted.connections_max;
    general.http_connections_max = fitted.http_connections_max;
}

fn core_count(config: &Config) -> usize {
    match config.general.cores {
        0 => thread::available_parallelism().map_or(1, usize::from),
        cores => cores as usize,
    }
}

fn log_options(config: &Config, clock: Arc<dyn Clock>) -> LogOptions {
    let general = &config.general;
    LogOptions {
        tail_bytes_max: general.tail_bytes_max.0,
        disk_free_bytes_min: general.disk_free_bytes_min.0,
        producers_max: general.producers_max as usize,
        producers_total_max: general.producers_total_max as usize,
        producer_expiry_ms: ms(general.producer_expiry),
        repair: config.repair,
        clock: LogClock::new(move || i64::try_from(clock.now_ms()).unwrap_or(i64::MAX)),
        ..LogOptions::default()
    }
}

fn broker_options(config: &Config) -> BrokerOptions {
    let mut options = BrokerOptions {
        durability: match config.general.durability {
            ConfiguredDurability::Protocol => DurabilityMode::Protocol,
            ConfiguredDurability::Disk => DurabilityMode::Disk,
            ConfiguredDurability::Kernel => DurabilityMode::Kernel,
        },
        repair: config.repair,
        ..BrokerOptions::default()
    };
    config.general.fill(&mut options);
    options
}
