//! Figures that the seeds give for their own experiments, each with the line that it comes from.

/// A figure of a seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SeedFigure {
    /// Line of the seed's text, from 1.
    pub(super) line: u32,
    /// The text of the figure, with its unit.
    pub(super) text: &'static str,
}

const fn figure(line: u32, text: &'static str) -> SeedFigure {
    SeedFigure { line, text }
}

impl SeedFigure {
    /// The figure and its line: "22,000/s (line 46)".
    pub(super) fn cited(&self) -> String {
        format!("{} (line {})", self.text, self.line)
    }
}

/// Seed 000, "Producer optimization".
pub(super) mod producers {
    use super::{SeedFigure, figure};

    pub(crate) const SYNCHRONOUS: SeedFigure = figure(46, "30/s");
    pub(crate) const IN_FLIGHT: SeedFigure = figure(46, "22,000/s");
    pub(crate) const FIVE: SeedFigure = figure(30, "N × rtt / 5");
    pub(crate) const FEWER: SeedFigure = figure(67, "where 1,000 ran into timeouts");
    pub(crate) const FAR: SeedFigure = figure(26, "10,000 messages take 100 s");
    pub(crate) const CONNECTIONS: SeedFigure = figure(111, "grows evenly from 1 to 4");
    pub(crate) const PARTITIONS: SeedFigure = figure(119, "evenly up to 8 with 2 partitions");
    /// Bytes of a message, line 107.
    pub(crate) const SIZE_BYTES: usize = 512;
    /// Messages in flight while connections vary, line 107.
    pub(crate) const IN_FLIGHT_EACH: u32 = 500;
    /// "In 5-minute intervals", line 107.
    pub(crate) const SECONDS: f64 = 300.0;
    /// "10,000 (10^4) orders", line 24.
    pub(crate) const MESSAGES: u64 = 10_000;
}

/// Seed 001, "Optimizing Kafka producers for latency".
pub(super) mod nagle {
    use super::{SeedFigure, figure};

    pub(crate) const WAITING_RATE: SeedFigure = figure(31, "23/s");
    pub(crate) const WAITING_TIME: SeedFigure = figure(31, "43.15 ms");
    pub(crate) const OFF_RATE: SeedFigure = figure(61, "over 250/s");
    pub(crate) const OFF_TIME: SeedFigure = figure(64, "2.88 ms");
    /// `for _ in range(100)`, line 20.
    pub(crate) const MESSAGES: u32 = 100;
    /// Of a ProduceRequest, line 28.
    pub(crate) const SIZE_BYTES: usize = 2_219;
}

/// Seed 002, "Memphis.dev Cloud Performance and Load testing".
pub(super) mod sizes {
    use super::{SeedFigure, figure};

    pub(crate) const SIZES_BYTES: [usize; 4] = [128, 512, 1_024, 5_120];
    /// By size: throughput, line 31; the other two stand in a chart only.
    pub(crate) const RATES: [Option<SeedFigure>; 4] = [
        Some(figure(31, "over 450,000/s")),
        Some(figure(31, "over 440,000/s")),
        None,
        None,
    ];
    /// By size: minimum, median, 75th, 95th, 99th percentile, in milliseconds, lines 39 to 49.
    pub(crate) const LATENCY_MS: [[f64; 5]; 4] = [
        [0.6756, 0.7136, 0.8445, 0.8745, 0.9122],
        [0.6848, 0.7848, 0.856, 0.886, 0.8937],
        [0.6912, 0.7912, 0.864, 0.894, 0.9017],
        [0.7544, 0.8544, 0.943, 0.973, 0.9807],
    ];
    pub(crate) const LATENCY_LINES: &str = "lines 39 to 42 and 49";
    /// `--count 500000 --concurrency 4 --batch-size 500`, lines 70 to 86.
    pub(crate) const MESSAGES: u64 = 500_000;
    pub(crate) const CONCURRENCY: u32 = 4;
    pub(crate) const BATCH_MESSAGES: u32 = 500;
}

/// Seed 003, "Tuning Broadway RabbitMQ Pipelines for Latency".
pub(super) mod pipelines {
    use super::{SeedFigure, figure};

    pub(crate) const SERIAL: SeedFigure = figure(121, "the second job 21.651 s late");
    pub(crate) const ONE_PRODUCER: SeedFigure = figure(633, "all at once");
    /// `concurrency: 2`, line 83, and `concurrency: 25`, line 87.
    pub(crate) const PRODUCERS: usize = 2;
    pub(crate) const PROCESSORS: usize = 25;
    /// "max_demand: 10", line 28.
    pub(crate) const DEMAND: usize = 10;
    /// Seconds of a job. The seed says "tens of seconds"; line 121 shows about this.
    pub(crate) const JOB_S: f64 = 21.65;
}

/// Seed 004, NSQ's "Performance".
pub(super) mod channels {
    use super::{SeedFigure, figure};

    pub(crate) const PUBLISH_ONLY: SeedFigure = figure(40, "2,070,549/s");
    pub(crate) const PUBLISHED: SeedFigure = figure(56, "842,149/s");
    pub(crate) const CONSUMED: SeedFigure = figure(55, "806,838/s");
    /// One nsqd on a laptop of 2012, one publisher and one consumer, messages of 200 bytes.
    pub(crate) const ONE_PUBLISHED: SeedFigure = figure(91, "432,539/s");
    pub(crate) const ONE_CONSUMED: SeedFigure = figure(92, "166,396/s");
    /// "messages are distributed over 3 topics", line 34.
    pub(crate) const TOPICS: u32 = 3;
    /// "24 clients per channel", line 48.
    pub(crate) const CONSUMERS: u32 = 24;
    /// "launching 9 producer(s)", for three topics, line 39.
    pub(crate) const PRODUCERS: u32 = 3;
    pub(crate) const SIZE_BYTES: usize = 100;
    /// Of the runs: "10.002s", line 40.
    pub(crate) const SECONDS: f64 = 10.0;
    /// The default batch of `bench_writer`.
    pub(crate) const BATCH_MESSAGES: u32 = 200;
}
