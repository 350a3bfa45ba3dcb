//! A window that several consumers share, of one subscription or of many (AMQP's `basic.qos` with
//! `global`).
//!
//! Each subscription has a lock of its own, so a place in the window is taken before messages are
//! looked for, and what was too much is given back. A subscription that finds no place leaves its
//! name; the one that frees a place lets it look again, once no lock is held. While somebody waits
//! there is room for the one whose turn it is alone: a consumer that has freed a place would take
//! it again otherwise, and the messages of the others would never come.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::subscription::Subscription;

/// Fewer subscriptions that wait are not worth a look for those that are gone.
const CLEAN_MIN: usize = 16;

/// The most messages that may be in flight to all consumers that share it.
#[derive(Debug)]
pub struct SharedWindow {
    /// `u32::MAX`: no limit.
    messages_max: AtomicU32,
    /// In flight, and places that a subscription holds while it looks for messages.
    taken: AtomicU64,
    waiting: Mutex<Waiting>,
    /// How many wait.
    waiting_count: AtomicUsize,
}

/// The subscriptions that found no place.
#[derive(Debug, Default)]
struct Waiting {
    subscriptions: VecDeque<Weak<Subscription>>,
    /// Where they lie: none waits twice, and none's place is another's while it waits.
    known: HashSet<usize>,
    /// With so many the dead ones are looked for.
    clean_at: usize,
    /// Somebody lets them look again, one by one.
    is_served: bool,
}

thread_local! {
    /// Windows with new room while this thread serves one already: so serving nests in no depth.
    static FREED: RefCell<Option<Vec<Arc<SharedWindow>>>> = const { RefCell::new(None) };
    /// Where the window lies in which this thread lets somebody look whose turn it is; 0: none.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

impl SharedWindow {
    /// A window of so many messages; `u32::MAX` is no limit, 0 stops delivery.
    pub fn new(messages: u32) -> Arc<Self> {
        Arc::new(Self {
            messages_max: AtomicU32::new(messages),
            taken: AtomicU64::new(0),
            waiting: Mutex::default(),
            waiting_count: AtomicUsize::new(0),
        })
    }

    /// Changes the window. Messages in flight beyond it stay.
    pub fn set(self: &Arc<Self>, messages: u32) {
        self.messages_max.store(messages, Ordering::SeqCst);
        serve(vec![self.clone()]);
    }

    /// Messages in flight to the consumers that share it. A little more while one of their
    /// subscriptions is looking for messages.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.taken.load(Ordering::SeqCst)).unwrap_or(u32::MAX)
    }

    /// Places that the caller may take now.
    pub(crate) fn room(&self) -> u64 {
        if self.is_for_others() { 0 } else { self.free() }
    }

    /// Places that are free, whoever may take them.
    pub(crate) fn free(&self) -> u64 {
        room(&self.messages_max, self.taken.load(Ordering::SeqCst))
    }

    /// Whether somebody waits, and it is not the caller's turn.
    fn is_for_others(&self) -> bool {
        self.waiting_count.load(Ordering::SeqCst) > 0
            && TURN.get() != std::ptr::from_ref(self).addr()
    }

    /// Takes up to `count` places. Returns how many.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        if self.is_for_others() {
            return 0;
        }
        let mut granted = 0;
        let _before = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |taken| {
                granted = count.min(room(&self.messages_max, taken));
                (granted > 0).then(|| taken.saturating_add(granted))
            });
        granted
    }

    /// Takes places for messages that are in flight already, whether there is room or not.
    pub(crate) fn enter(&self, count: u64) {
        self.taken.fetch_add(count, Ordering::SeqCst);
    }

    /// Gives places back. The caller has [`serve`] called once it holds no lock.
    pub(crate) fn release(&self, count: u64) {
        let subtract = |taken: u64| Some(taken.saturating_sub(count));
        let _before = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, subtract);
    }

    /// Lets `subscription` look again when there is room. `true`: there is some already, of which
    /// nobody is told; the caller has [`serve`] called once it holds no lock.
    #[must_use]
    pub(crate) fn wait(&self, subscription: &Arc<Subscription>) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.known.insert(Arc::as_ptr(subscription) as usize) {
            waiting.push(Arc::downgrade(subscription));
            self.count_waiting(&waiting);
        }
        self.free() > 0
    }

    fn count_waiting(&self, waiting: &Waiting) {
        let count = waiting.subscriptions.len();
        self.waiting_count.store(count, Ordering::SeqCst);
    }

    /// Lets those who wait look again, as long as there is room.
    fn serve_waiting(self: &Arc<Self>) {
        let mut is_mine = false;
        loop {
            let next = {
                let mut waiting = self.waiting.lock();
                if waiting.is_served && !is_mine {
                    // The thread that serves looks for room once more after this.
                    return;
                }
                let next = match self.free() {
                    0 => None,
                    _ => waiting.pop(),
                };
                self.count_waiting(&waiting);
                is_mine = next.is_some();
                waiting.is_served = is_mine;
                next
            };
            match next {
                Some(next) => {
                    if let Some(subscription) = next.upgrade() {
                        let _ends = Turn::of(self);
                        subscription.window_has_room(self);
                    }
                }
                None => return,
            }
        }
    }
}

impl Waiting {
    fn push(&mut self, subscription: Weak<Subscription>) {
        self.subscriptions.push_back(subscription);
        if self.subscriptions.len() >= self.clean_at.max(CLEAN_MIN) {
            let known = &mut self.known;
            self.subscriptions.retain(|other| {
                let lives = other.strong_count() > 0;
                if !lives {
                    known.remove(&(other.as_ptr() as usize));
                }
                lives
            });
            self.clean_at = self.subscriptions.len() * 2;
        }
    }

    fn pop(&mut self) -> Option<Weak<Subscription>> {
        let next = self.subscriptions.pop_front()?;
        self.known.remove(&(next.as_ptr() as usize));
        Some(next)
    }
}

fn room(messages_max: &AtomicU32, taken: u64) -> u64 {
    match messages_max.load(Ordering::SeqCst) {
        u32::MAX => u64::MAX,
        messages_max => u64::from(messages_max).saturating_sub(taken),
    }
}

/// These windows have new room. The caller holds no lock.
pub(crate) fn serve(windows: Vec<Arc<SharedWindow>>) {
    let is_nested = FREED.with_borrow_mut(|freed| match freed {
        Some(freed) => {
            freed.extend(windows.iter().cloned());
            true
        }
        None => {
            *freed = Some(Vec::new());
            false
        }
    });
    if is_nested {
        return;
    }
    let _ends = Serving;
    let mut windows = windows;
    while !windows.is_empty() {
        for window in windows.drain(..) {
            window.serve_waiting();
        }
        windows = FREED.with_borrow_mut(|freed| std::mem::take(freed.get_or_insert_default()));
    }
}

/// This thread serves windows, until this is dropped.
struct Serving;

impl Drop for Serving {
    fn drop(&mut self) {
        FREED.with_borrow_mut(|freed| *freed = None);
    }
}

/// This thread lets somebody look whose turn it is, until this is dropped.
struct Turn {
    before: usize,
}

impl Turn {
    fn of(window: &SharedWindow) -> Turn {
        Turn {
            before: TURN.replace(std::ptr::from_ref(window).addr()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURN.set(self.before);
    }
}
