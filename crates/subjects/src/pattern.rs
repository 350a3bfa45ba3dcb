//! A valid subject that may have wildcards.

use std::fmt;
use std::sync::Arc;

use crate::subject::{
    ONE, REST, has_empty_token, has_pattern_tokens, is_literal, is_valid_subject, tokens,
};

/// A valid subject or pattern. A clone shares the text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern {
    text: Arc<[u8]>,
}

/// A text that is no subject and no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid subject")]
pub struct InvalidPattern;

impl Pattern {
    /// A pattern of a configuration or of the JetStream API (`IsValidSubject`).
    ///
    /// # Errors
    /// The text is no pattern by [`is_valid_subject`](crate::is_valid_subject).
    pub fn new(text: &[u8]) -> Result<Pattern, InvalidPattern> {
        if is_valid_subject(text) {
            Ok(Pattern { text: text.into() })
        } else {
            Err(InvalidPattern)
        }
    }

    /// The pattern of a `SUB` (`Sublist.Insert`). Unlike [`Pattern::new`] it accepts blanks: the
    /// parser of a control line ends an argument at all of them but the form feed, and nats-server
    /// takes a form feed into the subject.
    ///
    /// # Errors
    /// A token is empty, or `>` is not the last token.
    pub fn of_subscription(text: &[u8]) -> Result<Pattern, InvalidPattern> {
        if has_pattern_tokens(text) {
            Ok(Pattern { text: text.into() })
        } else {
            Err(InvalidPattern)
        }
    }

    /// The text as the client wrote it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The tokens. None is empty.
    pub fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        tokens(&self.text)
    }

    /// Whether there is no wildcard.
    pub fn is_literal(&self) -> bool {
        is_literal(&self.text)
    }

    /// Whether a message that is published to this subject matches (`Sublist.Match`). A wildcard in
    /// the subject is an ordinary token, so only wildcards of the pattern match it. A subject with
    /// an empty token matches nothing.
    pub fn matches(&self, subject: &[u8]) -> bool {
        if has_empty_token(subject) {
            return false;
        }
        let mut subject = tokens(subject);
        for token in self.tokens() {
            let Some(other) = subject.next() else {
                return false;
            };
            if token == REST {
                return true;
            }
            if token != ONE && token != other {
                return false;
            }
        }
        subject.next().is_none()
    }

    /// Whether `other` matches each subject that this pattern matches (`subjectIsSubsetMatch`).
    ///
    /// nats-server's function takes each token of `other` that begins with `*` for a wildcard, so
    /// it calls `a.b` a subset of `a.*x`. This one takes such a token for what a publish takes it.
    pub fn is_subset_of(&self, other: &Pattern) -> bool {
        let mut inner = self.tokens();
        for outer in other.tokens() {
            let Some(inner) = inner.next() else {
                return false;
            };
            if outer == REST {
                return true;
            }
            if inner == REST || (outer != ONE && outer != inner) {
                return false;
            }
        }
        inner.next().is_none()
    }

    /// Whether both patterns match a common subject (`SubjectsCollide`).
    ///
    /// nats-server's function takes tokens that begin with `*` or `>` for wildcards if both
    /// patterns have wildcards. This one takes such a token for what a publish takes it.
    pub fn overlaps(&self, other: &Pattern) -> bool {
        let (mut ours, mut theirs) = (self.tokens(), other.tokens());
        loop {
            let (our, their) = match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some(our), Some(their)) => (our, their),
                _ => return false,
            };
            if our == REST || their == REST {
                return true;
            }
            if our != ONE && their != ONE && our != their {
                return false;
            }
        }
    }
}

impl fmt::Display for Pattern {
    /// Bytes that are not UTF-8 are replaced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.text).fmt(f)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", String::from_utf8_lossy(&self.text))
    }
}

impl TryFrom<&str> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: &str) -> Result<Pattern, InvalidPattern> {
        Pattern::new(text.as_bytes())
    }
}
