//! One call of `cloverleaf bench`: the brokers that it measures, and how it measures.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use super::BenchError;
use super::args::{OutputArgs, TargetArgs};
use super::distance::{Distance, FleetArgs, RttBy, why_proxy};
use super::embed::{Embed, EmbedOptions, EmbeddedBroker, QUICK_ACK};
use super::fit::fitting;
use super::live::LiveLine;
use super::opened::{Opened, parse_pids, parse_promise};
use crate::conditions::Conditions;
use crate::distant::{connect_across, connect_over};
use crate::driver::{Promise, Stop};
use crate::fleet::Fleet;
use crate::measure::{Progress, Target};
use crate::network::Network;
use crate::outcome::{Kind, Outcome, Report, Row, Variation};
use crate::plan::Plan;
use crate::proxy::Link;
use crate::url::Url;
use crate::usage::{BrokerPlace, GENERATOR_THREADS};
use crate::{secrets, words};

/// One call of `cloverleaf bench`.
pub struct Session<'s> {
    embed: &'s Embed<'s>,
    stop: Stop,
    command: Vec<String>,
    /// The brokers in this process by their options, and whether they are in the network. They end
    /// before that does.
    embedded: Vec<((EmbedOptions, bool), EmbeddedBroker)>,
    /// How far away brokers are.
    distance: Distance,
    /// Other machines that measure.
    fleet: Option<Fleet>,
    /// Of the last measurement.
    run: u32,
}

/// One row to be measured.
#[derive(Clone)]
pub struct Task<'t> {
    /// The broker.
    pub opened: &'t Opened,
    /// The sides that are measured.
    pub kind: Kind,
    /// Differences from other rows of the same broker.
    pub variations: Vec<Variation>,
    /// The plan of it.
    pub plan: Plan,
}

