//! The state that the journal alone holds, and all that was true of it since the last sync.
//!
//! A kill takes nothing back that was answered. Power takes back the newest changes, never one from
//! the middle, and none that was synced; but a topic whose folder is there is taken in by that.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

/// Of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    /// Nil while nobody was told: the machine died when it was made.
    pub(super) id: Uuid,
    pub(super) partitions: u32,
    pub(super) marker: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) topics: BTreeMap<String, Made>,
    pub(super) subscriptions: BTreeSet<(Uuid, String)>,
    /// By group, topic and partition.
    pub(super) committed: BTreeMap<(String, Uuid, u32), u64>,
    pub(super) kept: BTreeMap<String, Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Catalog {
    /// After each change since the last one that was synced, which is the first; with how many
    /// topics had been made until then.
    history: Vec<(State, usize)>,
    /// How many were before them.
    forgotten: usize,
    /// The last one that was answered.
    answered: usize,
    /// When each topic was made, counted in topics.
    made: BTreeMap<Uuid, usize>,
}

impl State {
    pub(super) fn without_topic(&self, name: &str) -> Self {
        let mut state = self.clone();
        if let Some(made) = state.topics.remove(name) {
            state.subscriptions.retain(|(id, _)| *id != made.id);
            state.committed.retain(|(_, id, _), _| *id != made.id);
        }
        state
    }

    /// As far as these topics are concerned.
    fn of_topics(&self, is_there: impl Fn(&Uuid) -> bool) -> Self {
        let mut state = self.clone();
        state.topics.clear();
        state.subscriptions.retain(|(id, _)| is_there(id));
        state.committed.retain(|(_, id, _), _| is_there(id));
        state
    }
}

impl Catalog {
    pub(super) fn now(&self) -> &State {
        &self.history[self.history.len() - 1].0
    }

    fn push(&mut self, state: State) {
        for made in state.topics.values() {
            let count = self.made.len();
            self.made.entry(made.id).or_insert(count);
        }
        self.history.push((state, self.made.len()));
    }

    /// A change was answered.
    pub(super) fn changed(&mut self, state: State) {
        self.push(state);
        self.answered = self.history.len() - 1;
    }

    /// A change failed because the machine died: it may have happened.
    pub(super) fn doubted(&mut self, state: State) {
        self.push(state);
    }

    /// Whether all that is true was answered.
    pub(super) fn is_sure(&self) -> bool {
        self.answered + 1 == self.history.len()
    }

    /// Names the newest change that was answered.
    pub(super) fn mark(&self) -> usize {
        self.forgotten + self.answered
    }

    /// All up to a mark was synced.
    pub(super) fn synced(&mut self, mark: usize) {
        let gone = mark.saturating_sub(self.forgotten);
        self.history.drain(..gone);
        self.forgotten += gone;
        self.answered -= gone;
    }

    /// A start must have found a state that was true.
    pub(super) fn check(&mut self, found: State, power: bool) {
        let from = if power { 0 } else { self.answered };
        let possible = &self.history[from..];
        let is_explained = possible
            .iter()
            .any(|then| self.explains(then, &found, power));
        assert!(
            is_explained,
            "{found:#?} after {} was never true in {possible:#?}",
            if power { "a power loss" } else { "a kill" }
        );
        self.reset(found);
    }

    /// From here on this is true and synced.
    pub(super) fn reset(&mut self, found: State) {
        self.history.clear();
        self.made.remove(&Uuid::nil());
        self.changed(found);
    }

    fn explains(&self, (then, made): &(State, usize), found: &State, power: bool) -> bool {
        // A folder names a topic that was made later.
        let is_orphan = |id: &Uuid| power && self.made.get(id).is_none_or(|when| when >= made);
        let is_known = |(name, found): (&String, &Made)| {
            let known = then.topics.get(name);
            let is_same = known.is_some_and(|known| {
                known == found || known.id.is_nil() && !self.made.contains_key(&found.id)
            });
            is_same || is_orphan(&found.id)
        };
        let is_there = |name: &String| found.topics.contains_key(name);
        if !found.topics.iter().all(is_known) || !then.topics.keys().all(is_there) {
            return false;
        }
        let ids: BTreeSet<Uuid> = found.topics.values().map(|made| made.id).collect();
        let is_found = |id: &Uuid| ids.contains(id);
        then.of_topics(is_found) == found.of_topics(is_found)
    }
}
