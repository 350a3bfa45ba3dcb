//! An index of a headers exchange's bindings, so that a message is compared only with bindings that
//! ask for one of its headers.
//!
//! A binding with `x-match: all` is indexed under one of its arguments: the one with the fewest
//! bindings so far, because many bindings share, say, the kind of a message, and few its number. A
//! binding with `x-match: any` is indexed under each of its arguments.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash as _, Hasher as _};

use super::Binding;
use super::headers::{MatchRule, SortedHeaders, hash_value, is_match};
use crate::wire::{Table, Value};

/// The index.
#[derive(Debug, Default)]
pub(super) struct HeaderIndex {
    /// Randomly seeded, so that no client can choose arguments with equal hashes.
    hashes: RandomState,
    /// Bindings by the hash of a header's name and value.
    buckets: HashMap<u64, BTreeSet<Binding>>,
    /// Bindings without arguments to match.
    without_arguments: BTreeSet<Binding>,
}

impl HeaderIndex {
    pub(super) fn insert(&mut self, binding: &Binding) {
        let (rule, buckets) = self.buckets_of(binding);
        let buckets = buckets.into_iter();
        match rule.any {
            true => buckets.for_each(|bucket| self.add(bucket, binding)),
            false => {
                match buckets.min_by_key(|bucket| self.buckets.get(bucket).map_or(0, |it| it.len()))
                {
                    Some(bucket) => self.add(bucket, binding),
                    None => {
                        self.without_arguments.insert(binding.clone());
                    }
                }
            }
        }
    }

    pub(super) fn remove(&mut self, binding: &Binding) {
        self.without_arguments.remove(binding);
        let (_, buckets) = self.buckets_of(binding);
        for bucket in buckets {
            if let Some(bindings) = self.buckets.get_mut(&bucket) {
                bindings.remove(binding);
                if bindings.is_empty() {
                    self.buckets.remove(&bucket);
                }
            }
        }
    }

    /// Calls `found` with each binding that matches; a binding with `x-match: any` may come
    /// repeatedly.
    pub(super) fn matches<'a>(
        &'a self,
        headers: &SortedHeaders<'_>,
        found: impl FnMut(&'a Binding),
    ) {
        let candidates = self.candidates(headers);
        candidates
            .filter(|binding| is_match(arguments_of(binding), headers))
            .for_each(found);
    }

    /// The bindings that may match.
    fn candidates<'a, 's, 'h>(
        &'a self,
        headers: &'s SortedHeaders<'h>,
    ) -> impl Iterator<Item = &'a Binding> + use<'a, 's, 'h> {
        let buckets = headers.fields().iter().flat_map(|(name, value)| {
            let here = self.bucket(name, *value);
            // A binding may ask for the header's presence only.
            let there = self.bucket(name, Value::Void);
            [Some(here), (there != here).then_some(there)]
        });
        let bindings = buckets
            .flatten()
            .filter_map(|bucket| self.buckets.get(&bucket));
        bindings.flatten().chain(&self.without_arguments)
    }

    fn add(&mut self, bucket: u64, binding: &Binding) {
        self.buckets
            .entry(bucket)
            .or_default()
            .insert(binding.clone());
    }

    fn buckets_of(&self, binding: &Binding) -> (MatchRule, Vec<u64>) {
        let arguments = arguments_of(binding);
        let rule = MatchRule::of(arguments);
        let compared = rule.compared(arguments);
        let buckets = compared.map(|(name, value)| self.bucket(name, value));
        (rule, buckets.collect())
    }

    fn bucket(&self, name: &str, value: Value<'_>) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        name.hash(&mut hasher);
        hash_value(value, &mut hasher);
        hasher.finish()
    }
}

