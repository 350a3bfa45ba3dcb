use std::collections::BTreeSet;

use cloverleaf_subjects::{Pattern, PatternTrie};
use proptest::prelude::*;

/// Few different tokens, so that patterns share beginnings and subjects match.
fn text() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec!["a", "b", "*", "*", "ab", "*a", ">b"]);
    let tokens = prop::collection::vec(token, 1..6);
    (tokens, any::<bool>()).prop_map(|(tokens, rest)| {
        let mut text = tokens.join(".");
        if rest {
            text.push_str(".>");
        }
        text
    })
}

fn pattern(text: &str) -> Pattern {
    Pattern::try_from(text).unwrap_or_else(|_| panic!("{text:?} is no pattern"))
}

proptest! {
    #[test]
    fn the_trie_finds_what_a_naive_matcher_finds(
        steps in prop::collection::vec((any::<bool>(), text(), 0_u8..20), 1..200),
        subjects in prop::collection::vec(text(), 1..20),
        seed in any::<u64>(),
    ) {
        let mut trie = PatternTrie::with_seed(seed);
        let mut naive: BTreeSet<(Pattern, u8)> = BTreeSet::new();
        let mut earlier = Vec::new();
        for (insert, text, value) in steps {
            let pattern = pattern(&text);
            if earlier.len() < 5 {
                earlier.push((trie.clone(), naive.clone()));
            }
            if insert {
                prop_assert_eq!(trie.insert(&pattern, value), naive.insert((pattern, value)));
            } else {
                // One that is there.
                let at = usize::from(value) % naive.len().max(1);
                let there = naive.iter().nth(at).cloned().unwrap_or((pattern, value));
                prop_assert_eq!(trie.remove(&there.0, &there.1), naive.remove(&there));
            }
        }
        earlier.push((trie, naive));
        for (trie, naive) in earlier {
            prop_assert_eq!(trie.count(), naive.len());
            for subject in &subjects {
                let subject = subject.as_bytes();
                let matching = naive.iter().filter(|(pattern, _)| pattern.matches(subject));
                let mut expected: Vec<u8> = matching.map(|(_, value)| *value).collect();
                let mut found = Vec::new();
                trie.for_each_match(subject, |value| found.push(*value));
                expected.sort_unstable();
                found.sort_unstable();
                prop_assert_eq!(trie.has_match(subject), !found.is_empty());
                prop_assert_eq!(found, expected);
            }
        }
    }
}
