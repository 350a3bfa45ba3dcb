//! Threads for Kafka requests that may block on the disk, so that the cores can serve other
//! connections in the meantime. "kafka-control" makes, changes and deletes topics and groups and
//! stores commits; "kafka-lookups" looks messages up by their time, which may take seconds and must
//! delay no commit.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use cloverleaf_kafka::Worker;

type Job = Box<dyn FnOnce() + Send>;

/// `None` ends the thread. Its length is bounded by the answers that a connection may await
/// (`kafka.answers_max`).
struct JobQueue(Sender<Option<Job>>);

impl Worker for JobQueue {
    fn run(&self, job: Job) {
        // It fails if the thread has ended with the broker. Then the job is dropped, which tells
        // its waiters.
        let _ = self.0.send(Some(job));
    }
}

/// One of the threads. Dropping it ends the thread after the jobs already queued.
pub(crate) struct KafkaWorker {
    queue: Arc<JobQueue>,
    thread: Option<JoinHandle<()>>,
}

impl KafkaWorker {
    /// Starts the thread under this name.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(name: &str) -> io::Result<KafkaWorker> {
        let (sender, receiver) = channel();
        let thread = thread::Builder::new().name(name.to_owned());
        Ok(KafkaWorker {
            queue: Arc::new(JobQueue(sender)),
            thread: Some(thread.spawn(move || run(&receiver))?),
        })
    }

    /// The queue that jobs are sent to.
    pub(crate) fn worker(&self) -> Arc<dyn Worker> {
        self.queue.clone()
    }

    /// Ends the thread after the jobs already queued. Blocks until then.
    pub(crate) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        // It fails if the thread has ended already.
        let _ = self.queue.0.send(None);
        if thread.join().is_err() {
            tracing::error!("a thread of the broker ended by a fault");
        }
    }
}

impl Drop for KafkaWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(receiver: &Receiver<Option<Job>>) {
    while let Ok(Some(job)) = receiver.recv() {
        // A panic ends only its own request, as a panic on a core ends only its connection. The
        // state that the job worked on is behind locks, which others find released.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a Kafka request ended by a fault of the broker; others go on");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::time::Duration;

    use cloverleaf_broker::{Broker, BrokerOptions, ManualClock, TopicOptions};
    use cloverleaf_log::{BatchBuilder, Durability, FaultyDisk, Log, LogOptions, SimDisk};
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn jobs_run_in_order_and_a_panic_ends_only_its_own_job() {
        let mut control = KafkaWorker::start("kafka-test").unwrap();
        let worker = control.worker();
        let (sender, receiver) = channel();
        for number in 0..3 {
            let sender = sender.clone();
            worker.run(Box::new(move || {
                assert!(number != 1, "job 1 panics");
                sender.send(number).unwrap();
            }));
        }
        control.stop();
        worker.run(Box::new(move || sender.send(9).unwrap()));
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_shutdown_does_not_wait_for_a_hanging_look_up() {
        let sim = SimDisk::new();
        let open = |disk| {
            let (log, recovery) = Log::open(disk, LogOptions::default()).unwrap();
            let (options, clock) = (BrokerOptions::default(), Arc::new(ManualClock::new(1)));
            let broker = Broker::open(log.clone(), recovery, options, clock).unwrap();
            let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
            (log, broker, topic)
        };
        let (log, broker, topic) = open(FaultyDisk::new(sim.mount()));
        let mut builder = BatchBuilder::with_capacity(64, 1);
        builder.push(None, Some(b"a"), &[]);
        let published = topic.publish_to(0, builder.finish(), Durability::Kernel);
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(published.unwrap()).unwrap();
        drop(topic);
        broker.close();
        log.close();
        drop((broker, log));
        // The broker opens again, with the message on the disk alone.
        let disk = FaultyDisk::new(sim.mount());
        let (log, broker, topic) = open(disk.clone());
        let partition = topic.partition(0).unwrap();
        disk.set(|faults| {
            faults.uncached = true;
            faults.hanging_reads = Some(String::new());
        });
        let mut lookups = KafkaWorker::start("kafka-test").unwrap();
        let (sender, receiver) = channel();
        let told = sender.clone();
        lookups.worker().run(Box::new(move || {
            let found = partition.offset_for_timestamp(1);
            told.send(found.is_err()).unwrap();
        }));
        log.stop_waiting();
        thread::spawn(move || {
            lookups.stop();
            sender.send(true).unwrap();
        });
        for _ in 0..2 {
            // It takes this long only if the test fails.
            assert!(receiver.recv_timeout(Duration::from_secs(120)).unwrap());
        }
        broker.close();
        log.close();
        disk.set(|faults| faults.hanging_reads = None);
    }
}
