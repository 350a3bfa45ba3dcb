//! Caches what a connection has looked up, until its source changes.

/// Values looked up at one generation of their source, which increases with each change: a topic in
/// a broker's catalog, or routes of a virtual host. A new generation empties the cache.
#[derive(Debug, Default)]
pub struct Cached<T> {
    generation: u64,
    known: T,
}

impl<T: Default> Cached<T> {
    /// The values cached for this generation. Read the generation before looking anything up: a
    /// change in between then invalidates the value.
    #[inline]
    pub fn at(&mut self, generation: u64) -> &mut T {
        if self.generation != generation {
            *self = Cached {
                generation,
                known: T::default(),
            };
        }
        &mut self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_generation_knows_nothing() {
        let mut cached = Cached::<Option<&str>>::default();
        assert_eq!(*cached.at(0), None);
        *cached.at(0) = Some("found");
        assert_eq!(*cached.at(0), Some("found"));
        assert_eq!(*cached.at(1), None);
        assert_eq!(*cached.at(0), None, "it does not come back");
    }
}
