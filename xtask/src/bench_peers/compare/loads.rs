//! What is measured with each protocol, in the settings of the program that measures it for the
//! peer.

use super::super::{Args, Peer};
use super::Kind;

/// As bench_writer: it waits for the answer to one batch before it sends the next.
const NSQ_PUBLISHES: &[&str] = &["--what=producer", "--batch-size=200", "--in-flight=200"];
/// As bench_reader's RDY.
const NSQ_READS: &[&str] = &["--what=consumer", "--in-flight=2500"];
/// nsqd holds back what it delivers for up to 250 ms, unless its client wants no buffer: so it is
/// measured at its best.
const NSQ_UNBUFFERED: &str = "output-buffer-size=-1";
/// As rdkafka_performance, whose batches have no other bound than librdkafka's own.
const KAFKA_PUBLISHES: &[&str] = &[
    "--what=producer",
    "--batch-size=10000",
    "--in-flight=100000",
];
/// It lets a batch wait for a second; then the last one would decide the rate of a short run.
const KAFKA_LINGER: &str = "linger.ms=50";
const KAFKA_READS: &[&str] = &["--what=consumer"];
/// As rdkafka_performance, too.
const KAFKA_QUEUED: &str = "queued.min.messages=1000000";
/// As we let PerfTest: so many unconfirmed, persistent messages; the URL has its prefetch.
const AMQP_BOTH: &[&str] = &["--what=end-to-end", "--in-flight=500", "--acks=all"];
const LATENCY: &[&str] = &["--what=latency"];

/// One call of `cloverleaf bench compare`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Load {
    /// Part of the name of its page.
    pub(super) name: String,
    pub(super) flags: Vec<String>,
    /// Options of each broker's URL.
    pub(super) options: Vec<String>,
    /// Connections on each side.
    pub(super) clients: u32,
    pub(super) acks: Option<String>,
    pub(super) partitions: Option<u32>,
    pub(super) queue: Option<&'static str>,
    /// Messages per second.
    pub(super) rate: Option<u32>,
}

impl Load {
    fn new(name: String, flags: &[&str], sizes: &[u32]) -> Self {
        let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.push(format!("--message-size={}", sizes.join(",")));
        Self {
            name,
            flags,
            clients: 1,
            ..Self::default()
        }
    }

    fn with_clients(mut self, clients: u32) -> Self {
        self.clients = clients;
        self.flags.push(format!("--concurrency={clients}"));
        self
    }

    fn with_acks(mut self, acks: &str) -> Self {
        self.flags.push(format!("--acks={acks}"));
        (self.acks, self.partitions) = (Some(acks.to_owned()), Some(1));
        self
    }

    fn with_options(mut self, options: &[&str]) -> Self {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self
    }

    fn with_queue(mut self, queue: &'static str) -> Self {
        self.options.push(format!("queue={queue}"));
        self.queue = Some(queue);
        self
    }

    fn with_rate(mut self, rate: u32) -> Self {
        self.flags.push(format!("--rate={rate}"));
        self.rate = Some(rate);
        self
    }
}

/// All that is to be measured; the first of each kind for a quick run.
pub(super) fn of(args: &Args, kinds: &[Kind]) -> Vec<Load> {
    let few = |most: usize| if args.quick { most.min(1) } else { most };
    let sizes = args.sizes_or(match args.peer {
        Peer::Nsq => &[100, 200],
        Peer::Kafka => &[100, 512, 1024, 5120],
        Peer::Amqp => &[100, 1024, 5120],
    });
    // A quick run has two, so that there is a chart over the size.
    let sizes = &sizes[..if args.quick {
        sizes.len().min(2)
    } else {
        sizes.len()
    }];
    let rates = args.rates_or(match args.peer {
        Peer::Nsq | Peer::Kafka => &[1000, 20_000],
        // RabbitMQ bears no more with confirms.
        Peer::Amqp => &[1000, 10_000],
    });
    let asked = Asked {
        sizes,
        rates: &rates[..few(rates.len())],
        clients: &args.clients[..few(args.clients.len())],
        acks: &args.acks[..few(args.acks.len())],
        queues: &["classic", "quorum"][..few(2)],
    };
    let mut loads = Vec::new();
    for kind in kinds {
        match (args.peer, kind) {
            (Peer::Nsq, Kind::Throughput) => asked.nsq(&mut loads),
            (Peer::Kafka, Kind::Throughput) => asked.kafka(&mut loads),
            (Peer::Amqp, Kind::Throughput) => asked.amqp(&mut loads),
            (peer, Kind::Latency) => asked.latency(peer, &mut loads),
        }
    }
    loads
}

