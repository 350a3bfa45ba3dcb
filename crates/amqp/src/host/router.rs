//! The router: takes messages that died, and delayed ones whose time has come, out of their hidden
//! topics, and publishes them where they belong by what is bound now.
//!
//! A message is acknowledged in its hidden topic once all its publishes hold; so a crash may route
//! it a second time, and loses none. Once the kernel has all of them it has moved: a kill routes it
//! no second time, though the disk is still waited for. What cannot be stored now is tried again
//! later.

mod outgoing;
mod routing;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cloverleaf_broker::{
    Consumer, ConsumerOptions, Delivery, MessageId, PublishError, Published, Topic,
};
use cloverleaf_log::{AppendError, RecordCursor};
use uuid::Uuid;

use self::outgoing::Outgoing;
use super::VirtualHost;

/// The router's subscription of its topics.
pub(super) const ROUTER: &str = "router";
/// Most messages of a topic under way at once.
const MOVING_MAX: u32 = 4096;
/// What could not be stored is tried again after this long.
const RETRY_MS: u64 = 1_000;
/// After a change of the catalog the queues are looked through, this often at most.
const SWEEP_INTERVAL_MS: u64 = 200;
/// So many messages that have to be routed once more are remembered with the queues that have them.
/// Further ones go to all their queues again.
const REACHED_MAX: usize = 100_000;
/// While a publish waits for its write, the router looks again after so long.
const UNWRITTEN_MS: u64 = 2;
/// With nothing to do the router looks after so long all the same.
const IDLE_MS: u64 = 3_600_000;

/// From where a message comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lane {
    Dead,
    Delayed,
}

const LANES: [Lane; 2] = [Lane::Dead, Lane::Delayed];

/// The state of the router.
#[derive(Default)]
pub(super) struct Router {
    consumers: [Option<Consumer>; 2],
    letters: HashMap<u64, Letter>,
    last_letter: u64,
    /// The queues that have a message already which has to be routed once more.
    reached: HashMap<(Lane, MessageId), Vec<Uuid>>,
    moving: Vec<Moving>,
    /// Letters of which the kernel has all publishes since it was last noted.
    moved: Vec<u64>,
    /// Queues of which a cycle was told.
    cycles: HashSet<Arc<str>>,
    next_sweep_ms: u64,
    next_warning_ms: u64,
}

/// A message whose publishes do not all hold yet.
#[derive(Debug)]
struct Letter {
    lane: Lane,
    id: MessageId,
    /// Publishes that are not decided; one more while it is being routed.
    open: u32,
    /// Of these, the ones that the kernel does not have yet.
    unwritten: u32,
    /// One of them failed: the message is routed once more.
    failed: bool,
    /// The topics of the queues that have it. Not to be routed to these again.
    reached: Vec<Uuid>,
}

/// A publish under way, with the letters in it.
struct Moving {
    published: Published,
    letters: Vec<u64>,
    /// For which queue: its topic.
    queue: Option<Uuid>,
    is_written: bool,
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the router has panicked: the broker ends, start it again");
            std::process::abort();
        }
    }
}

impl VirtualHost {
    /// Routes dead and delayed messages and ends queues that expire, until [`VirtualHost::close`];
    /// for a thread of its own.
    ///
    /// A panic in it would keep messages back while everything else seems to work; so it ends the
    /// process, which a restart survives by design.
    pub fn run_router(&self) {
        let _guard = AbortOnPanic;
        while let Some(until_ms) = self.router_tick() {
            self.signal.wait(self.broker.now_ms(), until_ms);
        }
    }

    /// Ends the router. Call it before the broker is closed.
    pub fn close(&self) {
        self.signal.close();
        self.router.lock().stop();
    }

    /// Does what the router has to do now. Says when it wants to be called again at the latest,
    /// milliseconds since 1970; `None`: never.
    pub fn router_tick(&self) -> Option<u64> {
        let mut router = self.router.lock();
        if self.signal.is_closed() {
            router.stop();
            return None;
        }
        let now_ms = self.broker.now_ms();
        let mut until_ms = now_ms.saturating_add(IDLE_MS);
        if self.signal.has_catalog_changed() && now_ms >= router.next_sweep_ms {
            router.next_sweep_ms = now_ms + SWEEP_INTERVAL_MS;
            self.signal.look_at_catalog();
            self.sweep();
        }
        if self.signal.has_catalog_changed() {
            until_ms = until_ms.min(router.next_sweep_ms);
        }
        if let Some(due_ms) = self.expire_queues(now_ms) {
            until_ms = until_ms.min(due_ms);
        }
        router.advance(self, &Waker::from(self.signal.clone()), now_ms);
        if router.moving.iter().any(|moving| !moving.is_written) {
            until_ms = until_ms.min(now_ms + UNWRITTEN_MS);
        }
        Some(until_ms)
    }
}

