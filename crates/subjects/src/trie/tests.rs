use super::*;

fn pattern(text: &str) -> Pattern {
    Pattern::try_from(text).unwrap_or_else(|_| panic!("{text:?} is no pattern"))
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

/// The work of one match.
#[derive(Debug, Default, PartialEq)]
struct Cost {
    levels: usize,
    tokens: usize,
    matches: usize,
}

impl walk::WalkCost for Cost {
    fn level(&mut self) {
        self.levels += 1;
    }

    fn token(&mut self) {
        self.tokens += 1;
    }
}

fn cost(trie: &PatternTrie<u32>, subject: &str) -> Cost {
    let mut cost = Cost::default();
    let mut matches = 0;
    let count = |values: &Values<u32>| {
        values.visit(&mut |_| matches += 1);
        ControlFlow::<Infallible>::Continue(())
    };
    let _ = trie.walk(subject.as_bytes(), count, &mut cost);
    cost.matches = matches;
    cost
}

/// Edges, and bytes of their labels.
fn size(trie: &PatternTrie<u32>) -> (usize, usize) {
    let (mut edges, mut bytes) = (0, 0);
    let mut pending: Vec<&level::Level<u32>> = trie.root.below.as_deref().into_iter().collect();
    while let Some(level) = pending.pop() {
        level.for_each_edge(&mut |edge| {
            edges += 1;
            bytes += edge.label.as_bytes().len();
            pending.extend(edge.below.as_deref());
        });
    }
    (edges, bytes)
}

#[test]
fn without_wildcards_a_match_visits_one_edge_per_token() {
    let mut trie = PatternTrie::with_seed(1);
    for value in 0..10_000 {
        trie.insert(&pattern(&format!("orders.{value}.paid")), value);
        trie.insert(&pattern(&format!("orders.{value}.sent")), value);
    }
    // root, after `orders`, after `77`.
    let expected = Cost {
        levels: 3,
        tokens: 3,
        matches: 1,
    };
    assert_eq!(cost(&trie, "orders.77.paid"), expected);
    assert_eq!(cost(&trie, "orders.nobody.paid").levels, 2);
    assert_eq!(cost(&trie, "nobody").levels, 1);
}

#[test]
fn a_chain_of_wildcards_costs_its_tokens() {
    const TOKENS: usize = 2_000;
    let mut trie = PatternTrie::with_seed(1);
    // The longest patterns that a control line has, which differ in the last token only.
    let chain = vec!["*"; TOKENS].join(".");
    for value in 0..100 {
        trie.insert(&pattern(&format!("{chain}.{value}")), value);
    }
    assert_eq!(size(&trie).0, 101);
    let subject = vec!["a"; TOKENS].join(".");
    let found = cost(&trie, &format!("{subject}.7"));
    assert_eq!((found.levels, found.matches), (2, 1));
    assert_eq!(found.tokens, TOKENS + 1);
    // A subject that is too short ends with its tokens.
    assert!(cost(&trie, "a.b.c").tokens <= 4);
}

#[test]
fn nested_wildcards_cost_their_matches() {
    const TOKENS: usize = 2_000;
    let mut trie = PatternTrie::with_seed(1);
    let chain = vec!["*"; TOKENS].join(".");
    for (value, length) in (0..).zip((1..chain.len() + 1).step_by(2)) {
        trie.insert(&pattern(&chain[..length]), value);
        trie.insert(&pattern(&format!("{}>", &chain[..length - 1])), value);
    }
    assert_eq!(trie.pattern_count(), 2 * TOKENS);
    let subject = vec!["a"; TOKENS].join(".");
    let found = cost(&trie, &subject);
    // Each `>` matches, and the one chain that is as long as the subject.
    assert_eq!(found.matches, TOKENS + 1);
    assert_eq!((found.levels, found.tokens), (TOKENS, TOKENS));
}

/// The worst patterns that there are: at each token a literal and a `*` go on, and none matches.
#[test]
fn doubled_paths_cost_at_most_the_edges_there_are() {
    const DOUBLED: u32 = 10;
    let mut trie = PatternTrie::with_seed(1);
    for value in 0..1 << DOUBLED {
        let token = |at| if value >> at & 1 == 1 { "*" } else { "a" };
        let tokens: Vec<&str> = (0..DOUBLED).map(token).collect();
        trie.insert(&pattern(&format!("{}.z", tokens.join("."))), value);
    }
    let (edges, _) = size(&trie);
    assert_eq!(edges, (2 << DOUBLED) - 2);
    let subject = vec!["a"; DOUBLED as usize].join(".");
    let found = cost(&trie, &format!("{subject}.y"));
    assert_eq!(found.matches, 0);
    assert!(found.levels <= edges && found.tokens <= edges + (1 << DOUBLED));
    // A subject that is none of the literals takes one path.
    let other = vec!["b"; DOUBLED as usize].join(".");
    assert_eq!(cost(&trie, &format!("{other}.z")).levels, DOUBLED as usize);
}

#[test]
fn deep_tries_are_dropped_without_recursion() {
    const TOKENS: usize = 200_000;
    let mut trie = PatternTrie::with_seed(1);
    // Made by hand: as patterns they would be as many bytes as the square of it.
    let mut below = None;
    for value in 0..TOKENS {
        let mut level = level::Level::default();
        let edge = level.edge_or_new(if value % 2 == 0 { b"*" } else { b"a" }, 1);
        edge.values.insert(0_u32, 1);
        edge.below = below.take();
        below = Some(Arc::new(level));
    }
    trie.root.below = below;
    let copy = trie.clone();
    drop(trie);
    drop(copy);
}

mod random {
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = String> {
        let token = prop::sample::select(vec!["a", "b", "*", "ab", "long-token-of-24-characters"]);
        let tokens = prop::collection::vec(token, 1..8);
        (tokens, any::<bool>()).prop_map(|(tokens, rest)| {
            let end = if rest { ".>" } else { "" };
            tokens.join(".") + end
        })
    }

    /// The rule of an edge: it has values, or two continuations.
    fn check_edges(trie: &PatternTrie<u32>) {
        let mut pending: Vec<&level::Level<u32>> = Vec::new();
        pending.extend(trie.root.below.as_deref());
        while let Some(level) = pending.pop() {
            let mut continuations = 0;
            level.for_each_edge(&mut |edge| {
                continuations += 1;
                let mut below =
                    usize::from(edge.below.as_ref().is_some_and(|it| !it.rest.is_empty()));
                if let Some(level) = edge.below.as_deref() {
                    level.for_each_edge(&mut |_| below += 1);
                    assert!(below > 0, "an empty level");
                    pending.push(level);
                }
                assert!(
                    !edge.values.is_empty() || below > 1,
                    "an edge that goes nowhere"
                );
            });
            assert!(continuations > 0 || !level.rest.is_empty());
        }
    }

    proptest! {
        #[test]
        fn memory_is_bounded_by_the_patterns(
            steps in prop::collection::vec((text(), 0_u32..3), 1..100),
        ) {
            let mut trie = PatternTrie::with_seed(1);
            for (text, value) in &steps {
                trie.insert(&pattern(text), *value);
                check_edges(&trie);
            }
            let (edges, bytes) = size(&trie);
            prop_assert!(edges < 2 * trie.pattern_count());
            prop_assert!(bytes <= steps.iter().map(|(text, _)| text.len()).sum());
            let full = trie.clone();
            for (text, value) in &steps {
                trie.remove(&pattern(text), value);
                check_edges(&trie);
            }
            prop_assert!(trie.is_empty() && trie.pattern_count() == 0);
            prop_assert!(trie.root.below.is_none());
            prop_assert_eq!(size(&full), (edges, bytes));
        }
    }
}
