//! A persistent hash table: a clone shares everything, and a change copies one path.
//!
//! ```text
//! Split: 16 slots by 4 bits of the hash ──▶ Split: the next 4 bits ──▶ Leaf: up to 8 entries
//! ```
//!
//! The table stores no hashes. The caller passes the hash of what it looks for, and a function that
//! hashes an entry, for a leaf that is split.

use std::sync::Arc;

const SLOTS: usize = 16;
const SLOT_BITS: u32 = 4;
/// Maximum depth: below it the hash has no more bits, so such a leaf has no maximum.
const DEPTH_MAX: u32 = u64::BITS / SLOT_BITS;
/// Maximum entries in a leaf that can be split. Eight entries of 48 bytes are six cache lines.
const LEAF_ENTRIES_MAX: usize = 8;
/// Leaves are merged when they have no more entries than this together. It is less than
/// [`LEAF_ENTRIES_MAX`], so that one entry that comes and goes does not split and merge each time.
const MERGED_ENTRIES_MAX: usize = 4;

#[derive(Clone)]
pub(super) enum HashTree<E> {
    /// Its capacity is exact, because most leaves of a large table have few entries.
    Leaf(Vec<E>),
    Split(Box<[Option<Arc<HashTree<E>>>; SLOTS]>),
}

fn slot(hash: u64, depth: u32) -> usize {
    (hash >> (depth * SLOT_BITS)) as usize % SLOTS
}

impl<E: Clone> HashTree<E> {
    /// A table with one entry.
    pub(super) fn one(entry: E) -> HashTree<E> {
        HashTree::Leaf(vec![entry])
    }

    /// The only entry, if there is just one.
    pub(super) fn only(&self) -> Option<&E> {
        match self {
            HashTree::Leaf(entries) if entries.len() == 1 => entries.first(),
            // A split has more than `MERGED_ENTRIES_MAX` entries, or a leaf that has not merged.
            _ => None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, HashTree::Leaf(entries) if entries.is_empty())
    }

    pub(super) fn get(&self, hash: u64, is_wanted: impl Fn(&E) -> bool) -> Option<&E> {
        let (mut tree, mut depth) = (self, 0);
        loop {
            match tree {
                HashTree::Leaf(entries) => return entries.iter().find(|entry| is_wanted(entry)),
                HashTree::Split(slots) => tree = slots[slot(hash, depth)].as_deref()?,
            }
            depth += 1;
        }
    }

    /// The entry, or the one that `make` makes.
    pub(super) fn get_or_insert(
        mut self: &mut Arc<Self>,
        hash: u64,
        is_wanted: impl Fn(&E) -> bool,
        make: impl FnOnce() -> E,
        rehash: impl Fn(&E) -> u64,
    ) -> &mut E {
        let mut depth = 0;
        loop {
            let tree = Arc::make_mut(self);
            if let HashTree::Leaf(entries) = tree
                && entries.len() >= LEAF_ENTRIES_MAX
                && depth < DEPTH_MAX
                && !entries.iter().any(&is_wanted)
            {
                let entries = std::mem::take(entries);
                *tree = HashTree::split(entries, depth, &rehash);
            }
            match tree {
                HashTree::Split(slots) => {
                    let slot = &mut slots[slot(hash, depth)];
                    self = slot.get_or_insert_with(|| Arc::new(HashTree::Leaf(Vec::new())));
                    depth += 1;
                }
                HashTree::Leaf(entries) => {
                    let found = entries.iter().position(is_wanted);
                    let at = found.unwrap_or_else(|| {
                        entries.reserve_exact(1);
                        entries.push(make());
                        entries.len() - 1
                    });
                    return &mut entries[at];
                }
            }
        }
    }

    fn split(entries: Vec<E>, depth: u32, rehash: impl Fn(&E) -> u64) -> HashTree<E> {
        let mut leaves: [Vec<E>; SLOTS] = std::array::from_fn(|_| Vec::new());
        for entry in entries {
            let leaf = &mut leaves[slot(rehash(&entry), depth)];
            leaf.reserve_exact(1);
            leaf.push(entry);
        }
        let slots = leaves.map(|leaf| (!leaf.is_empty()).then(|| Arc::new(HashTree::Leaf(leaf))));
        HashTree::Split(Box::new(slots))
    }

    /// Removes the entry. It copies nothing if there is none.
    pub(super) fn remove(
        self: &mut Arc<Self>,
        hash: u64,
        is_wanted: impl Fn(&E) -> bool,
    ) -> Option<E> {
        self.get(hash, &is_wanted)?;
        self.remove_below(hash, 0, &is_wanted)
    }

    /// The recursion ends at [`DEPTH_MAX`].
    fn remove_below(
        self: &mut Arc<Self>,
        hash: u64,
        depth: u32,
        is_wanted: &impl Fn(&E) -> bool,
    ) -> Option<E> {
        let tree = Arc::make_mut(self);
        match tree {
            HashTree::Leaf(entries) => {
                let at = entries.iter().position(is_wanted)?;
                let removed = entries.swap_remove(at);
                entries.shrink_to_fit();
                Some(removed)
            }
            HashTree::Split(slots) => {
                let slot = &mut slots[slot(hash, depth)];
                let below = slot.as_mut()?;
                let removed = below.remove_below(hash, depth + 1, is_wanted);
                if below.is_empty() {
                    *slot = None;
                }
                if let Some(entries) = merged(slots) {
                    *tree = HashTree::Leaf(entries);
                }
                removed
            }
        }
    }

    /// Calls `f` with each entry.
    pub(super) fn visit<'a>(&'a self, f: &mut impl FnMut(&'a E)) {
        match self {
            HashTree::Leaf(entries) => entries.iter().for_each(f),
            HashTree::Split(slots) => slots.iter().flatten().for_each(|below| below.visit(f)),
        }
    }
}

impl<E> HashTree<E> {
    /// Takes apart what nobody else shares. Calls `f` with each entry that it takes out.
    pub(super) fn take_apart(self: Arc<Self>, f: &mut impl FnMut(E)) {
        match Arc::into_inner(self) {
            None => {}
            Some(HashTree::Leaf(entries)) => entries.into_iter().for_each(f),
            Some(HashTree::Split(slots)) => {
                slots.into_iter().flatten().for_each(|it| it.take_apart(f));
            }
        }
    }
}

/// The entries of all slots, if all are leaves and have few entries together.
fn merged<E: Clone>(slots: &[Option<Arc<HashTree<E>>>; SLOTS]) -> Option<Vec<E>> {
    let mut count = 0;
    for slot in slots.iter().flatten() {
        match &**slot {
            HashTree::Split(_) => return None,
            HashTree::Leaf(entries) => count += entries.len(),
        }
        if count > MERGED_ENTRIES_MAX {
            return None;
        }
    }
    let mut merged = Vec::with_capacity(count);
    for slot in slots.iter().flatten() {
        if let HashTree::Leaf(entries) = &**slot {
            merged.extend(entries.iter().cloned());
        }
    }
    Some(merged)
}
