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
use super::headers::{Rule, SortedHeaders, hash_value, is_match};
use crate::wire::{Table, Value};

/// The index.
#[derive(Debug, Default)]
pub(super) struct HeaderIndex {
    /// Randomly seeded, so that no client can choose arguments with equal hashes.
    hashes: RandomState,
    /// Bindings by the hash of a header's name and value.
    places: HashMap<u64, BTreeSet<Binding>>,
    /// Bindings without arguments to match.
    for_all: BTreeSet<Binding>,
}

impl HeaderIndex {
    pub(super) fn insert(&mut self, binding: &Binding) {
        let (rule, places) = self.places_of(binding);
        let places = places.into_iter();
        match rule.any {
            true => places.for_each(|place| self.add(place, binding)),
            false => {
                match places.min_by_key(|place| self.places.get(place).map_or(0, |it| it.len())) {
                    Some(place) => self.add(place, binding),
                    None => {
                        self.for_all.insert(binding.clone());
                    }
                }
            }
        }
    }

    pub(super) fn remove(&mut self, binding: &Binding) {
        self.for_all.remove(binding);
        let (_, places) = self.places_of(binding);
        for place in places {
            if let Some(bindings) = self.places.get_mut(&place) {
                bindings.remove(binding);
                if bindings.is_empty() {
                    self.places.remove(&place);
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
        let looked_at = self.looked_at(headers);
        looked_at
            .filter(|binding| is_match(arguments_of(binding), headers))
            .for_each(found);
    }

    /// The bindings that may match.
    fn looked_at<'a, 's, 'h>(
        &'a self,
        headers: &'s SortedHeaders<'h>,
    ) -> impl Iterator<Item = &'a Binding> + use<'a, 's, 'h> {
        let places = headers.fields().iter().flat_map(|(name, value)| {
            let here = self.place(name, *value);
            // A binding may ask for the header's presence only.
            let there = self.place(name, Value::Void);
            [Some(here), (there != here).then_some(there)]
        });
        let bindings = places.flatten().filter_map(|place| self.places.get(&place));
        bindings.flatten().chain(&self.for_all)
    }

    fn add(&mut self, place: u64, binding: &Binding) {
        self.places
            .entry(place)
            .or_default()
            .insert(binding.clone());
    }

    fn places_of(&self, binding: &Binding) -> (Rule, Vec<u64>) {
        let arguments = arguments_of(binding);
        let rule = Rule::of(arguments);
        let wanted = rule.wanted(arguments);
        let places = wanted.map(|(name, value)| self.place(name, value));
        (rule, places.collect())
    }

    fn place(&self, name: &str, value: Value<'_>) -> u64 {
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
        fn as_if_each_binding_were_looked_at(
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
            prop_assert!(index.places.is_empty() && index.for_all.is_empty());
        }
    }

    #[test]
    fn of_ten_thousand_bindings_a_few_are_looked_at() {
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
            let looked_at: Vec<_> = index.looked_at(&headers).collect();
            assert!(looked_at.len() <= 2, "{word}: {} bindings", looked_at.len());
            let mut found = 0;
            index.matches(&headers, |_| found += 1);
            assert_eq!(found, 1, "{word}");
        }
    }
}