impl Router {
    fn stop(&mut self) {
        self.consumers = [None, None];
        self.letters.clear();
        self.reached.clear();
        self.moving.clear();
        self.moved.clear();
    }

    fn advance(&mut self, host: &VirtualHost, waker: &Waker, now_ms: u64) {
        let mut context = Context::from_waker(waker);
        loop {
            self.finish(&mut context, now_ms);
            // As every other producer, it waits until the disk has taken what was accepted.
            if host.broker.room().poll_free(&mut context).is_pending() {
                return;
            }
            let mut any = false;
            for lane in LANES {
                any |= self.take(host, lane, &mut context, now_ms);
            }
            if !any {
                return;
            }
        }
    }

    /// Takes what has come in a lane. `false`: nothing.
    fn take(
        &mut self,
        host: &VirtualHost,
        lane: Lane,
        context: &mut Context<'_>,
        now_ms: u64,
    ) -> bool {
        let slot = &mut self.consumers[lane as usize];
        if slot.is_none() {
            *slot = attach(lane.topic(host));
        }
        let Some(consumer) = slot else {
            return false;
        };
        let mut deliveries: Vec<Delivery> = Vec::new();
        match consumer.poll_deliveries(context, &mut deliveries) {
            Poll::Pending => return false,
            Poll::Ready(None) => {
                *slot = None;
                return false;
            }
            Poll::Ready(Some(())) => {}
        }
        let mut outgoing = Outgoing::new(now_ms);
        let mut taken = Vec::new();
        for delivery in &deliveries {
            let mut records = RecordCursor::at(&delivery.batch, delivery.position);
            for _ in 0..delivery.count {
                // It was read when it was delivered.
                let Ok(Some((offset, record))) = records.next_record() else {
                    break;
                };
                let id = MessageId {
                    partition: delivery.partition,
                    offset,
                };
                let letter = self.add(lane, id);
                taken.push(letter);
                self.route(host, lane, letter, &record, &mut outgoing);
            }
        }
        outgoing.flush(self);
        let mut done = Vec::new();
        for letter in taken {
            self.written_one(letter);
            self.close_one(letter, Ok(None), &mut done);
        }
        self.settle(done, now_ms);
        true
    }

    fn add(&mut self, lane: Lane, id: MessageId) -> u64 {
        self.last_letter += 1;
        let letter = Letter {
            lane,
            id,
            open: 1,
            unwritten: 1,
            failed: false,
            reached: self.reached.remove(&(lane, id)).unwrap_or_default(),
        };
        self.letters.insert(self.last_letter, letter);
        self.last_letter
    }

    /// A letter is part of one more publish.
    fn open_one(&mut self, letter: u64) {
        if let Some(letter) = self.letters.get_mut(&letter) {
            letter.open += 1;
            letter.unwritten += 1;
        }
    }

    /// The kernel has one publish of a letter, or it is routed, or it failed.
    fn written_one(&mut self, number: u64) {
        if let Some(letter) = self.letters.get_mut(&number) {
            letter.unwritten = letter.unwritten.saturating_sub(1);
            if letter.unwritten == 0 {
                self.moved.push(number);
            }
        }
    }

    /// Whether a letter is in a queue since an earlier try.
    fn has_reached(&self, letter: u64, queue: Uuid) -> bool {
        let letter = self.letters.get(&letter);
        letter.is_some_and(|letter| letter.reached.contains(&queue))
    }

    /// One publish of a letter is decided: it is in that queue, or it failed.
    fn close_one(&mut self, number: u64, came: Result<Option<Uuid>, ()>, done: &mut Vec<Letter>) {
        let Some(letter) = self.letters.get_mut(&number) else {
            return;
        };
        match came {
            Ok(queue) => letter.reached.extend(queue),
            Err(()) => letter.failed = true,
        }
        letter.open = letter.open.saturating_sub(1);
        if letter.open == 0 {
            done.extend(self.letters.remove(&number));
        }
    }

    fn push(&mut self, published: Published, letters: Vec<u64>, queue: Option<Uuid>) {
        for letter in &letters {
            self.open_one(*letter);
        }
        self.moving.push(Moving {
            published,
            letters,
            queue,
            is_written: false,
        });
    }