impl<'s> Session<'s> {
    /// A session. `stop` ends what is being measured; `command` is the command line.
    pub fn new(embed: &'s Embed<'s>, stop: Stop, command: Vec<String>) -> Session<'s> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // Different from that of any measurement that may have left messages behind.
        let seed = since.map_or(0, |since| since.as_micros() as u32);
        Session {
            embed,
            stop,
            command: secrets::command(&command),
            embedded: Vec::new(),
            distance: Distance::default(),
            fleet: None,
            run: seed ^ std::process::id().rotate_left(16),
        }
    }

    /// The signal that ends a measurement early.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// A number that no other measurement has.
    pub fn next_run(&mut self) -> u32 {
        self.run = self.run.wrapping_add(1);
        self.run
    }

    /// A report without rows.
    pub fn report(&self, title: &str) -> Report {
        let conditions = Conditions::here();
        let remarks = self
            .embedded
            .iter()
            .filter_map(|(_, broker)| broker.remark.clone());
        let mut notes: Vec<String> = remarks.collect();
        notes.dedup();
        notes.extend(self.distance.note());
        notes.extend(self.fleet.iter().flat_map(Fleet::notes));
        if !conditions.is_release {
            notes.push(
                "This program was compiled without optimisation: no figure here says anything \
                 about a broker. Build it with --release."
                    .to_owned(),
            );
        }
        Report {
            title: title.to_owned(),
            command: self.command.clone(),
            conditions,
            rows: Vec::new(),
            notes,
            failure: None,
        }
    }

    /// Clients for all brokers that the arguments name.
    ///
    /// # Errors
    /// There is no client for one of them, or the embedded broker does not start.
    pub fn open_all(&mut self, target: &TargetArgs) -> Result<Vec<Opened>, BenchError> {
        self.settle(target)?;
        let urls = target.urls();
        if urls.len() > 1 && !target.broker_pid.is_empty() {
            return Err(BenchError::settings(
                "--broker-pid is for one broker; with several write nsq://host:4150?pid=1234",
            ));
        }
        let mut all: Vec<Opened> = Vec::new();
        for url in &urls {
            let mut opened = self.open(url)?;
            if !target.broker_pid.is_empty() {
                opened.place = BrokerPlace::Processes(target.broker_pid.clone());
            }
            opened.topic.clone_from(&target.topic);
            if all.iter().any(|other| other.label == opened.label) {
                opened.label = format!("{} ({})", opened.label, all.len() + 1);
            }
            all.push(opened);
        }
        Ok(all)
    }

    /// Makes the distance that brokers are away, and takes over who measures: workers are
    /// connected.
    ///
    /// # Errors
    /// A worker is not there, or refuses; or the kernel cannot make the distance.
    pub fn settle(&mut self, target: &TargetArgs) -> Result<(), BenchError> {
        let FleetArgs { workers, token } = &target.fleet;
        let why_proxy = why_proxy(&target.urls(), !workers.is_empty());
        self.distance = Distance::make(target.link.link(), target.link.rtt_by, why_proxy)?;
        if !workers.is_empty() && self.fleet.is_none() {
            self.fleet = Some(Fleet::connect(workers, token.as_deref())?);
        }
        Ok(())
    }

    /// Makes the distance of a story whose brokers these are; none: embedded ones.
    ///
    /// # Errors
    /// The kernel was to make it, and cannot.
    pub(super) fn go_far(
        &mut self,
        link: Link,
        by: RttBy,
        urls: &[Url],
        passes_proxy: bool,
    ) -> Result<(), BenchError> {
        let distance = Distance::make(link, by, why_proxy(urls, false))?;
        self.distance = if passes_proxy {
            distance.without_proxy()
        } else {
            distance
        };
        Ok(())
    }

    /// How far away brokers are.
    pub fn link(&self) -> &Link {
        self.distance.link()
    }

    /// Whether the kernel makes the distance.
    pub fn has_network(&self) -> bool {
        self.distance.network().is_some()
    }

    /// A client for one broker. It starts the embedded one if that is meant.
    ///
    /// # Errors
    /// As [`Session::open_all`].
    pub fn open(&mut self, url: &Url) -> Result<Opened, BenchError> {
        let link = match &self.fleet {
            // The distance is the workers'; from here topics are made and filled.
            Some(_) => Link::default(),
            None => *self.link(),
        };
        self.open_over(url, &link)
    }

    /// A client for one broker, over a distance.
    ///
    /// # Errors
    /// As [`Session::open_all`].
    pub fn open_over(&mut self, url: &Url, link: &Link) -> Result<Opened, BenchError> {
        let label = url.name();
        let claimed = match url.option("durability") {
            // It is started so, and says what that means.
            Some(_) if url.is_embedded() => None,
            text => text.map(parse_promise).transpose()?,
        };
        let mut real = url.clone();
        let mut place = None;
        let network = self.distance.network().filter(|_| url.is_embedded());
        let network = network.filter(|_| link == self.link()).cloned();
        if url.is_embedded() {
            let broker = self.embedded(EmbedOptions::of(url)?, network.as_deref())?;
            real.remove(QUICK_ACK);
            let door = broker.doors.get(&url.protocol);
            // Where there is none, the client says so.
            let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
            let address = door.map_or(nowhere, |door| door.address);
            real.hosts = vec![(address.ip().to_string(), address.port())];
            if let Some(http) = door.and_then(|door| door.http) {
                real.set_default("http", http.to_string());
            }
            place = Some(BrokerPlace::Threads(GENERATOR_THREADS.to_owned()));
        }
        let connect = match &network {
            Some(network) => connect_across(&real, network)?,
            None => connect_over(&real, link)?,
        };
        let place = match (place, url.option("pid")) {
            (_, Some(pids)) => BrokerPlace::Processes(parse_pids(pids)?),
            (Some(place), None) => place,
            (None, None) => BrokerPlace::of(&real.addresses()?),
        };
        Ok(Opened {
            connect,
            label,
            url: url.clone(),
            reached: real,
            place,
            network,
            topic: None,
            claimed,
        })
    }

    fn embedded(
        &mut self,
        options: EmbedOptions,
        network: Option<&Network>,
    ) -> Result<&EmbeddedBroker, BenchError> {
        let wanted = (options, network.is_some());
        let mut known = self.embedded.iter();
        let at = match known.position(|(of, _)| *of == wanted) {
            Some(at) => at,
            None => {
                let start = || (self.embed)(&wanted.0);
                let broker = match network {
                    // Its threads and sockets are made there.
                    Some(network) => network.at_broker(start),
                    None => Ok(start()),
                };
                let broker = broker.unwrap_or_else(|error| Err(error.to_string()));
                self.embedded
                    .push((wanted, broker.map_err(BenchError::Embedded)?));
                self.embedded.len() - 1
            }
        };
        Ok(&self.embedded[at].1)
    }

    /// Measures each task so often, in turns, and adds a row for each to the report. Once
    /// something was measured, what fails is in [`Report::failure`].
    ///
    /// # Errors
    /// The first measurement failed.
    pub fn measure_all(
        &mut self,
        tasks: &[Task<'_>],
        runs: u32,
        output: &OutputArgs,
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let first = report.rows.len();
        let empty = tasks.iter().map(|task| Row {
            variations: task.variations.clone(),
            runs: Vec::new(),
        });
        report.rows.extend(empty);
        let runs = runs.max(1);
        'all: for run in 1..=runs {
            for (at, task) in tasks.iter().enumerate() {
                if self.stop.is_set() {
                    break 'all;
                }
                let mut what = task.opened.label.clone();
                for variation in &task.variations {
                    what.push_str(&format!(" · {}: {}", variation.name, variation.value));
                }
                if runs > 1 {
                    what.push_str(&format!(" · run {run} of {runs}"));
                }
                let live = LiveLine::new(what, task.kind, &task.plan, output.quiet);
                match self.measure(task, &live) {
                    Ok(outcome) => report.rows[first + at].runs.push(outcome),
                    Err(error) => {
                        report.rows.retain(|row| !row.runs.is_empty());
                        if report.rows.is_empty() {
                            return Err(error);
                        }
                        report.failure = Some(error.to_string());
                        return Ok(());
                    }
                }
            }
        }
        report.rows.retain(|row| !row.runs.is_empty());
        Ok(())
    }

    /// One measurement.
    ///
    /// # Errors
    /// Nothing could be measured.
    pub fn measure(&mut self, task: &Task<'_>, live: &LiveLine) -> Result<Outcome, BenchError> {
        let run = self.next_run();
        let opened = task.opened;
        let topic = opened.topic.clone();
        let plan = Plan {
            run,
            topic: topic.unwrap_or_else(|| format!("cloverleaf-bench-{run:08x}")),
            ..fitting(task.plan.clone(), opened.url.protocol)
        };
        let target = Target {
            connect: &*opened.connect,
            label: opened.label.clone(),
            url: opened.url.shown(),
            place: opened.place.clone(),
            keeps_topic: opened.topic.is_some(),
        };
        let show = |second: &Progress| live.show(second);
        let measured = match &mut self.fleet {
            Some(fleet) => {
                let place = (&opened.reached, self.distance.link());
                fleet.measure(&target, place, task.kind, &plan, &self.stop, show)
            }
            None => target.measure(task.kind, &plan, &self.stop, show),
        };
        live.end();
        let mut outcome = measured?;
        if let Some(claimed) = opened.claimed {
            claim(&mut outcome, claimed);
        }
        Ok(outcome)
    }
}

