//! The values of one pattern.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::hash_tree::HashTree;

/// A set of values. Most patterns have one.
#[derive(Clone)]
pub(super) enum Values<T> {
    None,
    One(T),
    /// Two or more.
    Many(Arc<HashTree<T>>),
}

/// Hashes with a seed that a client does not know: nobody can choose tokens that collide.
pub(super) fn hash_with(seed: u64, key: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    key.hash(&mut hasher);
    hasher.finish()
}

impl<T: Clone + Eq + Hash> Values<T> {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Values::None)
    }

    pub(super) fn contains(&self, value: &T, seed: u64) -> bool {
        match self {
            Values::None => false,
            Values::One(one) => one == value,
            Values::Many(tree) => {
                let found = tree.get(hash_with(seed, value), |it| it == value);
                found.is_some()
            }
        }
    }

    /// Whether the value is new.
    pub(super) fn insert(&mut self, value: T, seed: u64) -> bool {
        match self {
            Values::None => {
                *self = Values::One(value);
                true
            }
            Values::One(one) if *one == value => false,
            Values::One(one) => {
                let mut tree = Arc::new(HashTree::one(one.clone()));
                insert(&mut tree, value, seed);
                *self = Values::Many(tree);
                true
            }
            Values::Many(tree) => insert(tree, value, seed),
        }
    }

    /// Whether the value was there.
    pub(super) fn remove(&mut self, value: &T, seed: u64) -> bool {
        match self {
            Values::One(one) if one == value => {
                *self = Values::None;
                true
            }
            Values::None | Values::One(_) => false,
            Values::Many(tree) => {
                let removed = tree.remove(hash_with(seed, value), |it| it == value);
                if let Some(one) = tree.only() {
                    *self = Values::One(one.clone());
                }
                removed.is_some()
            }
        }
    }

    /// Calls `f` with each value.
    pub(super) fn visit<'a>(&'a self, f: &mut impl FnMut(&'a T)) {
        match self {
            Values::None => {}
            Values::One(one) => f(one),
            Values::Many(tree) => tree.visit(f),
        }
    }
}

fn insert<T: Clone + Eq + Hash>(tree: &mut Arc<HashTree<T>>, value: T, seed: u64) -> bool {
    let hash = hash_with(seed, &value);
    if tree.get(hash, |it| *it == value).is_some() {
        return false;
    }
    tree.get_or_insert(hash, |_| false, || value, |it| hash_with(seed, it));
    true
}
