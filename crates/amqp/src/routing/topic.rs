//! The bindings of a topic exchange: patterns of words, `*` for one word and `#` for any number.
//!
//! Patterns with a common beginning share nodes. A key is matched word by word against the set of
//! all nodes that its words so far can lead to. So a match costs at most the number of nodes times
//! the number of words. A recursion that tries one path after the other would take exponential time
//! for `#.a.#.a.#.a` and a hostile key.

use std::collections::{HashMap, HashSet};

use super::Destination;

/// The node where all patterns begin.
const ROOT: u32 = 0;

/// The patterns as a tree, with their destinations.
#[derive(Debug)]
pub(super) struct Patterns {
    nodes: Vec<Node>,
    /// Unused nodes, for reuse.
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Node {
    words: HashMap<Box<str>, u32>,
    /// The node after `*`.
    star: Option<u32>,
    /// The node after `#`, which stays active for any number of words.
    hash: Option<u32>,
    is_hash: bool,
    /// Destinations of the patterns that end here, one entry per binding.
    destinations: Vec<Destination>,
}

impl Node {
    fn is_unused(&self) -> bool {
        self.destinations.is_empty()
            && self.words.is_empty()
            && self.star.is_none()
            && self.hash.is_none()
    }

    fn next(&self, word: &str) -> Option<u32> {
        match word {
            "*" => self.star,
            "#" => self.hash,
            word => self.words.get(word).copied(),
        }
    }

    fn set_next(&mut self, word: &str, node: Option<u32>) {
        match (word, node) {
            ("*", node) => self.star = node,
            ("#", node) => self.hash = node,
            (word, Some(node)) => drop(self.words.insert(word.into(), node)),
            (word, None) => drop(self.words.remove(word)),
        }
    }
}

/// The words of a key or pattern; the empty string has none.
fn words(key: &str) -> impl Iterator<Item = &str> {
    let count = if key.is_empty() { 0 } else { usize::MAX };
    key.split('.').take(count)
}

impl Default for Patterns {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            free: Vec::new(),
        }
    }
}

impl Patterns {
    pub(super) fn insert(&mut self, pattern: &str, destination: Destination) {
        let mut at = ROOT;
        for word in words(pattern) {
            at = match self.nodes[at as usize].next(word) {
                Some(next) => next,
                None => {
                    let next = self.new_node(word == "#");
                    self.nodes[at as usize].set_next(word, Some(next));
                    next
                }
            };
        }
        self.nodes[at as usize].destinations.push(destination);
    }

    /// Removes one binding, and the nodes that become unused.
    pub(super) fn remove(&mut self, pattern: &str, destination: &Destination) {
        let mut path = vec![ROOT];
        for word in words(pattern) {
            let at = path[path.len() - 1];
            match self.nodes[at as usize].next(word) {
                Some(next) => path.push(next),
                None => return,
            }
        }
        let last = &mut self.nodes[path[path.len() - 1] as usize].destinations;
        if let Some(place) = last.iter().position(|found| found == destination) {
            last.swap_remove(place);
        }
        let words: Vec<&str> = words(pattern).collect();
        for (word, step) in words.iter().zip(path.windows(2)).rev() {
            let (before, node) = (step[0], step[1]);
            if !self.nodes[node as usize].is_unused() {
                return;
            }
            self.nodes[before as usize].set_next(word, None);
            self.free.push(node);
        }
    }

    fn new_node(&mut self, is_hash: bool) -> u32 {
        let node = Node {
            is_hash,
            ..Node::default()
        };
        match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                // Fits: each node stands for at least one byte of a pattern, and all patterns
                // together are shorter than 4 GiB.
                let at = self.nodes.len() as u32;
                self.nodes.push(node);
                at
            }
        }
    }

    /// Calls `found` with the destinations of all matching patterns; one may come repeatedly.
    pub(super) fn matches<'a>(&'a self, key: &str, mut found: impl FnMut(&'a Destination)) {
        let mut current = ActiveNodes::default();
        current.add(self, ROOT);
        for word in words(key) {
            let mut next = ActiveNodes::default();
            for at in current.nodes {
                let node = &self.nodes[at as usize];
                if node.is_hash {
                    next.add(self, at);
                }
                // Wildcards count in patterns only: a `*` in the key is an ordinary word.
                if let Some(to) = node.words.get(word) {
                    next.add(self, *to);
                }
                if let Some(to) = node.star {
                    next.add(self, to);
                }
            }
            current = next;
        }
        for at in current.nodes {
            self.nodes[at as usize]
                .destinations
                .iter()
                .for_each(&mut found);
        }
    }
}

