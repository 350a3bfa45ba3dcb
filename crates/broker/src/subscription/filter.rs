//! Selects the messages that a subscription wants: subject patterns in NATS's syntax.
//!
//! Tokens are separated by `.`; `*` stands for one token, a final `>` for one or more.

/// A compiled list of patterns. An empty list matches every message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    patterns: Vec<Vec<String>>,
}

impl Filter {
    pub(crate) fn new(subjects: &[String]) -> Self {
        let split = |subject: &String| subject.split('.').map(str::to_owned).collect();
        Self {
            patterns: subjects.iter().map(split).collect(),
        }
    }

    pub(crate) fn passes_all(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether a message with this subject is wanted. A message without a subject matches no
    /// pattern.
    pub(crate) fn matches(&self, subject: Option<&[u8]>) -> bool {
        if self.passes_all() {
            return true;
        }
        let Some(subject) = subject else { return false };
        self.patterns
            .iter()
            .any(|pattern| pattern_matches(pattern, subject))
    }
}

fn pattern_matches(pattern: &[String], subject: &[u8]) -> bool {
    let mut tokens = subject.split(|byte| *byte == b'.');
    let mut wanted = pattern.iter();
    loop {
        match (wanted.next().map(String::as_str), tokens.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(_)) => {}
            (Some(word), Some(token)) if word.as_bytes() == token => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, subject: &str, expect: bool) {
        let filter = Filter::new(&[pattern.to_owned()]);
        assert_eq!(
            filter.matches(Some(subject.as_bytes())),
            expect,
            "{pattern} {subject}"
        );
    }

    #[test]
    fn patterns() {
        check("a.b", "a.b", true);
        check("a.b", "a.b.c", false);
        check("a.*", "a.b", true);
        check("a.*", "a", false);
        check("a.>", "a.b.c", true);
        check("a.>", "a", false);
        check(">", "a", true);
        check("*.b", "a.c", false);
        assert!(!Filter::new(&["a".to_owned()]).matches(None));
        assert!(Filter::new(&[]).matches(None));
    }
}
