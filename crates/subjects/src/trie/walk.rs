//! The way through the trie of a subject that is published.

use std::hash::Hash;
use std::ops::ControlFlow;

use super::PatternTrie;
use super::level::{Edge, Level};
use super::values::Values;
use crate::subject::{ONE, REST, SEPARATOR, first_token, has_empty_token};

/// Paths that a match remembers without an allocation.
const PENDING_INLINE: usize = 16;

/// Counts the work of a match. Only tests do; `()` counts nothing.
pub(super) trait WalkCost {
    /// A level is entered.
    fn level(&mut self) {}
    /// A token of an edge is compared with a token of the subject.
    fn token(&mut self) {}
}

impl WalkCost for () {}

/// A level, and the part of the subject that its patterns must match.
struct Path<'a, 's, T: Clone> {
    level: &'a Level<T>,
    subject: &'s [u8],
}

/// A stack of paths. It has at most one path per token of the subject.
struct Pending<'a, 's, T: Clone> {
    inline: [Option<Path<'a, 's, T>>; PENDING_INLINE],
    length: usize,
    more: Vec<Path<'a, 's, T>>,
}

impl<'a, 's, T: Clone> Pending<'a, 's, T> {
    fn new() -> Self {
        Pending {
            inline: [const { None }; PENDING_INLINE],
            length: 0,
            more: Vec::new(),
        }
    }

    fn push(&mut self, path: Path<'a, 's, T>) {
        match self.inline.get_mut(self.length) {
            Some(slot) => {
                *slot = Some(path);
                self.length += 1;
            }
            None => self.more.push(path),
        }
    }

    fn pop(&mut self) -> Option<Path<'a, 's, T>> {
        if let Some(path) = self.more.pop() {
            return Some(path);
        }
        self.length = self.length.checked_sub(1)?;
        self.inline[self.length].take()
    }
}

impl<T: Clone + Eq + Hash> PatternTrie<T> {
    /// Calls `visit` with the values of each pattern that matches, until it breaks. There is at
    /// least one value each time.
    pub(super) fn walk<'a, B>(
        &'a self,
        subject: &[u8],
        mut visit: impl FnMut(&'a Values<T>) -> ControlFlow<B>,
        cost: &mut impl WalkCost,
    ) -> ControlFlow<B> {
        if has_empty_token(subject) {
            return ControlFlow::Continue(());
        }
        let mut visit = |values: &'a Values<T>| {
            if values.is_empty() {
                ControlFlow::Continue(())
            } else {
                visit(values)
            }
        };
        let mut pending = Pending::new();
        let root = self.root.below.as_deref();
        let mut next = root.map(|level| Path { level, subject });
        while let Some(Path { level, subject }) = next {
            cost.level();
            visit(&level.rest)?;
            let literal = level.literal(first_token(subject), self.seed);
            next = None;
            for edge in [level.one.as_deref(), literal].into_iter().flatten() {
                match after_label(edge, subject, cost) {
                    AfterLabel::Mismatch => {}
                    AfterLabel::End => visit(&edge.values)?,
                    AfterLabel::Subject(subject) => {
                        let Some(level) = edge.below.as_deref() else {
                            continue;
                        };
                        if let Some(earlier) = next.replace(Path { level, subject }) {
                            pending.push(earlier);
                        }
                    }
                }
            }
            if next.is_none() {
                next = pending.pop();
            }
        }
        ControlFlow::Continue(())
    }
}

/// The state of a match after the tokens of one edge.
enum AfterLabel<'s> {
    /// The tokens do not match.
    Mismatch,
    /// They match, and the subject is complete.
    End,
    /// They match, and this part of the subject is left.
    Subject(&'s [u8]),
}

/// Compares the tokens of an edge with the beginning of the subject.
fn after_label<'s, T: Clone>(
    edge: &Edge<T>,
    subject: &'s [u8],
    cost: &mut impl WalkCost,
) -> AfterLabel<'s> {
    let mut left = Some(subject);
    for token in edge.label.as_bytes().split(|byte| *byte == SEPARATOR) {
        cost.token();
        let Some(subject) = left else {
            return AfterLabel::Mismatch;
        };
        if token == REST {
            return AfterLabel::End;
        }
        let other = first_token(subject);
        if token != ONE && token != other {
            return AfterLabel::Mismatch;
        }
        left = subject.get(other.len() + 1..);
    }
    left.map_or(AfterLabel::End, AfterLabel::Subject)
}
