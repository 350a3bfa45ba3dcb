//! The nodes of the trie.

use std::hash::Hash;
use std::sync::Arc;

use super::hash_tree::HashTree;
use super::label::{Label, common_tokens};
use super::values::{Values, hash_with};
use crate::subject::{ONE, REST, first_token};

/// A run of tokens, the values of the pattern that ends with it, and the patterns that go on.
///
/// An edge without values has two or more continuations: otherwise it is one edge with its
/// continuation. So there are at most twice as many edges as patterns. The root is the only
/// exception, and the only edge with an empty label.
#[derive(Clone)]
pub(super) struct Edge<T: Clone> {
    pub(super) label: Label,
    pub(super) values: Values<T>,
    /// Not empty.
    pub(super) below: Option<Arc<Level<T>>>,
}

/// The continuations after one edge, by their first token.
#[derive(Clone)]
pub(super) struct Level<T: Clone> {
    /// Edges that begin with a token that is no wildcard.
    literals: Option<Arc<HashTree<Edge<T>>>>,
    /// The edge that begins with `*`.
    pub(super) one: Option<Arc<Edge<T>>>,
    /// The values of the pattern that ends with `>` here.
    pub(super) rest: Values<T>,
}

impl<T: Clone> Default for Level<T> {
    fn default() -> Self {
        Level {
            literals: None,
            one: None,
            rest: Values::None,
        }
    }
}

impl<T: Clone> Edge<T> {
    pub(super) fn new(text: &[u8]) -> Edge<T> {
        Edge {
            label: Label::new(text),
            values: Values::None,
            below: None,
        }
    }

    fn begins_with(&self, token: &[u8]) -> bool {
        first_token(self.label.as_bytes()) == token
    }
}

impl<T: Clone + Eq + Hash> Edge<T> {
    /// Makes this edge end after `length` bytes of its label, and puts an edge with the others
    /// below it.
    pub(super) fn split(&mut self, length: usize, seed: u64) {
        let label = self.label.as_bytes();
        // The byte between the two is the separator.
        let (head, tail) = (Label::new(&label[..length]), &label[length + 1..]);
        let mut below = Level::default();
        let values = std::mem::replace(&mut self.values, Values::None);
        if tail == REST {
            // No token follows `>`.
            below.rest = values;
        } else {
            let edge = below.edge_or_new(tail, seed);
            edge.values = values;
            edge.below = self.below.take();
        }
        self.label = head;
        self.below = Some(Arc::new(below));
    }

    /// The part of `text` after the edge below that it begins with. `None` if nothing is left, or
    /// if the text ends with a `>` at the level below.
    pub(super) fn tail_below<'t>(&self, text: &'t [u8], seed: u64) -> Option<&'t [u8]> {
        if text == REST {
            return None;
        }
        let edge = self.below.as_ref()?.edge(text, seed)?;
        text.get(edge.label.as_bytes().len() + 1..)
    }

    /// Removes the level below if it is empty.
    pub(super) fn drop_empty_level(&mut self) {
        if self.below.as_ref().is_some_and(|below| below.is_empty()) {
            self.below = None;
        }
    }

    /// Keeps the rule of [`Edge`] after a removal from this edge or from the level below it.
    pub(super) fn join(&mut self) {
        self.drop_empty_level();
        if !self.values.is_empty() {
            return;
        }
        let Some(only) = self.below.as_ref().and_then(|below| below.only()) else {
            return;
        };
        let label = |text: &[u8]| Label::joined(self.label.as_bytes(), text);
        *self = match only {
            Only::Rest(values) => Edge {
                label: label(REST),
                values: values.clone(),
                below: None,
            },
            Only::Edge(edge) => Edge {
                label: label(edge.label.as_bytes()),
                values: edge.values.clone(),
                below: edge.below.clone(),
            },
        };
    }
}

