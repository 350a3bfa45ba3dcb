//! All integration tests of this crate in one binary, which is linked once.

mod time_limit;