/// The user's word on what acknowledgements promise; where there are none it means nothing.
fn claim(outcome: &mut Outcome, claimed: Promise) {
    let by_client = outcome.subject.promise;
    if matches!(by_client, Promise::None) || by_client == claimed {
        return;
    }
    outcome.subject.promise = claimed;
    outcome.subject.is_claimed = true;
    outcome.remarks.push(format!(
        "its durability class \"{}\" is what its URL claims; by itself it is \"{}\"",
        words::promise(claimed),
        words::promise(by_client)
    ));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{LoadArgs, THROUGHPUT};
    use super::*;
    use crate::nsq::Sink;

    fn no_broker(_: &EmbedOptions) -> Result<EmbeddedBroker, String> {
        Err("the disk is full".to_owned())
    }

    fn target(urls: &[&str]) -> TargetArgs {
        TargetArgs {
            urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
            ..TargetArgs::default()
        }
    }

    fn session() -> Session<'static> {
        Session::new(&no_broker, Stop::default(), Vec::new())
    }

    #[test]
    fn brokers_have_different_names_and_their_own_processes() {
        let mut session = session();
        let urls = [
            "nsq://127.0.0.1:1?pid=1,2",
            "nsq://127.0.0.1:1",
            "a=nsq://127.0.0.1:1",
        ];
        let opened = session.open_all(&target(&urls)).unwrap();
        let labels: Vec<&str> = opened.iter().map(|it| it.label.as_str()).collect();
        assert_eq!(labels, ["nsq://127.0.0.1:1", "nsq://127.0.0.1:1 (2)", "a"]);
        assert_eq!(opened[0].place, BrokerPlace::Processes(vec![1, 2]));
        let mut one = target(&["nsq://127.0.0.1:1"]);
        one.broker_pid = vec![7];
        let opened = session.open_all(&one).unwrap();
        assert_eq!(opened[0].place, BrokerPlace::Processes(vec![7]));
    }

    #[test]
    fn what_cannot_be_opened_is_said() {
        let mut session = session();
        let mut several = target(&["nsq://127.0.0.1:1", "nsq://127.0.0.1:2"]);
        several.broker_pid = vec![7];
        for (target, part) in [
            (
                TargetArgs::default(),
                "the embedded broker does not start: the disk is full",
            ),
            (several, "--broker-pid is for one broker"),
            (
                target(&["nsq://127.0.0.1:1?pid=x"]),
                "no number of a process",
            ),
            (
                target(&["nsq://127.0.0.1:1?durability=x"]),
                "none of none, memory",
            ),
            (
                target(&["embedded:nsq?durability=none"]),
                "none of protocol, kernel",
            ),
            (
                target(&["embedded:nsq?quick-ack=no"]),
                "neither true nor false",
            ),
        ] {
            let error = session.open_all(&target).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_a_user_claims_is_marked() {
        for (by_client, claimed, expected, is_claimed) in [
            (Promise::Configured, Promise::Disk, Promise::Disk, true),
            (Promise::Kernel, Promise::Memory, Promise::Memory, true),
            (Promise::Disk, Promise::Disk, Promise::Disk, false),
            // Nothing is acknowledged.
            (Promise::None, Promise::Disk, Promise::None, false),
        ] {
            let mut outcome = crate::table::tests::outcome("a", 1);
            outcome.subject.promise = by_client;
            claim(&mut outcome, claimed);
            let subject = (outcome.subject.promise, outcome.subject.is_claimed);
            assert_eq!(subject, (expected, is_claimed), "{by_client:?} {claimed:?}");
            assert_eq!(outcome.remarks.len(), usize::from(is_claimed));
        }
    }

    /// The second broker goes away before its turn: what was measured of the first is kept.
    #[test]
    fn what_was_measured_is_kept_when_the_next_fails() {
        let sink = Sink::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = sink.address().unwrap();
        std::thread::spawn(move || sink.run());
        let mut session = session();
        let there = format!("nsq://{address}?http=127.0.0.1:1");
        let opened = session
            .open_all(&target(&[&there, "nsq://127.0.0.1:1"]))
            .unwrap();
        let load = LoadArgs {
            messages: super::super::MessageArgs {
                count: Some(100),
                warm_up: Some(0.0),
                ..Default::default()
            },
            ..LoadArgs::default()
        };
        let tasks: Vec<Task<'_>> = opened
            .iter()
            .map(|opened| Task {
                opened,
                kind: Kind::Produce,
                variations: Vec::new(),
                plan: load.plan(&THROUGHPUT).unwrap(),
            })
            .collect();
        let mut report = session.report("Test");
        let measured = session.measure_all(&tasks, 2, &OutputArgs::default(), &mut report);
        measured.unwrap();
        assert_eq!((report.rows.len(), report.rows[0].runs.len()), (1, 1));
        assert!(!report.is_good());
        let failure = report.failure.as_deref().unwrap_or_default();
        assert!(
            failure.starts_with("cannot connect to nsq://127.0.0.1:1"),
            "{failure}"
        );
        let outcome = &report.rows[0].runs[0];
        assert_eq!(outcome.produced.as_ref().unwrap().messages, 100);
        assert!(
            outcome.remarks[0].contains("stays"),
            "{:?}",
            outcome.remarks
        );
        // Alone it is an error.
        let alone = session.measure_all(
            &tasks[1..],
            1,
            &OutputArgs::default(),
            &mut session_report(),
        );
        assert!(alone.is_err());
    }

    fn session_report() -> Report {
        session().report("Test")
    }
}