    /// Looks which publishes are written, and which are decided.
    fn finish(&mut self, context: &mut Context<'_>, now_ms: u64) {
        let mut done = Vec::new();
        for mut moving in std::mem::take(&mut self.moving) {
            let polled = Pin::new(&mut moving.published).poll(context);
            if !moving.is_written && (polled.is_ready() || moving.published.is_written()) {
                moving.is_written = true;
                for letter in &moving.letters {
                    self.written_one(*letter);
                }
            }
            match polled {
                Poll::Pending => self.moving.push(moving),
                Poll::Ready(result) => {
                    if let Err(error) = &result {
                        self.warn(error, now_ms);
                    }
                    let came = result.map(|()| moving.queue).map_err(drop);
                    for letter in moving.letters {
                        self.close_one(letter, came, &mut done);
                    }
                }
            }
        }
        self.note_moved();
        self.settle(done, now_ms);
    }

    /// Tells the subscriptions what has moved and is still waited for.
    fn note_moved(&mut self) {
        let moved = std::mem::take(&mut self.moved);
        let letters: Vec<&Letter> = moved
            .iter()
            .filter_map(|number| self.letters.get(number))
            .filter(|letter| !letter.failed)
            .collect();
        for lane in LANES {
            let of_lane = letters.iter().filter(|letter| letter.lane == lane);
            let ids: Vec<MessageId> = of_lane.map(|letter| letter.id).collect();
            if let (Some(consumer), false) = (&self.consumers[lane as usize], ids.is_empty()) {
                consumer.note_moved(&ids, true);
            }
        }
    }

    /// Acknowledges what is done, and gives back what has to be done again.
    fn settle(&mut self, done: Vec<Letter>, now_ms: u64) {
        for lane in LANES {
            let Some(consumer) = &self.consumers[lane as usize] else {
                continue;
            };
            let of_lane = || done.iter().filter(move |letter| letter.lane == lane);
            let well: Vec<MessageId> = of_lane()
                .filter(|letter| !letter.failed)
                .map(|letter| letter.id)
                .collect();
            if !well.is_empty() {
                // One that is no longer in flight needs nothing.
                consumer.ack_many(&well, |_, _, _| {});
            }
            for letter in of_lane().filter(|letter| letter.failed) {
                consumer.note_moved(&[letter.id], false);
                if consumer.nack(letter.id, RETRY_MS).is_err() {
                    tracing::debug!(id = ?letter.id, now_ms, "a letter was settled by others");
                }
            }
        }
        for letter in done.into_iter().filter(|letter| letter.failed) {
            if !letter.reached.is_empty() && self.reached.len() < REACHED_MAX {
                self.reached
                    .insert((letter.lane, letter.id), letter.reached);
            }
        }
    }

    /// A publish failed for a reason that passes.
    fn warn(&mut self, error: &PublishError, now_ms: u64) {
        if now_ms >= self.next_warning_ms {
            self.next_warning_ms = now_ms + RETRY_MS;
            tracing::warn!(%error, "cannot route a dead or delayed message yet");
        }
    }
}

impl Lane {
    fn topic(self, host: &VirtualHost) -> &Arc<Topic> {
        match self {
            Self::Dead => &host.dead,
            Self::Delayed => &host.delayed,
        }
    }
}

fn attach(topic: &Arc<Topic>) -> Option<Consumer> {
    let options = ConsumerOptions {
        label: ROUTER.to_owned(),
        ..ConsumerOptions::default()
    };
    let consumer = topic.subscription(ROUTER)?.attach(options).ok()?;
    consumer.set_window(MOVING_MAX);
    Some(consumer)
}

/// Whether a publish that was refused can succeed later.
fn is_passing(error: &PublishError) -> bool {
    match error {
        PublishError::Log(AppendError::TooLarge { .. }) => false,
        PublishError::Log(_)
        | PublishError::ScheduleFull { .. }
        | PublishError::NoSchedule { .. } => true,
        PublishError::TopicDeleted { .. }
        | PublishError::QueueFull { .. }
        | PublishError::NoSuchPartition { .. }
        | PublishError::ForeignAppendTime
        | PublishError::NotOneMessage
        | PublishError::TooLarge { .. }
        | PublishError::Timestamp { .. }
        | PublishError::NoKey { .. }
        | PublishError::Batch(_)
        | PublishError::Inflate(_) => false,
    }
}
