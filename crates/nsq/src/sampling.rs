//! Chooses the messages that a client with a sample rate gets.

/// Decides for each message. A client without a sample rate gets all messages.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    rate: u8,
    state: u64,
}

impl Sampling {
    /// `rate` in percent, 0 for all. Any seed is valid; connections with different seeds get
    /// different messages.
    pub(crate) fn new(rate: u8, seed: u64) -> Sampling {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Sampling { rate, state }
    }

    /// Whether the client gets the next message.
    #[inline]
    pub(crate) fn takes(&mut self) -> bool {
        self.rate == 0 || self.draw() <= self.rate
    }

    /// A random number from 0 to 99 (xorshift64*). As in nsqd, a message is left out if the number
    /// is greater than the rate, so that a rate of 42 delivers 43 percent.
    fn draw(&mut self) -> u8 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let number = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((number * 100) >> 32) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_the_asked_share_is_taken() {
        for (rate, expect) in [
            (0_u8, 10_000..=10_000),
            (42, 4_000..=4_600),
            (99, 9_990..=10_000),
        ] {
            for seed in 0..20 {
                let mut sampling = Sampling::new(rate, seed);
                let taken = (0..10_000).filter(|_| sampling.takes()).count();
                assert!(expect.contains(&taken), "{rate}% took {taken}");
            }
        }
    }
}
