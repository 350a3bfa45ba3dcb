//! Subjects and patterns of NATS, and the trie that finds the patterns which match a subject.
//!
//! A subject is a sequence of tokens with dots between them: `orders.eu.17`. A pattern is a subject
//! that may have wildcards: `*` stands for one token, `>` as the last token for one or more. A
//! wildcard is a whole token: `a*` and `>b` are ordinary tokens. Subjects are bytes, because the
//! client protocol does not demand UTF-8.
//!
//! The rules are those of nats-server 2.15.2 (`server/sublist.go`). Each public item names the
//! function that it mirrors, and where it differs.
//!
//! Architecture invariant: this crate knows no protocol, no socket, no clock and no broker. A
//! result depends only on the arguments.

#![forbid(unsafe_code)]

mod pattern;
mod subject;
mod trie;

pub use pattern::{InvalidPattern, Pattern};
pub use subject::{
    is_literal, is_valid_literal_subject, is_valid_publish_subject, is_valid_subject, tokens,
};
pub use trie::PatternTrie;
