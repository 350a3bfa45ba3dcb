use super::*;

fn pattern(text: &str) -> Pattern {
    Pattern::try_from(text).unwrap()
}

fn matches(trie: &PatternTrie<u32>, subject: &str) -> Vec<u32> {
    let mut found = Vec::new();
    trie.for_each_match(subject.as_bytes(), |value| found.push(*value));
    found.sort_unstable();
    assert_eq!(trie.has_match(subject.as_bytes()), !found.is_empty());
    found
}

#[test]
fn each_matching_pattern_is_found() {
    let mut trie = PatternTrie::with_seed(1);
    let patterns = ["a.b.c", "a.*.c", "a.>", ">", "*.*.*", "a.b", "a.b.>", "*"];
    for (value, text) in (0..).zip(patterns) {
        assert!(trie.insert(&pattern(text), value));
        assert!(!trie.insert(&pattern(text), value));
    }
    assert_eq!(matches(&trie, "a.b.c"), [0, 1, 2, 3, 4, 6]);
    assert_eq!(matches(&trie, "a.b"), [2, 3, 5]);
    assert_eq!(matches(&trie, "a"), [3, 7]);
    for subject in ["", ".", "a.", "a..c", ".a"] {
        assert_eq!(matches(&trie, subject), [] as [u32; 0], "{subject:?}");
    }
    let before = trie.clone();
    for (value, text) in (0..).zip(patterns) {
        assert!(trie.remove(&pattern(text), &value));
        assert!(!trie.remove(&pattern(text), &value));
    }
    assert!(trie.is_empty() && trie.root.below.is_none());
    assert_eq!((before.count(), before.pattern_count()), (8, 8));
    assert_eq!(matches(&before, "a.b.c"), [0, 1, 2, 3, 4, 6]);
}
