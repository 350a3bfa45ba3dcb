//! A connection's channels, without their deliveries, which `deliveries` keeps.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::Content;
use super::publishes::transaction::Transaction;
use crate::content_memory::ContentReservation;
use crate::exception::{Exception, ReplyCode};

/// A channel.
pub(super) struct Channel {
    pub(super) number: u16,
    /// Distinguishes this channel from earlier ones with the same number.
    pub(super) incarnation: u64,
    pub(super) state: ChannelState,
    pub(super) mode: ChannelMode,
    /// A content that is received frame by frame, because its frames are interleaved with others.
    pub(super) content: Option<Content>,
    /// The last declared queue: an empty queue name means this one.
    pub(super) last_queue: Arc<str>,
}

/// The state of a channel that the client has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelState {
    Open,
    /// The broker has sent `channel.close`; frames are ignored until the client answers.
    Closing,
}

/// The mode of a channel: how its publishes are answered.
pub(super) enum ChannelMode {
    Plain,
    /// The client has sent `confirm.select`; holds the delivery tag of its next publish.
    Confirm(u64),
    Transaction(Box<Transaction>),
}

impl Channel {
    fn new(number: u16, incarnation: u64) -> Self {
        Self {
            number,
            incarnation,
            state: ChannelState::Open,
            mode: ChannelMode::Plain,
            content: None,
            last_queue: Arc::from(""),
        }
    }

    /// Whether a publish would be accepted now.
    #[inline]
    pub(super) fn takes_publish(&self) -> bool {
        self.state == ChannelState::Open && self.content.is_none() && !self.is_committing()
    }

    /// Whether a `tx.commit` is in progress, during which the client may send nothing.
    #[inline]
    pub(super) fn is_committing(&self) -> bool {
        matches!(&self.mode, ChannelMode::Transaction(transaction) if transaction.is_committing())
    }

    /// Drops the channel's content, mode and transaction; its frames are ignored from now on.
    pub(super) fn close(&mut self) {
        *self = Self {
            state: ChannelState::Closing,
            ..Self::new(self.number, self.incarnation)
        };
    }

    /// Whether its unfinished content or transaction has occupied memory for too long.
    fn is_overdue(&self, now_us: u64) -> bool {
        let content = self.content.as_ref();
        let of_transaction = match &self.mode {
            ChannelMode::Transaction(transaction) => transaction.is_overdue(now_us),
            ChannelMode::Plain | ChannelMode::Confirm(_) => false,
        };
        content.is_some_and(|content| content.is_overdue(now_us)) || of_transaction
    }
}

/// The channels of a connection.
#[derive(Default)]
pub(super) struct Channels {
    by_number: BTreeMap<u16, Channel>,
    incarnations: u64,
}

impl Channels {
    pub(super) fn open(&mut self, number: u16) {
        self.incarnations += 1;
        self.by_number
            .insert(number, Channel::new(number, self.incarnations));
    }

    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<&Channel> {
        self.by_number.get(&number)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Channel> {
        self.by_number.get_mut(&number)
    }

    /// Whether the channel with this number is still the same one, and open.
    pub(super) fn is_open(&self, number: u16, incarnation: u64) -> bool {
        self.get(number).is_some_and(|channel| {
            channel.incarnation == incarnation && channel.state == ChannelState::Open
        })
    }

    /// The queue that a name means on a channel: an empty name is the last declared queue.
    pub(super) fn queue_name(&self, number: u16, name: &str) -> Result<Arc<str>, Exception> {
        if !name.is_empty() {
            return Ok(name.into());
        }
        match self.get(number).map(|channel| &channel.last_queue) {
            Some(last) if !last.is_empty() => Ok(Arc::clone(last)),
            _ => Err(Exception::new(
                ReplyCode::NotFound,
                "no previously declared queue",
            )),
        }
    }

    /// `confirm.select`.
    pub(super) fn select_confirms(&mut self, number: u16) -> Result<(), Exception> {
        let Some(channel) = self.get_mut(number) else {
            return Ok(());
        };
        match channel.mode {
            ChannelMode::Transaction(_) => {
                let text = "cannot switch from tx to confirm mode";
                return Err(Exception::precondition(text));
            }
            ChannelMode::Confirm(_) => {}
            ChannelMode::Plain => channel.mode = ChannelMode::Confirm(1),
        }
        Ok(())
    }

    /// `tx.select`; the publishes will be charged to `reservation`.
    pub(super) fn select_transactions(
        &mut self,
        number: u16,
        reservation: ContentReservation,
    ) -> Result<(), Exception> {
        let Some(channel) = self.get_mut(number) else {
            return Ok(());
        };
        match channel.mode {
            ChannelMode::Confirm(_) => {
                let text = "cannot switch from confirm to tx mode";
                return Err(Exception::precondition(text));
            }
            ChannelMode::Transaction(_) => {}
            ChannelMode::Plain => {
                channel.mode = ChannelMode::Transaction(Box::new(Transaction::new(reservation)))
            }
        }
        Ok(())
    }

    /// The transaction of a channel.
    pub(super) fn transaction(&mut self, number: u16) -> Result<&mut Transaction, Exception> {
        match self.get_mut(number).map(|channel| &mut channel.mode) {
            Some(ChannelMode::Transaction(transaction)) => Ok(transaction),
            _ => Err(Exception::precondition("channel is not transactional")),
        }
    }

    pub(super) fn remove(&mut self, number: u16) {
        self.by_number.remove(&number);
    }

    pub(super) fn clear(&mut self) {
        self.by_number.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn numbers(&self) -> Vec<u16> {
        self.by_number.keys().copied().collect()
    }

    /// A channel whose unfinished content or transaction has occupied memory for too long.
    pub(super) fn overdue(&self, now_us: u64) -> Option<u16> {
        let mut channels = self.by_number.iter();
        let overdue = channels.find(|(_, channel)| channel.is_overdue(now_us));
        overdue.map(|(number, _)| *number)
    }
}
