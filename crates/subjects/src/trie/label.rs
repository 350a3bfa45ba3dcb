//! The tokens on an edge.

use std::sync::Arc;

use crate::subject::SEPARATOR;

/// A label up to this length needs no memory of its own: a name of 22 characters is what clients
/// make for an inbox (nuid).
const INLINE_BYTES_MAX: usize = 22;

/// One or more tokens of a pattern, with dots between them.
#[derive(Clone)]
pub(super) enum Label {
    Inline {
        length: u8,
        bytes: [u8; INLINE_BYTES_MAX],
    },
    Shared(Arc<[u8]>),
}

impl Label {
    pub(super) fn new(text: &[u8]) -> Label {
        if text.len() > INLINE_BYTES_MAX {
            return Label::Shared(text.into());
        }
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Label::Inline {
            // Fits: it is at most `INLINE_BYTES_MAX`.
            length: text.len() as u8,
            bytes,
        }
    }

    /// The label of two edges that become one.
    pub(super) fn joined(first: &[u8], second: &[u8]) -> Label {
        let mut text = Vec::with_capacity(first.len() + 1 + second.len());
        text.extend_from_slice(first);
        text.push(SEPARATOR);
        text.extend_from_slice(second);
        Label::new(&text)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Label::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Label::Shared(text) => text,
        }
    }
}

/// Length in bytes of the tokens that both texts begin with, without the separator behind them.
pub(super) fn common_tokens(one: &[u8], other: &[u8]) -> usize {
    let equal = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let ends = |text: &[u8]| text.get(equal).is_none_or(|byte| *byte == SEPARATOR);
    if ends(one) && ends(other) {
        return equal;
    }
    let separator = one[..equal].iter().rposition(|byte| *byte == SEPARATOR);
    separator.unwrap_or(0)
}