/// The only continuation of a level.
enum Only<'a, T: Clone> {
    Rest(&'a Values<T>),
    Edge(&'a Edge<T>),
}

impl<T: Clone + Eq + Hash> Level<T> {
    fn is_empty(&self) -> bool {
        self.literals.is_none() && self.one.is_none() && self.rest.is_empty()
    }

    fn only(&self) -> Option<Only<'_, T>> {
        match (&self.literals, &self.one, self.rest.is_empty()) {
            (None, None, false) => Some(Only::Rest(&self.rest)),
            (None, Some(edge), true) => Some(Only::Edge(edge)),
            (Some(literals), None, true) => literals.only().map(Only::Edge),
            _ => None,
        }
    }

    /// The edge that begins with this token, which is no wildcard.
    pub(super) fn literal(&self, token: &[u8], seed: u64) -> Option<&Edge<T>> {
        let literals = self.literals.as_ref()?;
        literals.get(hash_with(seed, token), |edge| edge.begins_with(token))
    }

    /// The edge that begins with the first token of `text`.
    pub(super) fn edge(&self, text: &[u8], seed: u64) -> Option<&Edge<T>> {
        match first_token(text) {
            ONE => self.one.as_deref(),
            token => self.literal(token, seed),
        }
    }

    /// The edge that begins with the first token of `text`, or a new one with all of `text`.
    pub(super) fn edge_or_new(&mut self, text: &[u8], seed: u64) -> &mut Edge<T> {
        let token = first_token(text);
        if token == ONE {
            let one = self.one.get_or_insert_with(|| Arc::new(Edge::new(text)));
            return Arc::make_mut(one);
        }
        let empty = || Arc::new(HashTree::Leaf(Vec::new()));
        let literals = self.literals.get_or_insert_with(empty);
        let hash = hash_with(seed, token);
        let rehash = |edge: &Edge<T>| hash_with(seed, first_token(edge.label.as_bytes()));
        let is_wanted = |edge: &Edge<T>| edge.begins_with(token);
        let make = || Edge::new(text);
        literals.get_or_insert(hash, is_wanted, make, rehash)
    }

    /// Removes the edge that begins with the first token of `text`.
    pub(super) fn remove_edge(&mut self, text: &[u8], seed: u64) {
        let token = first_token(text);
        if token == ONE {
            self.one = None;
            return;
        }
        let Some(literals) = &mut self.literals else {
            return;
        };
        literals.remove(hash_with(seed, token), |edge| edge.begins_with(token));
        if literals.is_empty() {
            self.literals = None;
        }
    }

    /// Calls `f` with each edge of the level.
    pub(super) fn for_each_edge<'a>(&'a self, f: &mut impl FnMut(&'a Edge<T>)) {
        if let Some(one) = &self.one {
            f(one);
        }
        if let Some(literals) = &self.literals {
            literals.visit(f);
        }
    }
}

/// How many bytes of the label `text` begins with, in whole tokens. `None` if it is all of them.
pub(super) fn label_break<T: Clone>(edge: &Edge<T>, text: &[u8]) -> Option<usize> {
    let label = edge.label.as_bytes();
    let common = common_tokens(label, text);
    (common < label.len()).then_some(common)
}

impl<T: Clone> Level<T> {
    /// Takes the levels below out of this one, as far as no other trie shares them.
    fn take_below(&mut self, taken: &mut Vec<Arc<Level<T>>>) {
        if let Some(edge) = self.one.take().and_then(Arc::into_inner) {
            taken.extend(edge.below);
        }
        if let Some(literals) = self.literals.take() {
            literals.take_apart(&mut |edge| taken.extend(edge.below));
        }
    }
}

impl<T: Clone> Drop for Level<T> {
    /// Without recursion: a client may nest patterns as deep as it likes.
    fn drop(&mut self) {
        let mut taken = Vec::new();
        self.take_below(&mut taken);
        while let Some(level) = taken.pop() {
            if let Some(mut level) = Arc::into_inner(level) {
                level.take_below(&mut taken);
            }
        }
    }
}