/// The binding's arguments, which were validated when it was made.
fn arguments_of(binding: &Binding) -> Table<'_> {
    Table::check(&binding.arguments).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::routing::Destination;
    use crate::wire::table_bytes as table;

    fn binding(number: usize, arguments: &[(&str, Value<'_>)]) -> Binding {
        Binding {
            destination: Destination::Queue(format!("{number:05}").into()),
            key: "".into(),
            arguments: table(arguments).into(),
        }
    }

    fn value() -> impl Strategy<Value = Value<'static>> {
        prop_oneof![
            Just(Value::Void),
            (0i8..3).prop_map(Value::I8),
            (0i64..3).prop_map(Value::I64),
            Just(Value::String(b"1")),
            Just(Value::Bytes(b"1")),
            Just(Value::F64(0.0)),
            Just(Value::F64(-0.0)),
            Just(Value::F32(0.0)),
            Just(Value::F64(f64::NAN)),
            any::<bool>().prop_map(Value::Bool),
        ]
    }

    fn fields() -> impl Strategy<Value = Vec<(&'static str, Value<'static>)>> {
        let name = prop_oneof![Just("a"), Just("b"), Just("c"), Just("x-d")];
        prop::collection::vec((name, value()), 0..5)
    }

    fn arguments() -> impl Strategy<Value = Vec<(&'static str, Value<'static>)>> {
        const WORDS: &[&[u8]] = &[b"all", b"any", b"all-with-x", b"any-with-x", b"other"];
        let word = prop::option::of(prop::sample::select(WORDS));
        (fields(), word).prop_map(|(mut fields, word)| {
            fields.extend(word.map(|word| ("x-match", Value::String(word))));
            fields
        })
    }

    proptest! {
        #[test]
        fn finds_the_same_as_comparing_each_binding(
            bound in prop::collection::vec(arguments(), 0..30),
            unbound in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
            messages in prop::collection::vec(fields(), 1..8),
        ) {
            let all: Vec<Binding> = bound.iter().enumerate()
                .map(|(number, arguments)| binding(number, arguments))
                .collect();
            let mut index = HeaderIndex::default();
            all.iter().for_each(|binding| index.insert(binding));
            let mut there: BTreeSet<&Binding> = all.iter().collect();
            for gone in unbound {
                if !all.is_empty() {
                    let gone = gone.get(&all);
                    index.remove(gone);
                    there.remove(gone);
                }
            }
            for message in messages {
                let bytes = table(&message);
                let headers = SortedHeaders::new(Table::check(&bytes).unwrap());
                let mut found = BTreeSet::new();
                index.matches(&headers, |binding| { found.insert(binding); });
                let expected = there.iter().copied();
                let expected = expected.filter(|it| is_match(arguments_of(it), &headers));
                prop_assert_eq!(found, expected.collect::<BTreeSet<_>>());
            }
            for binding in &all {
                index.remove(binding);
            }
            prop_assert!(index.buckets.is_empty() && index.without_arguments.is_empty());
        }
    }

    #[test]
    fn of_ten_thousand_bindings_a_few_are_candidates() {
        let kind = ("kind", Value::String(b"report"));
        for word in ["all", "any", "all-with-x", "any-with-x"] {
            let rule = ("x-match", Value::String(word.as_bytes()));
            let mut index = HeaderIndex::default();
            for number in 0..10_000 {
                let own = ("number", Value::I32(number));
                let arguments = match word.starts_with("any") {
                    // The number of candidates equals the number of matches.
                    true => [rule, own, ("other", Value::I32(number))],
                    false => [rule, kind, own],
                };
                index.insert(&binding(number as usize, &arguments));
            }
            let headers = table(&[kind, ("number", Value::I64(4_711)), ("more", Value::Void)]);
            let headers = SortedHeaders::new(Table::check(&headers).unwrap());
            let candidates: Vec<_> = index.candidates(&headers).collect();
            assert!(
                candidates.len() <= 2,
                "{word}: {} bindings",
                candidates.len()
            );
            let mut found = 0;
            index.matches(&headers, |_| found += 1);
            assert_eq!(found, 1, "{word}");
        }
    }
}
