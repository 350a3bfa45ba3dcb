//! Any patterns and subjects: the trie finds what each pattern matches, and forgets all of it.
#![no_main]

use cloverleaf_subjects::{Pattern, PatternTrie, is_literal, is_valid_subject};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut patterns = Vec::new();
    let mut trie = PatternTrie::with_seed(1);
    let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').take(64).collect();
    for (value, line) in lines.iter().enumerate() {
        assert_eq!(Pattern::new(line).is_ok(), is_valid_subject(line));
        if let Ok(pattern) = Pattern::of_subscription(line) {
            assert_eq!(pattern.matches(line), !line.is_empty());
            assert!(pattern.is_subset_of(&pattern) && pattern.overlaps(&pattern));
            assert!(trie.insert(&pattern, value));
            patterns.push((pattern, value));
        }
    }
    let full = trie.clone();
    for line in &lines {
        let mut found = Vec::new();
        full.for_each_match(line, |value| found.push(*value));
        found.sort_unstable();
        let matching = patterns.iter().filter(|(pattern, _)| pattern.matches(line));
        let expected: Vec<usize> = matching.map(|(_, value)| *value).collect();
        assert_eq!(full.has_match(line), !expected.is_empty());
        assert_eq!(found, expected);
    }
    for (one, _) in &patterns {
        for (other, _) in &patterns {
            assert_eq!(one.overlaps(other), other.overlaps(one));
            if one.is_subset_of(other) {
                assert!(one.overlaps(other));
            }
            if is_literal(one.as_bytes()) {
                assert_eq!(one.overlaps(other), other.matches(one.as_bytes()));
            }
        }
    }
    for (pattern, value) in &patterns {
        assert!(trie.remove(pattern, value));
    }
    assert!(trie.is_empty() && !trie.has_match(b"a"));
    assert_eq!(full.count(), patterns.len());
});
