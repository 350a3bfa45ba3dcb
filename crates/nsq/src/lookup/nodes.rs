//! State that nsqlookupd keeps in addition to the registrations of its producers: tombstones and
//! deleted registrations.
//!
//! This broker is the only producer, so every topic and channel that exists is registered unless a
//! note hides it. A note is bound to one topic or channel object: it has no effect once that is
//! deleted, even if another one is created under the same name.
//!
//! Deleting a topic through nsqlookupd deletes no data, neither in NSQ nor here: it withdraws the
//! registration until the topic is registered again. nsqadmin deletes a topic by asking nsqlookupd
//! first and nsqd second. If the first request deleted the topic, the second one would fail.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

/// How long a tombstone hides a producer, in milliseconds: nsqlookupd's `--tombstone-lifetime`.
pub const TOMBSTONE_LIFETIME_MS: u64 = 45_000;

/// A note about one topic.
#[derive(Debug)]
struct TopicNote<T> {
    topic: Weak<T>,
    /// When the topic was tombstoned, nanoseconds since the Unix epoch.
    tombstoned_ns: Option<u64>,
    /// `Some` if the topic's registration was deleted: the channels that existed at that time.
    withdrawn: Option<BTreeSet<String>>,
}

/// The notes. `T` is a topic and `C` a channel; only the identity of their objects matters here.
#[derive(Debug)]
pub struct LookupNotes<T, C> {
    topics: HashMap<String, TopicNote<T>>,
    channels: HashMap<(String, String), Weak<C>>,
}

impl<T, C> Default for LookupNotes<T, C> {
    fn default() -> LookupNotes<T, C> {
        LookupNotes {
            topics: HashMap::new(),
            channels: HashMap::new(),
        }
    }
}

fn is_same<X>(weak: &Weak<X>, arc: &Arc<X>) -> bool {
    Weak::as_ptr(weak) == Arc::as_ptr(arc)
}

impl<T, C> LookupNotes<T, C> {
    fn note(&self, name: &str, topic: &Arc<T>) -> Option<&TopicNote<T>> {
        self.topics
            .get(name)
            .filter(|note| is_same(&note.topic, topic))
    }

    fn note_mut(&mut self, name: &str, topic: &Arc<T>) -> &mut TopicNote<T> {
        // Drops the notes about deleted topics, so that the table does not outgrow the broker's.
        self.topics.retain(|_, note| note.topic.strong_count() > 0);
        let fresh = || TopicNote {
            topic: Arc::downgrade(topic),
            tombstoned_ns: None,
            withdrawn: None,
        };
        let note = self.topics.entry(name.to_owned()).or_insert_with(fresh);
        if !is_same(&note.topic, topic) {
            *note = fresh();
        }
        note
    }

    /// Hides this broker from `/lookup` of the topic for [`TOMBSTONE_LIFETIME_MS`].
    pub fn tombstone(&mut self, name: &str, topic: &Arc<T>, now_ns: u64) {
        self.note_mut(name, topic).tombstoned_ns = Some(now_ns);
    }

    /// When the topic was tombstoned, even if the tombstone has expired.
    pub fn tombstoned_ns(&self, name: &str, topic: &Arc<T>) -> Option<u64> {
        self.note(name, topic)?.tombstoned_ns
    }

    /// Whether the topic has a tombstone that has not expired at `now_ns`.
    pub fn is_tombstoned(&self, name: &str, topic: &Arc<T>, now_ns: u64) -> bool {
        let age_ns = |at_ns: u64| now_ns.saturating_sub(at_ns);
        self.tombstoned_ns(name, topic)
            .is_some_and(|at_ns| age_ns(at_ns) < TOMBSTONE_LIFETIME_MS * 1_000_000)
    }

    /// Deletes the registration of a topic, but not those of its channels.
    pub fn withdraw_topic(&mut self, name: &str, topic: &Arc<T>, channels: BTreeSet<String>) {
        let note = self.note_mut(name, topic);
        note.withdrawn = Some(channels);
        note.tombstoned_ns = None;
    }