/// Up to this number nodes are compared one by one, above it they are hashed.
const COMPARED_NODES_MAX: usize = 32;

/// The nodes that the words so far lead to, without duplicates.
#[derive(Default)]
struct ActiveNodes {
    nodes: Vec<u32>,
    /// The same nodes, once there are too many to compare.
    hashed: HashSet<u32>,
}

impl ActiveNodes {
    fn add(&mut self, patterns: &Patterns, node: u32) {
        let mut node = Some(node);
        // `#` matches zero words, too, so the node after it is reached at once.
        while let Some(at) = node {
            if !self.insert(at) {
                return;
            }
            node = patterns.nodes[at as usize].hash;
        }
    }

    /// Adds a node; returns whether it is new.
    fn insert(&mut self, node: u32) -> bool {
        if self.nodes.len() < COMPARED_NODES_MAX {
            if self.nodes.contains(&node) {
                return false;
            }
        } else {
            if self.hashed.is_empty() {
                self.hashed.extend(&self.nodes);
            }
            if !self.hashed.insert(node) {
                return false;
            }
        }
        self.nodes.push(node);
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Whether pattern and key match, by plain recursion.
    fn is_match(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), _) => (0..=key.len()).any(|taken| is_match(rest, &key[taken..])),
            (Some((&"*", rest)), Some((_, key))) => is_match(rest, key),
            (Some((word, rest)), Some((first, key))) => word == first && is_match(rest, key),
            _ => false,
        }
    }

    fn found(patterns: &Patterns, key: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        patterns.matches(key, |destination| {
            found.insert(destination.name().to_string());
        });
        found
    }

    fn pattern() -> impl Strategy<Value = String> {
        vec(
            prop_oneof![Just("*"), Just("#"), Just("a"), Just("b"), Just("")],
            0..6,
        )
        .prop_map(|words| words.join("."))
    }

    fn key() -> impl Strategy<Value = String> {
        vec(
            prop_oneof![4 => Just("a"), 4 => Just("b"), 1 => Just(""), 1 => Just("*")],
            0..7,
        )
        .prop_map(|words| words.join("."))
    }

    proptest! {
        #[test]
        fn keys_match_as_the_specification_says(
            bound in vec(pattern(), 0..12),
            unbound in vec(any::<prop::sample::Index>(), 0..12),
            keys in vec(key(), 1..8),
        ) {
            let mut patterns = Patterns::default();
            let name = |at: usize| Destination::Queue(format!("{at}").into());
            for (at, pattern) in bound.iter().enumerate() {
                patterns.insert(pattern, name(at));
            }
            let mut gone = BTreeSet::new();
            for index in unbound {
                if !bound.is_empty() {
                    let at = index.index(bound.len());
                    patterns.remove(&bound[at], &name(at));
                    gone.insert(at);
                }
            }
            for key in keys {
                let key_words: Vec<&str> = words(&key).collect();
                let expected: BTreeSet<String> = bound
                    .iter()
                    .enumerate()
                    .filter(|(at, pattern)| {
                        let pattern: Vec<&str> = words(pattern).collect();
                        !gone.contains(at) && is_match(&pattern, &key_words)
                    })
                    .map(|(at, _)| at.to_string())
                    .collect();
                prop_assert_eq!(found(&patterns, &key), expected, "key {}", key);
            }
        }
    }

    #[test]
    fn removed_patterns_leave_no_nodes() {
        let mut patterns = Patterns::default();
        let queue = Destination::Queue("q".into());
        for round in 0..3 {
            for pattern in ["a.b.c", "a.*.c", "a.#", "#", ""] {
                patterns.insert(pattern, queue.clone());
            }
            assert_eq!(patterns.nodes.len(), 8, "round {round}");
            for pattern in ["#", "a.b.c", "", "a.#", "a.*.c"] {
                patterns.remove(pattern, &queue);
            }
            assert_eq!(patterns.free.len(), 7);
            assert!(found(&patterns, "a.b.c").is_empty());
        }
    }

    #[test]
    fn a_hostile_key_is_matched_in_no_time() {
        let mut patterns = Patterns::default();
        let pattern = ["#.a"; 60].join(".");
        patterns.insert(&format!("{pattern}.b"), Destination::Queue("q".into()));
        let key = ["a"; 127].join(".");
        assert!(found(&patterns, &key).is_empty());
        assert_eq!(found(&patterns, &format!("{key}.b")).len(), 1);
    }
}
