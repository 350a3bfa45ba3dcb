//! A line: what was sent over a link in one direction, and has not been delivered.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::Notify;

use super::{Alarm, LinkDirection};

/// Bytes that an item counts at least, so that many small ones are bounded, too.
const ITEM_BYTES_MIN: usize = 128;

/// Items on their way, in order, each with the time at which it arrives: jitter delays, and lets
/// nothing overtake. One task puts items in, and one takes them out.
#[derive(Debug)]
pub(crate) struct DelayLine<T> {
    alarm: Rc<Alarm>,
    direction: Rc<RefCell<LinkDirection>>,
    most_bytes: usize,
    items: RefCell<VecDeque<OnItsWay<T>>>,
    held_bytes: Cell<usize>,
    /// Of the item that was taken last: it may not be delivered yet.
    taken_bytes: Cell<usize>,
    last_due_ns: Cell<u64>,
    was_put: Notify,
    was_delivered: Notify,
}

#[derive(Debug)]
struct OnItsWay<T> {
    due_ns: u64,
    bytes: usize,
    item: T,
}

impl<T> DelayLine<T> {
    /// An empty line that is to hold no more than about this.
    pub(crate) fn new(
        alarm: &Rc<Alarm>,
        direction: &Rc<RefCell<LinkDirection>>,
        most_bytes: usize,
    ) -> DelayLine<T> {
        DelayLine {
            alarm: Rc::clone(alarm),
            direction: Rc::clone(direction),
            most_bytes,
            items: RefCell::default(),
            held_bytes: Cell::default(),
            taken_bytes: Cell::default(),
            last_due_ns: Cell::default(),
            was_put: Notify::new(),
            was_delivered: Notify::new(),
        }
    }

    /// How many bytes may be put in.
    pub(crate) fn free_bytes(&self) -> usize {
        self.most_bytes.saturating_sub(self.held_bytes.get())
    }

    /// Waits until bytes may be put in; gives how many.
    pub(crate) async fn has_free_bytes(&self) -> usize {
        while self.free_bytes() == 0 {
            self.was_delivered.notified().await;
        }
        self.free_bytes()
    }

    /// Sends an item of so many bytes, but not before this time. Asked after the bytes were read:
    /// what came while this thread did not run would arrive too early by an earlier time.
    pub(crate) fn put(&self, item: T, bytes: usize, not_before_ns: u64) {
        let now_ns = self.alarm.now_ns().max(not_before_ns);
        let due_ns = self.direction.borrow_mut().due_ns(bytes, now_ns);
        let due_ns = due_ns.max(self.last_due_ns.get());
        self.last_due_ns.set(due_ns);
        let bytes = bytes.max(ITEM_BYTES_MIN);
        self.held_bytes.set(self.held_bytes.get() + bytes);
        let item = OnItsWay {
            due_ns,
            bytes,
            item,
        };
        self.items.borrow_mut().push_back(item);
        self.was_put.notify_one();
    }

    /// Sends an item if there is room for it; if not, it is lost, as in a network.
    pub(crate) fn put_or_lose(&self, item: T, bytes: usize) {
        if bytes.max(ITEM_BYTES_MIN) <= self.free_bytes() {
            self.put(item, bytes, 0);
        }
    }

