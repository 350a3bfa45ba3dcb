//! Model of the state that only the journal has: every state that was true since the last sync.
//!
//! A kill loses no change that was answered. A power loss may lose the newest changes, but never
//! one in the middle, and none that was synced; a topic whose folder exists is restored from the
//! folder.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

/// A topic in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelTopic {
    /// Nil if the machine died while the topic was created, so that its id is unknown.
    pub(super) id: Uuid,
    pub(super) partitions: u32,
    pub(super) marker: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CatalogState {
    pub(super) topics: BTreeMap<String, ModelTopic>,
    pub(super) subscriptions: BTreeSet<(Uuid, String)>,
    /// By group, topic and partition.
    pub(super) committed: BTreeMap<(String, Uuid, u32), u64>,
    pub(super) kept: BTreeMap<String, Vec<u8>>,
}

#[derive(Default)]
pub(super) struct CatalogModel {
    /// The state after each change since the last synced one (the first entry), each with the
    /// number of topics created until then.
    history: Vec<(CatalogState, usize)>,
    /// How many entries were removed before the first one.
    forgotten: usize,
    /// The index of the last change that was answered.
    answered: usize,
    /// The ordinal of each topic's creation.
    made: BTreeMap<Uuid, usize>,
}

impl CatalogState {
    pub(super) fn without_topic(&self, name: &str) -> Self {
        let mut state = self.clone();
        if let Some(made) = state.topics.remove(name) {
            state.subscriptions.retain(|(id, _)| *id != made.id);
            state.committed.retain(|(_, id, _), _| *id != made.id);
        }
        state
    }

    /// The parts of the state that belong to these topics.
    fn of_topics(&self, is_there: impl Fn(&Uuid) -> bool) -> Self {
        let mut state = self.clone();
        state.topics.clear();
        state.subscriptions.retain(|(id, _)| is_there(id));
        state.committed.retain(|(_, id, _), _| is_there(id));
        state
    }
}

impl CatalogModel {
    pub(super) fn now(&self) -> &CatalogState {
        &self.history[self.history.len() - 1].0
    }

    fn push(&mut self, state: CatalogState) {
        for made in state.topics.values() {
            let count = self.made.len();
            self.made.entry(made.id).or_insert(count);
        }
        self.history.push((state, self.made.len()));
    }

    /// Adds a change that was answered.
    pub(super) fn changed(&mut self, state: CatalogState) {
        self.push(state);
        self.answered = self.history.len() - 1;
    }

    /// Adds a change that failed because the machine died: it may have happened.
    pub(super) fn may_have_changed(&mut self, state: CatalogState) {
        self.push(state);
    }

    /// Whether the newest change was answered.
    pub(super) fn is_sure(&self) -> bool {
        self.answered + 1 == self.history.len()
    }

    /// Identifies the newest answered change.
    pub(super) fn mark(&self) -> usize {
        self.forgotten + self.answered
    }

    /// Forgets the states before a mark: everything up to it was synced.
    pub(super) fn synced(&mut self, mark: usize) {
        let gone = mark.saturating_sub(self.forgotten);
        self.history.drain(..gone);
        self.forgotten += gone;
        self.answered -= gone;
    }

    /// Checks that a start has found a state that was true.
    pub(super) fn check(&mut self, found: CatalogState, power: bool) {
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

    /// Starts over from this state, which counts as synced.
    pub(super) fn reset(&mut self, found: CatalogState) {
        self.history.clear();
        self.made.remove(&Uuid::nil());
        self.changed(found);
    }

    fn explains(
        &self,
        (then, made): &(CatalogState, usize),
        found: &CatalogState,
        power: bool,
    ) -> bool {
        // A power loss may take a topic's entry; its folder restores it.
        let is_orphan = |id: &Uuid| power && self.made.get(id).is_none_or(|when| when >= made);
        let is_known = |(name, found): (&String, &ModelTopic)| {
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
