//! The pattern of the names that a rule is about.

use regex::{Regex, RegexBuilder};

/// Most memory that one expression may compile to: it may come from another program.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// Names.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// All there are.
    All,
    /// This one.
    Is(String),
    /// Those that begin so.
    Prefix(String),
    /// Those in which this expression is found, anywhere unless it says where.
    Regex(Regex),
}

/// An expression that cannot be compiled.
#[derive(Debug, Clone, thiserror::Error)]
#[error("unable to compile {expression:?}: {cause}")]
pub struct PatternError {
    /// The expression.
    pub expression: String,
    /// The reason.
    pub cause: regex::Error,
}

impl Pattern {
    /// The names in which this expression is found.
    ///
    /// # Errors
    /// It is no expression, or one that takes too much memory.
    pub fn regex(expression: &str) -> Result<Pattern, PatternError> {
        let regex = RegexBuilder::new(expression)
            .size_limit(REGEX_BYTES_MAX)
            .build();
        regex.map(Pattern::Regex).map_err(|cause| PatternError {
            expression: expression.to_owned(),
            cause,
        })
    }

    /// Whether it is about this name.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::All => true,
            Pattern::Is(it) => it == name,
            Pattern::Prefix(it) => name.starts_with(&**it),
            Pattern::Regex(it) => it.is_match(name),
        }
    }
}
