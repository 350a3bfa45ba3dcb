//! The random key of this process. Values that are derived with it mean nothing to other processes.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::hmac::{Context, HMAC_SHA256, Key, Tag};
use ring::rand::SystemRandom;

static KEY: LazyLock<Key> = LazyLock::new(|| {
    match Key::generate(HMAC_SHA256, &SystemRandom::new()) {
        Ok(key) => key,
        // The key is generated once, before the first client connects.
        Err(_) => panic!("the system has no random bytes to give"),
    }
});

/// Number of calls of [`random_bytes`].
static DRAW_COUNT: AtomicU64 = AtomicU64::new(0);

/// The HMAC of the parts under the process' key. It cannot be predicted without the key.
pub(crate) fn process_hmac(parts: &[&[u8]]) -> Tag {
    let mut context = Context::with_key(&KEY);
    for part in parts {
        // Each part goes with its length, so that the same bytes divided elsewhere give another
        // value.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.sign()
}

/// 32 unpredictable bytes, which no process returns twice: for salts and nonces.
pub(crate) fn random_bytes() -> Tag {
    let number = DRAW_COUNT.fetch_add(1, Ordering::Relaxed);
    process_hmac(&[b"draw", &number.to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_count_and_draws_differ() {
        let same = |a: Tag, b: Tag| a.as_ref() == b.as_ref();
        assert!(same(
            process_hmac(&[b"a", b"bc"]),
            process_hmac(&[b"a", b"bc"])
        ));
        assert!(!same(
            process_hmac(&[b"a", b"bc"]),
            process_hmac(&[b"ab", b"c"])
        ));
        assert!(!same(random_bytes(), random_bytes()));
    }
}