    /// The next item, once it has arrived. The one before it counts as delivered from then on.
    pub(crate) async fn next(&self) -> T {
        // A long queue that has arrived lets others have their turn.
        tokio::task::consume_budget().await;
        let held_bytes = self.held_bytes.get() - self.taken_bytes.take();
        self.held_bytes.set(held_bytes);
        self.was_delivered.notify_one();
        loop {
            let due_ns = self.items.borrow().front().map(|it| it.due_ns);
            match due_ns {
                Some(due_ns) => self.alarm.until(due_ns).await,
                None => self.was_put.notified().await,
            }
            let arrived = |it: &mut OnItsWay<T>| it.due_ns <= self.alarm.now_ns();
            let arrived = self.items.borrow_mut().pop_front_if(arrived);
            if let Some(arrived) = arrived {
                self.taken_bytes.set(arrived.bytes);
                return arrived.item;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::delay::Link;

    fn line(
        rtt_us: u64,
        jitter_us: u64,
        bandwidth: Option<&str>,
        most: usize,
    ) -> (Rc<Alarm>, DelayLine<usize>) {
        let link = Link {
            rtt: Duration::from_micros(rtt_us),
            jitter: Duration::from_micros(jitter_us),
            bandwidth: bandwidth.map(|text| text.parse().unwrap()),
        };
        let alarm = Rc::new(Alarm::told());
        let direction = Rc::new(RefCell::new(link.direction()));
        let line = DelayLine::new(&alarm, &direction, most);
        (alarm, line)
    }

    fn last_due_ns(line: &DelayLine<usize>) -> u64 {
        line.items.borrow().back().unwrap().due_ns
    }

    proptest! {
        #[test]
        fn items_arrive_in_order_and_not_before_their_time(
            sizes in prop::collection::vec((1..5_000usize, 0..3_000_000u64), 1..100),
            jitter_us in 0..5_000u64,
        ) {
            let (alarm, line) = line(10_000, jitter_us, None, 1 << 20);
            let mut sent_ns = Vec::new();
            for (number, (size, pause_ns)) in sizes.into_iter().enumerate() {
                alarm.tell(alarm.now_ns() + pause_ns);
                line.put(number, size, 0);
                sent_ns.push(alarm.now_ns());
            }
            let last_ns = alarm.now_ns();
            for (number, sent_ns) in sent_ns.into_iter().enumerate() {
                let due_ns = line.items.borrow().front().unwrap().due_ns;
                prop_assert!(due_ns >= sent_ns + 5_000_000);
                let most_ns = last_ns.min(sent_ns + 5_000_000) + 5_000_000 + jitter_us * 1_000;
                prop_assert!(due_ns <= most_ns);
                alarm.tell(due_ns - 1);
                prop_assert_eq!(line.next().now_or_never(), None);
                alarm.tell(due_ns);
                prop_assert_eq!(line.next().now_or_never(), Some(number));
            }
            prop_assert_eq!(line.next().now_or_never(), None);
            prop_assert_eq!((line.items.borrow().len(), line.held_bytes.get()), (0, 0));
        }
    }

    #[test]
    fn a_full_line_loses_items_and_has_room_again() {
        let (alarm, line) = line(10_000, 0, Some("8Mbit"), 256 << 10);
        (0..1_000).for_each(|number| line.put_or_lose(number, 1_500));
        assert!(line.held_bytes.get() <= 256 << 10);
        let held = line.items.borrow().len();
        // A megabyte per second.
        let (last_ns, seconds) = (last_due_ns(&line), (held * 1_500) as f64 / 1e6);
        assert!((last_ns as f64 / 1e9 - seconds).abs() < 0.03, "{last_ns}");
        alarm.tell(last_ns);
        assert_eq!(line.next().now_or_never(), Some(0));
        line.put_or_lose(1_000, 1_500);
        assert_eq!(line.items.borrow().len(), held - 1, "it is not delivered");
        assert_eq!(line.next().now_or_never(), Some(1));
        line.put_or_lose(1_001, 1_500);
        assert_eq!(line.items.borrow().len(), held - 1);
    }

    #[test]
    fn many_empty_items_are_bounded_too() {
        let (_, line) = line(10_000, 0, None, 64 << 20);
        (0..2 * (64 << 20) / ITEM_BYTES_MIN).for_each(|number| line.put_or_lose(number, 0));
        assert_eq!(line.items.borrow().len(), (64 << 20) / ITEM_BYTES_MIN);
    }

    #[test]
    fn a_writer_waits_for_room() {
        let (alarm, line) = line(0, 0, None, 200);
        line.put(0, 200, 0);
        assert_eq!(line.has_free_bytes().now_or_never(), None);
        alarm.tell(1);
        assert_eq!(line.next().now_or_never(), Some(0));
        assert_eq!(line.has_free_bytes().now_or_never(), None, "not delivered");
        assert_eq!(line.next().now_or_never(), None);
        assert_eq!(line.has_free_bytes().now_or_never(), Some(200));
    }
}
