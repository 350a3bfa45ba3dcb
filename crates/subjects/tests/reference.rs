//! The functions of nats-server 2.15 (`server/sublist.go`), translated, beside ours.

use cloverleaf_subjects::{
    Pattern, is_literal, is_valid_literal_subject, is_valid_publish_subject, is_valid_subject,
};
use proptest::prelude::*;

type Tokens<'a> = Vec<&'a [u8]>;

fn split(text: &[u8]) -> Tokens<'_> {
    text.split(|byte| *byte == b'.').collect()
}

/// `isValidSubject` without `checkRunes`.
fn reference_is_valid_subject(subject: &[u8]) -> bool {
    if subject.is_empty() {
        return false;
    }
    let mut sfwc = false;
    for token in split(subject) {
        if token.is_empty() || sfwc {
            return false;
        }
        if token.len() > 1 {
            if token.iter().any(|byte| b"\t\n\x0c\r ".contains(byte)) {
                return false;
            }
            continue;
        }
        match token[0] {
            b'>' => sfwc = true,
            b' ' | b'\t' | b'\n' | b'\r' | b'\x0c' => return false,
            _ => {}
        }
    }
    true
}

/// `isValidLiteralSubject`.
fn reference_is_valid_literal_subject(subject: &[u8]) -> bool {
    let wildcard = |token: &&[u8]| *token == b"*" || *token == b">";
    let mut tokens = split(subject).into_iter();
    tokens.all(|token| !token.is_empty() && !wildcard(&token))
}

/// `subjectIsLiteral`.
fn reference_is_literal(subject: &[u8]) -> bool {
    for (at, byte) in subject.iter().enumerate() {
        if *byte == b'*' || *byte == b'>' {
            let begins = at == 0 || subject[at - 1] == b'.';
            let ends = at + 1 == subject.len() || subject[at + 1] == b'.';
            if begins && ends {
                return false;
            }
        }
    }
    true
}

/// The checks of `Sublist.Insert`.
fn reference_can_insert(subject: &[u8]) -> bool {
    let mut sfwc = false;
    for token in split(subject) {
        if token.is_empty() || sfwc {
            return false;
        }
        sfwc = token == b">";
    }
    true
}

/// `isSubsetMatchTokenized`.
fn reference_is_subset(tokens: &Tokens<'_>, test: &Tokens<'_>) -> bool {
    for (at, t2) in test.iter().enumerate() {
        let Some(t1) = tokens.get(at) else {
            return false;
        };
        if t2.is_empty() {
            return false;
        }
        if *t2 == b">" {
            return true;
        }
        if t1.is_empty() || *t1 == b">" {
            return false;
        }
        if *t1 == b"*" {
            if *t2 != b"*" {
                return false;
            }
            continue;
        }
        if t2[0] != b'*' && t1 != t2 {
            return false;
        }
    }
    tokens.len() == test.len()
}

/// `SubjectsCollide`.
fn reference_collide(one: &[u8], two: &[u8]) -> bool {
    if one == two {
        return true;
    }
    let (toks1, toks2) = (split(one), split(two));
    let has = |tokens: &Tokens<'_>, wildcard: &[u8]| tokens.contains(&wildcard);
    let (fwc1, fwc2) = (has(&toks1, b">"), has(&toks2, b">"));
    let literal1 = !fwc1 && !has(&toks1, b"*");
    let literal2 = !fwc2 && !has(&toks2, b"*");
    match (literal1, literal2) {
        (true, true) => return one == two,
        (true, false) => return reference_is_subset(&toks1, &toks2),
        (false, true) => return reference_is_subset(&toks2, &toks1),
        (false, false) => {}
    }
    let (length1, length2) = (toks1.len(), toks2.len());
    if !fwc1 && !fwc2 && length1 != length2 {
        return false;
    }
    if (length1 < length2 && !fwc1) || (length2 < length1 && !fwc2) {
        return false;
    }
    let can_match = |t1: &[u8], t2: &[u8]| {
        let wild = |token: &[u8]| token[0] == b'*' || token[0] == b'>';
        !t1.is_empty() && !t2.is_empty() && (wild(t1) || wild(t2) || t1 == t2)
    };
    toks1.iter().zip(&toks2).all(|(t1, t2)| can_match(t1, t2))
}

/// `matchLiteral` for a subject without empty tokens, which `Sublist.match` refuses before.
fn reference_matches(subject: &[u8], pattern: &[u8]) -> bool {
    let (literal, tokens) = (split(subject), split(pattern));
    if literal.iter().any(|token| token.is_empty()) {
        return false;
    }
    for (at, token) in tokens.iter().enumerate() {
        match literal.get(at) {
            None => return false,
            Some(_) if *token == b">" => return true,
            Some(other) if *token != b"*" && token != other => return false,
            Some(_) => {}
        }
    }
    literal.len() == tokens.len()
}