    /// Restores the registration of a topic.
    pub fn register_topic(&mut self, name: &str, topic: &Arc<T>) {
        if self.note(name, topic).is_some() {
            self.note_mut(name, topic).withdrawn = None;
        }
    }

    /// Whether the topic is registered: it is, unless its registration was deleted and it has had
    /// no new channel since.
    pub fn is_topic_registered(
        &self,
        name: &str,
        topic: &Arc<T>,
        channels: &BTreeSet<String>,
    ) -> bool {
        let withdrawn = self
            .note(name, topic)
            .and_then(|note| note.withdrawn.as_ref());
        withdrawn.is_none_or(|then| !channels.is_subset(then))
    }

    /// Deletes the registration of a channel.
    pub fn withdraw_channel(&mut self, topic: &str, name: &str, channel: &Arc<C>) {
        self.channels
            .retain(|_, channel| channel.strong_count() > 0);
        self.channels
            .insert((topic.to_owned(), name.to_owned()), Arc::downgrade(channel));
    }

    /// Restores the registration of a channel.
    pub fn register_channel(&mut self, topic: &str, name: &str) {
        self.channels.remove(&(topic.to_owned(), name.to_owned()));
    }

    /// Whether the channel is registered.
    pub fn is_channel_registered(&self, topic: &str, name: &str, channel: &Arc<C>) -> bool {
        let key = (topic.to_owned(), name.to_owned());
        self.channels
            .get(&key)
            .is_none_or(|withdrawn| !is_same(withdrawn, channel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Notes = LookupNotes<u8, u8>;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_tombstone_counts_for_its_lifetime_and_its_topic() {
        let mut notes = Notes::default();
        let topic = Arc::new(1);
        let lifetime_ns = TOMBSTONE_LIFETIME_MS * 1_000_000;
        assert!(!notes.is_tombstoned("t", &topic, 0));
        notes.tombstone("t", &topic, 10);
        assert!(notes.is_tombstoned("t", &topic, 10));
        assert!(notes.is_tombstoned("t", &topic, 9 + lifetime_ns));
        assert!(!notes.is_tombstoned("t", &topic, 10 + lifetime_ns));
        assert_eq!(notes.tombstoned_ns("t", &topic), Some(10));
        let successor = Arc::new(2);
        assert!(!notes.is_tombstoned("t", &successor, 10));
    }

    #[test]
    fn a_withdrawn_topic_returns_with_a_new_channel() {
        let mut notes = Notes::default();
        let topic = Arc::new(1);
        notes.withdraw_topic("t", &topic, set(&["a"]));
        assert!(!notes.is_topic_registered("t", &topic, &set(&["a"])));
        assert!(!notes.is_topic_registered("t", &topic, &set(&[])));
        assert!(notes.is_topic_registered("t", &topic, &set(&["a", "b"])));
        assert!(notes.is_topic_registered("t", &Arc::new(2), &set(&["a"])));
        notes.register_topic("t", &topic);
        assert!(notes.is_topic_registered("t", &topic, &set(&["a"])));
    }

    #[test]
    fn a_withdrawn_channel_stays_so_until_it_is_another() {
        let mut notes = Notes::default();
        let channel = Arc::new(1);
        notes.withdraw_channel("t", "c", &channel);
        assert!(!notes.is_channel_registered("t", "c", &channel));
        assert!(notes.is_channel_registered("t", "c", &Arc::new(2)));
        notes.register_channel("t", "c");
        assert!(notes.is_channel_registered("t", "c", &channel));
    }

    #[test]
    fn notes_about_deleted_topics_and_channels_are_dropped() {
        let mut notes = Notes::default();
        for n in 0..100 {
            notes.tombstone(&format!("t{n}"), &Arc::new(n), 0);
            notes.withdraw_channel("t", &format!("c{n}"), &Arc::new(n));
        }
        assert!(notes.topics.len() <= 1 && notes.channels.len() <= 1);
    }
}
