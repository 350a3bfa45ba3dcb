//! The key of this process: what is derived with it means nothing to anybody else, nor to the next
//! process.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::hmac::{Context, HMAC_SHA256, Key, Tag};
use ring::rand::SystemRandom;

static KEY: LazyLock<Key> = LazyLock::new(|| {
    match Key::generate(HMAC_SHA256, &SystemRandom::new()) {
        Ok(key) => key,
        // It is asked once, before the first client is there.
        Err(_) => panic!("the system has no random bytes to give"),
    }
});

/// How many were drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// The same for the same parts, and nobody else can tell it.
pub(crate) fn keyed(parts: &[&[u8]]) -> Tag {
    let mut context = Context::with_key(&KEY);
    for part in parts {
        // With its length, so that parts divided elsewhere are others.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.sign()
}

/// 32 bytes that nobody can tell beforehand, and that no process draws twice: for salts and nonces.
pub(crate) fn draw() -> Tag {
    let number = DRAWN.fetch_add(1, Ordering::Relaxed);
    keyed(&[b"draw", &number.to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_count_and_draws_differ() {
        let same = |a: Tag, b: Tag| a.as_ref() == b.as_ref();
        assert!(same(keyed(&[b"a", b"bc"]), keyed(&[b"a", b"bc"])));
        assert!(!same(keyed(&[b"a", b"bc"]), keyed(&[b"ab", b"c"])));
        assert!(!same(draw(), draw()));
    }
}
