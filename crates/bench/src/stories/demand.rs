//! Which processor of a pipeline gets a message. Each of Broadway's producers decides that for
//! itself: it hands the message to the processor with the greatest demand, and does not know what
//! other producers have handed to that processor (the seed, lines 267 to 633).

use std::collections::VecDeque;

/// One producer's view of the processors.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    /// Demand and number of each processor. The greatest comes first; of equal ones, the oldest.
    asked: Vec<(usize, usize)>,
    /// Messages for which there is no demand.
    waiting: VecDeque<u64>,
}

impl Demand {
    /// Each processor has a demand of `each` messages.
    pub(crate) fn new(processors: usize, each: usize) -> Demand {
        Demand {
            asked: (0..processors).map(|processor| (each, processor)).collect(),
            waiting: VecDeque::new(),
        }
    }

    /// A message came. Returns the processor that gets it; `None` if the message waits for demand.
    pub(crate) fn came(&mut self, message: u64) -> Option<usize> {
        let Some((asked, processor)) = self.asked.first().copied().filter(|it| it.0 > 0) else {
            self.waiting.push_back(message);
            return None;
        };
        self.asked.remove(0);
        self.insert(asked - 1, processor);
        Some(processor)
    }

    /// A processor asks for one more message. Returns a waiting message, if there is one.
    pub(crate) fn ask(&mut self, processor: usize) -> Option<u64> {
        if let Some(message) = self.waiting.pop_front() {
            return Some(message);
        }
        let place = self.asked.iter().position(|(_, other)| *other == processor);
        let asked = place.map_or(0, |place| self.asked.remove(place).0);
        self.insert(asked + 1, processor);
        None
    }

    fn insert(&mut self, asked: usize, processor: usize) {
        let behind = self.asked.iter().position(|(others, _)| *others < asked);
        self.asked
            .insert(behind.unwrap_or(self.asked.len()), (asked, processor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_producers_give_their_first_messages_to_the_same_processor() {
        let (mut one, mut two) = (Demand::new(25, 10), Demand::new(25, 10));
        assert_eq!((one.came(1), two.came(2)), (Some(0), Some(0)));
        assert_eq!((one.came(3), two.came(4)), (Some(1), Some(1)));
    }

    #[test]
    fn what_nobody_has_asked_for_waits() {
        let mut demand = Demand::new(2, 1);
        let given: Vec<_> = (0..4).map(|message| demand.came(message)).collect();
        assert_eq!(given, [Some(0), Some(1), None, None]);
        assert_eq!(demand.ask(1), Some(2));
        assert_eq!(demand.ask(1), Some(3));
        assert_eq!(demand.ask(0), None);
        assert_eq!(demand.came(4), Some(0));
    }
}