struct Asked<'a> {
    sizes: &'a [u32],
    rates: &'a [u32],
    clients: &'a [u32],
    acks: &'a [String],
    queues: &'a [&'static str],
}

impl Asked<'_> {
    fn nsq(&self, loads: &mut Vec<Load>) {
        for clients in self.clients.iter().copied() {
            for (name, flags) in [("publish", NSQ_PUBLISHES), ("consume", NSQ_READS)] {
                let load = Load::new(format!("{name}-{clients}"), flags, self.sizes);
                loads.push(load.with_clients(clients));
            }
        }
    }

    fn kafka(&self, loads: &mut Vec<Load>) {
        for acks in self.acks {
            let name = format!("publish-acks-{acks}");
            let load = Load::new(name, KAFKA_PUBLISHES, self.sizes).with_acks(acks);
            loads.push(load.with_options(&[KAFKA_LINGER]));
        }
        // How it was put in makes no difference to who takes it out.
        for acks in self.acks.iter().take(1) {
            let load = Load::new("consume".to_owned(), KAFKA_READS, self.sizes).with_acks(acks);
            loads.push(load.with_options(&[KAFKA_QUEUED]));
        }
    }

    fn amqp(&self, loads: &mut Vec<Load>) {
        for queue in self.queues {
            for clients in self.clients.iter().copied() {
                let name = format!("both-{queue}-{clients}");
                let load = Load::new(name, AMQP_BOTH, self.sizes).with_clients(clients);
                loads.push(load.with_queue(queue));
            }
        }
    }

    fn latency(&self, peer: Peer, loads: &mut Vec<Load>) {
        // Latency is measured with small messages.
        let sizes = &self.sizes[..self.sizes.len().min(1)];
        for rate in self.rates.iter().copied() {
            let new = |name: String| Load::new(name, LATENCY, sizes).with_rate(rate);
            match peer {
                Peer::Nsq => {
                    let load = new(format!("latency-{rate}"));
                    loads.push(load.with_options(&[NSQ_UNBUFFERED]));
                }
                Peer::Kafka => loads.extend(
                    self.acks
                        .iter()
                        .map(|acks| new(format!("latency-acks-{acks}-{rate}")).with_acks(acks)),
                ),
                Peer::Amqp => loads.extend(self.queues.iter().map(|queue| {
                    let mut load = new(format!("latency-{queue}-{rate}"));
                    load.flags.push("--acks=all".to_owned());
                    load.with_queue(queue)
                })),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Result;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn loads(line: &str) -> Result<Vec<Load>> {
        let words = line.split(' ');
        let args = <Line as clap::Parser>::try_parse_from(words)?.args;
        let kinds = args.kinds_or(super::super::KINDS)?;
        Ok(of(&args, &kinds))
    }

    #[test]
    fn each_protocol_has_the_settings_of_its_own_program() -> Result<()> {
        let names = |line: &str| -> Result<String> {
            let names: Vec<String> = loads(line)?.into_iter().map(|load| load.name).collect();
            Ok(names.join(" "))
        };
        assert_eq!(
            names("x nsq --bench")?,
            "publish-1 consume-1 publish-4 consume-4 latency-1000 latency-20000"
        );
        assert_eq!(
            names("x kafka --bench --rates 500")?,
            "publish-acks-1 publish-acks-all consume latency-acks-1-500 latency-acks-all-500"
        );
        assert_eq!(
            names("x amqp --bench --quick")?,
            "both-classic-1 latency-classic-1000"
        );
        assert_eq!(
            names("x amqp --bench --kinds latency --rates 7")?,
            "latency-classic-7 latency-quorum-7"
        );
        let publish = &loads("x nsq --bench --sizes 64,128 --clients 3")?[0];
        assert_eq!(
            publish.flags.join(" "),
            "--what=producer --batch-size=200 --in-flight=200 --message-size=64,128 --concurrency=3"
        );
        let latency = &loads("x nsq --bench --quick --kinds latency")?[0];
        assert_eq!(latency.options, ["output-buffer-size=-1"]);
        let latency = &loads("x kafka --bench --quick")?[2];
        assert_eq!(
            latency.flags.join(" "),
            "--what=latency --message-size=100 --rate=1000 --acks=1"
        );
        Ok(())
    }
}
