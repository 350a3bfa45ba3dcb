//! A window that several consumers share, of one or many subscriptions (AMQP's `basic.qos` with
//! `global`).
//!
//! Each subscription has its own lock, so dispatch reserves slots in the window before it looks for
//! messages, and releases the unused ones. A subscription that finds the window full registers as a
//! waiter. When slots are released, waiters dispatch one after the other, while no lock is held.
//! While there are waiters, only the one whose turn it is may reserve slots. Otherwise the consumer
//! that releases a slot would take it again at once, and the waiters' messages would never be
//! delivered.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::subscription::Subscription;

/// Below this number of waiters dropped subscriptions are not removed.
const CLEAN_MIN: usize = 16;

/// Limits the messages in flight to all consumers that share it.
#[derive(Debug)]
pub struct SharedWindow {
    /// The limit; `u32::MAX`: none.
    messages_max: AtomicU32,
    /// Messages in flight, plus slots that a subscription has reserved while it looks for messages.
    taken: AtomicU64,
    waiting: Mutex<WindowWaiters>,
    /// The number of waiters, readable without the lock.
    waiting_count: AtomicUsize,
}

/// The waiters: subscriptions that found the window full.
#[derive(Debug, Default)]
struct WindowWaiters {
    subscriptions: VecDeque<Weak<Subscription>>,
    /// Addresses of the waiters, so that none registers twice. A weak reference keeps an address
    /// from being reused.
    known: HashSet<usize>,
    /// At this number of waiters dropped subscriptions are removed.
    clean_at: usize,
    /// A thread is serving the waiters.
    is_being_served: bool,
}

thread_local! {
    /// Windows with released slots, collected while this thread is serving: avoids recursion.
    static FREED: RefCell<Option<Vec<Arc<SharedWindow>>>> = const { RefCell::new(None) };
    /// Address of the window whose waiter has its turn on this thread; 0: none.
    static TURN_OF: Cell<usize> = const { Cell::new(0) };
}

impl SharedWindow {
    /// A window of `messages` slots; `u32::MAX` is no limit, 0 stops delivery.
    pub fn new(messages: u32) -> Arc<Self> {
        Arc::new(Self {
            messages_max: AtomicU32::new(messages),
            taken: AtomicU64::new(0),
            waiting: Mutex::default(),
            waiting_count: AtomicUsize::new(0),
        })
    }

    /// Changes the limit. Messages in flight beyond it stay in flight.
    pub fn set(self: &Arc<Self>, messages: u32) {
        self.messages_max.store(messages, Ordering::SeqCst);
        serve(vec![self.clone()]);
    }

    /// Messages in flight to the consumers that share it. Slightly too high while a subscription
    /// has slots reserved.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.taken.load(Ordering::SeqCst)).unwrap_or(u32::MAX)
    }

    /// Slots that the caller may reserve now: 0 while others wait.
    pub(crate) fn reservable_slots(&self) -> u64 {
        if self.is_others_turn() {
            0
        } else {
            self.free_slots()
        }
    }

    /// Free slots, regardless of waiters.
    pub(crate) fn free_slots(&self) -> u64 {
        free_of(&self.messages_max, self.taken.load(Ordering::SeqCst))
    }

    /// Whether there are waiters and it is not this thread's turn.
    fn is_others_turn(&self) -> bool {
        self.waiting_count.load(Ordering::SeqCst) > 0
            && TURN_OF.get() != std::ptr::from_ref(self).addr()
    }

    /// Reserves up to `count` slots. Returns how many.
    pub(crate) fn reserve(&self, count: u64) -> u64 {
        if self.is_others_turn() {
            return 0;
        }
        let mut granted = 0;
        let _before = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |taken| {
                granted = count.min(free_of(&self.messages_max, taken));
                (granted > 0).then(|| taken.saturating_add(granted))
            });
        granted
    }

    /// Adds messages that are in flight already, even beyond the limit.
    pub(crate) fn enter(&self, count: u64) {
        self.taken.fetch_add(count, Ordering::SeqCst);
    }

    /// Releases slots. The caller must call [`serve`] once it holds no lock.
    pub(crate) fn release(&self, count: u64) {
        let subtract = |taken: u64| Some(taken.saturating_sub(count));
        let _before = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, subtract);
    }

    /// Registers `subscription` as a waiter. Returns `true` if slots are free by now, of which no
    /// waiter was notified: the caller must call [`serve`] once it holds no lock.
    #[must_use]
    pub(crate) fn register_waiter(&self, subscription: &Arc<Subscription>) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.known.insert(Arc::as_ptr(subscription) as usize) {
            waiting.push(Arc::downgrade(subscription));
            self.count_waiting(&waiting);
        }
        self.free_slots() > 0
    }

    fn count_waiting(&self, waiting: &WindowWaiters) {
        let count = waiting.subscriptions.len();
        self.waiting_count.store(count, Ordering::SeqCst);
    }

    /// Lets waiters dispatch, one after the other, while slots are free.
    fn serve_waiting(self: &Arc<Self>) {
        let mut is_mine = false;
        loop {
            let next = {
                let mut waiting = self.waiting.lock();
                if waiting.is_being_served && !is_mine {
                    // The serving thread checks for free slots once more after this.
                    return;
                }
                let next = match self.free_slots() {
                    0 => None,
                    _ => waiting.pop(),
                };
                self.count_waiting(&waiting);
                is_mine = next.is_some();
                waiting.is_being_served = is_mine;
                next
            };
            match next {
                Some(next) => {
                    if let Some(subscription) = next.upgrade() {
                        let _ends = Turn::of(self);
                        subscription.window_has_free_slots(self);
                    }
                }
                None => return,
            }
        }
    }
}

impl WindowWaiters {
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

fn free_of(messages_max: &AtomicU32, taken: u64) -> u64 {
    match messages_max.load(Ordering::SeqCst) {
        u32::MAX => u64::MAX,
        messages_max => u64::from(messages_max).saturating_sub(taken),
    }
}

/// Serves the waiters of these windows, which have released slots. The caller holds no lock.
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

/// Marks that this thread is serving windows, until dropped.
struct Serving;

impl Drop for Serving {
    fn drop(&mut self) {
        FREED.with_borrow_mut(|freed| *freed = None);
    }
}

/// Marks that a waiter of a window has its turn on this thread, until dropped.
struct Turn {
    before: usize,
}

impl Turn {
    fn of(window: &SharedWindow) -> Turn {
        Turn {
            before: TURN_OF.replace(std::ptr::from_ref(window).addr()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURN_OF.set(self.before);
    }
}
