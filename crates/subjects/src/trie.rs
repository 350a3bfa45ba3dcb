//! The patterns that match a subject.

mod hash_tree;
mod label;
mod level;
mod values;
mod walk;

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;

use self::level::{Edge, label_break};
use self::values::Values;
use crate::Pattern;
use crate::subject::REST;

/// A set of pairs of a pattern and a value.
///
/// ```text
/// root ──▶ Level: first token ──▶ Edge: run of tokens, values ──▶ Level: next token ──▶ …
/// ```
///
/// It is a radix tree over tokens: tokens that no two patterns part at share one edge.
///
/// **Memory.** There are at most twice as many edges as patterns, whatever the patterns look like.
/// An edge is 48 bytes for a value of up to 8 bytes, and its text if that is longer than 22 bytes.
///
/// **A match** visits only edges that patterns begin with which match the beginning of the subject.
/// Without `*` in the patterns that is at most one edge per token. Each token at which both a
/// literal and a `*` go on may double the paths, so the number of visited edges is at most
/// `min(2 ^ tokens, edges)`, as in nats-server. No structure of linear size is known that does
/// better for patterns of which no one matches in the end; a limit of subscriptions bounds it.
/// A match does not recurse, and allocates nothing until 16 paths are pending.
///
/// **A clone** is one reference count, and shares everything. The first change after a clone copies
/// its path: per level two reference counts or less, 48 bytes, and of each hash table one leaf of
/// up to 8 edges and one node of 16 pointers per factor of 16 in the size of the table. A batch of
/// changes copies each node at most once. So a writer keeps a trie, changes it, and publishes a
/// clone per batch.
///
/// Values of one pattern are a set by `Eq`. The order of values is unspecified.
#[derive(Clone)]
pub struct PatternTrie<T: Clone> {
    /// Its label is empty, it has no values.
    root: Edge<T>,
    seed: u64,
    values: usize,
    patterns: usize,
}

impl<T: Clone + Eq + Hash> Default for PatternTrie<T> {
    fn default() -> Self {
        PatternTrie::new()
    }
}

impl<T: Clone + Eq + Hash> PatternTrie<T> {
    /// An empty trie whose hashes a client cannot predict.
    pub fn new() -> PatternTrie<T> {
        PatternTrie::with_seed(RandomState::new().hash_one(0_u8))
    }

    /// An empty trie with a known seed of its hashes, for tests that can be repeated: the seed
    /// decides the order of matches.
    pub fn with_seed(seed: u64) -> PatternTrie<T> {
        PatternTrie {
            root: Edge::new(b""),
            seed,
            values: 0,
            patterns: 0,
        }
    }

    /// Number of pairs of a pattern and a value.
    pub fn count(&self) -> usize {
        self.values
    }

    /// Number of different patterns.
    pub fn pattern_count(&self) -> usize {
        self.patterns
    }

