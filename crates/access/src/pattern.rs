//! The pattern of the names to which a rule applies.

use regex::{Regex, RegexBuilder};

/// Maximum memory of a compiled expression, in bytes. An expression may come from another program.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// A set of names.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// All names.
    All,
    /// This name.
    Is(String),
    /// All names with this prefix.
    Prefix(String),
    /// All names in which this expression matches somewhere. It is not anchored.
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
    /// The names in which this expression matches.
    ///
    /// # Errors
    /// The expression is invalid, or takes too much memory.
    pub fn regex(expression: &str) -> Result<Pattern, PatternError> {
        let regex = RegexBuilder::new(expression)
            .size_limit(REGEX_BYTES_MAX)
            .build();
        regex.map(Pattern::Regex).map_err(|cause| PatternError {
            expression: expression.to_owned(),
            cause,
        })
    }

    /// Whether the pattern includes this name.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::All => true,
            Pattern::Is(it) => it == name,
            Pattern::Prefix(it) => name.starts_with(&**it),
            Pattern::Regex(it) => it.is_match(name),
        }
    }
}
