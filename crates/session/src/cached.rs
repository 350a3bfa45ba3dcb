//! Keeps what a connection has looked up, as long as it holds.

/// Something that was looked up at a generation, which its source raises with each change: a topic
/// of a broker's catalogue, routes of a virtual host. With another generation nothing is known.
#[derive(Debug, Default)]
pub struct Cached<T> {
    generation: u64,
    known: T,
}

impl<T: Default> Cached<T> {
    /// The values known at this generation. Ask for the generation before anything is looked up: a
    /// change in between is found the next time.
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