    /// Whether there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.values == 0
    }

    /// Whether the pair is new. An equal pair is not replaced.
    pub fn insert(&mut self, pattern: &Pattern, value: T) -> bool {
        // Before anything is copied.
        if self.contains(pattern, &value) {
            return false;
        }
        let seed = self.seed;
        let mut rest = pattern.as_bytes();
        let mut edge = &mut self.root;
        let values = loop {
            let level = Arc::make_mut(edge.below.get_or_insert_default());
            if rest == REST {
                break &mut level.rest;
            }
            edge = level.edge_or_new(rest, seed);
            if let Some(length) = label_break(edge, rest) {
                edge.split(length, seed);
            }
            match rest.get(edge.label.as_bytes().len() + 1..) {
                Some(tail) => rest = tail,
                None => break &mut edge.values,
            }
        };
        self.patterns += usize::from(values.is_empty());
        self.values += 1;
        values.insert(value, seed)
    }

    /// Whether the pair was there. If not, nothing is copied.
    pub fn remove(&mut self, pattern: &Pattern, value: &T) -> bool {
        if !self.contains(pattern, value) {
            return false;
        }
        let seed = self.seed;
        let mut rest = pattern.as_bytes();
        let mut owner = &mut self.root;
        let mut owner_is_root = true;
        // Down to the edge above the one that ends with the pattern.
        while let Some(tail) = owner.tail_below(rest, seed) {
            let Some(below) = &mut owner.below else {
                return false;
            };
            owner = Arc::make_mut(below).edge_or_new(rest, seed);
            owner_is_root = false;
            rest = tail;
        }
        let Some(below) = &mut owner.below else {
            return false;
        };
        let level = Arc::make_mut(below);
        let last = if rest == REST {
            level.rest.remove(value, seed);
            level.rest.is_empty()
        } else {
            let edge = level.edge_or_new(rest, seed);
            edge.values.remove(value, seed);
            let last = edge.values.is_empty();
            edge.join();
            if last && edge.below.is_none() && edge.values.is_empty() {
                level.remove_edge(rest, seed);
            }
            last
        };
        if owner_is_root {
            owner.drop_empty_level();
        } else {
            owner.join();
        }
        self.values -= 1;
        self.patterns -= usize::from(last);
        true
    }

    /// Whether the pair is there.
    pub fn contains(&self, pattern: &Pattern, value: &T) -> bool {
        let values = self.values_of(pattern.as_bytes());
        values.is_some_and(|values| values.contains(value, self.seed))
    }

    /// Whether this very pattern has a value.
    pub fn has_pattern(&self, pattern: &Pattern) -> bool {
        let values = self.values_of(pattern.as_bytes());
        values.is_some_and(|values| !values.is_empty())
    }

    /// Calls `f` with each value of this very pattern.
    pub fn for_each_of<'a>(&'a self, pattern: &Pattern, mut f: impl FnMut(&'a T)) {
        if let Some(values) = self.values_of(pattern.as_bytes()) {
            values.visit(&mut f);
        }
    }

    fn values_of(&self, pattern: &[u8]) -> Option<&Values<T>> {
        let (mut edge, mut rest) = (&self.root, pattern);
        loop {
            let level = edge.below.as_deref()?;
            if rest == REST {
                return Some(&level.rest);
            }
            edge = level.edge(rest, self.seed)?;
            if label_break(edge, rest).is_some() {
                return None;
            }
            match rest.get(edge.label.as_bytes().len() + 1..) {
                Some(tail) => rest = tail,
                None => return Some(&edge.values),
            }
        }
    }

    /// Calls `f` with each value of each pattern that matches the subject (`Sublist.Match`). A
    /// value of several matching patterns comes once for each.
    pub fn for_each_match<'a>(&'a self, subject: &[u8], mut f: impl FnMut(&'a T)) {
        let visit = |values: &'a Values<T>| {
            values.visit(&mut f);
            ControlFlow::<Infallible>::Continue(())
        };
        // It never breaks.
        let _ = self.walk(subject, visit, &mut ());
    }

    /// Whether a pattern matches the subject (`Sublist.HasInterest`). It ends at the first one.
    pub fn has_match(&self, subject: &[u8]) -> bool {
        self.walk(subject, |_| ControlFlow::Break(()), &mut ())
            .is_break()
    }

    /// Calls `f` with each value of each pattern.
    pub fn for_each<'a>(&'a self, mut f: impl FnMut(&'a T)) {
        let mut pending = Vec::new();
        pending.extend(self.root.below.as_deref());
        while let Some(level) = pending.pop() {
            level.rest.visit(&mut f);
            level.for_each_edge(&mut |edge: &'a Edge<T>| {
                edge.values.visit(&mut f);
                pending.extend(edge.below.as_deref());
            });
        }
    }
}

impl<T: Clone> fmt::Debug for PatternTrie<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatternTrie")
            .field("patterns", &self.patterns)
            .field("values", &self.values)
            .finish_non_exhaustive()
    }
}