/// Bytes that the rules are about, and some others.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop::sample::select(b"aab....**>> \t\n\x0c\r\x00\xff".to_vec());
    prop_oneof![
        prop::collection::vec(byte, 0..12),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

/// A valid pattern without tokens that only begin with a wildcard.
fn plain_pattern() -> impl Strategy<Value = Pattern> {
    let token = prop::sample::select(vec!["a", "b", "*", "*", "ab", "a*", "b>"]);
    let tokens = prop::collection::vec(token, 1..5);
    (tokens, any::<bool>()).prop_map(|(mut tokens, rest)| {
        if rest {
            tokens.push(">");
        }
        pattern(&tokens.join("."))
    })
}

fn pattern(text: &str) -> Pattern {
    Pattern::try_from(text).unwrap_or_else(|_| panic!("{text:?} is no pattern"))
}

proptest! {
    #[test]
    fn the_same_texts_are_valid(text in bytes()) {
        prop_assert_eq!(is_valid_subject(&text), reference_is_valid_subject(&text));
        prop_assert_eq!(is_literal(&text), reference_is_literal(&text));
        let literal = reference_is_valid_literal_subject(&text);
        prop_assert_eq!(is_valid_literal_subject(&text), literal);
        let publish = reference_is_valid_subject(&text) && reference_is_literal(&text);
        prop_assert_eq!(is_valid_publish_subject(&text), publish);
        prop_assert_eq!(Pattern::new(&text).is_ok(), reference_is_valid_subject(&text));
        prop_assert_eq!(Pattern::of_subscription(&text).is_ok(), reference_can_insert(&text));
    }

    #[test]
    fn the_same_subjects_match(pattern in plain_pattern(), subject in bytes()) {
        let expected = reference_matches(&subject, pattern.as_bytes());
        prop_assert_eq!(pattern.matches(&subject), expected);
    }

    #[test]
    fn the_same_patterns_overlap(one in plain_pattern(), other in plain_pattern()) {
        let (a, b) = (one.as_bytes(), other.as_bytes());
        prop_assert_eq!(one.overlaps(&other), reference_collide(a, b));
        prop_assert_eq!(other.overlaps(&one), one.overlaps(&other));
        prop_assert_eq!(one.is_subset_of(&other), reference_is_subset(&split(a), &split(b)));
    }

    /// A subject of each token that either pattern has, and one more, decides.
    #[test]
    fn subsets_and_overlaps_are_those_of_the_subjects(
        one in plain_pattern(),
        other in plain_pattern(),
    ) {
        let alphabet = ["a", "b", "ab", "a*", "b>", "x"];
        let (mut subset, mut overlap) = (true, false);
        // Longer than both patterns, so that the end of each `>` is there.
        let longest = one.tokens().count().max(other.tokens().count()) + 1;
        // A `*` or `>` of both is the same for all tokens that neither names: few are enough.
        let fill = |pattern: &Pattern, token: &str, length: usize| -> Vec<String> {
            let mut tokens: Vec<String> = Vec::new();
            for it in pattern.tokens() {
                match it {
                    b"*" => tokens.push(token.to_owned()),
                    b">" => break,
                    it => tokens.push(String::from_utf8_lossy(it).into_owned()),
                }
            }
            while pattern.tokens().last() == Some(b">") && tokens.len() < length {
                tokens.push(token.to_owned());
            }
            tokens
        };
        for length in 1..=longest {
            for token in alphabet {
                let ours = fill(&one, token, length).join(".");
                if one.matches(ours.as_bytes()) {
                    subset &= other.matches(ours.as_bytes());
                }
                // The literal tokens of both, and this token where both have wildcards.
                let theirs = fill(&other, token, length);
                let mine = fill(&one, token, length);
                let mixed = mine.iter().zip(&theirs).enumerate().map(|(at, (mine, theirs))| {
                    let wild = one.tokens().nth(at).is_none_or(|it| it == b"*" || it == b">");
                    if wild { theirs } else { mine }.as_str()
                });
                let mixed = mixed.collect::<Vec<_>>().join(".");
                overlap |= one.matches(mixed.as_bytes()) && other.matches(mixed.as_bytes());
            }
        }
        prop_assert_eq!(one.is_subset_of(&other), subset);
        prop_assert_eq!(one.overlaps(&other), overlap);
    }
}

/// Where ours differ: nats-server takes a token that begins with a wildcard for one.
#[test]
fn a_token_that_begins_with_a_wildcard_is_ordinary() {
    let (a, b) = (pattern("a.b"), pattern("a.*x"));
    assert!(reference_is_subset(&split(b"a.b"), &split(b"a.*x")));
    assert!(!a.is_subset_of(&b));
    assert!(!b.matches(b"a.b"));

    let (a, b) = (pattern("*x.*"), pattern("y.*"));
    assert!(reference_collide(b"*x.*", b"y.*"));
    assert!(!a.overlaps(&b));
}
