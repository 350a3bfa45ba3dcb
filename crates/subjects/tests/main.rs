//! Patterns and the trie through the public interface, beside a naive matcher.

mod reference;
mod trie;
