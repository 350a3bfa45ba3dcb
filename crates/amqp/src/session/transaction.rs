//! `tx`: publishes and acknowledgements that hold together, once they are committed.

use super::Session;
use super::channel::Mode;
use super::confirms::{Commit, Waiting};
use super::settling::{Run, Settle};
use crate::content_memory::Held;
use crate::exception::{Exception, ReplyCode};
use crate::host::Route;
use crate::message::Message;

/// What was done on a channel since its last commit.
pub(super) struct Transaction {
    publishes: Vec<Publish>,
    /// Pays for the publishes.
    pub(super) held: Held,
    pub(super) settled: Vec<(Settle, Vec<Run>)>,
    /// `tx.commit` has come and is not answered.
    pub(super) is_committing: bool,
}

/// A message that was routed, and not stored.
pub(super) struct Publish {
    pub(super) route: Route,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) mandatory: bool,
    pub(super) properties: Vec<u8>,
    pub(super) bcc: Vec<u8>,
    pub(super) body: Vec<u8>,
}

/// What an entry costs beside its bytes.
const PUBLISH_BYTES: usize = 256;

impl Transaction {
    pub(super) fn new(held: Held) -> Self {
        Self {
            publishes: Vec::new(),
            held,
            settled: Vec::new(),
            is_committing: false,
        }
    }

    /// Keeps a message until the commit.
    ///
    /// # Errors
    /// There is no room for so many.
    pub(super) fn publish(
        &mut self,
        publish: Publish,
        bytes_max: usize,
        now_us: u64,
    ) -> Result<(), Exception> {
        let texts = publish.exchange.len() + publish.routing_key.len();
        let content = publish.properties.len() + publish.bcc.len() + publish.body.len();
        let bytes = texts + content + PUBLISH_BYTES;
        let fits = self.held.bytes() + bytes as u64 <= bytes_max as u64;
        if !fits || !self.held.grow(bytes, now_us) {
            return Err(Exception::new(
                ReplyCode::ResourceError,
                "no room for the messages of transactions that are not committed",
            ));
        }
        self.publishes.push(publish);
        Ok(())
    }
}

impl Session {
    /// `tx.select`.
    pub(super) fn select_transactions(&mut self, number: u16) -> Result<(), Exception> {
        let held = Held::none(&self.contents);
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        match channel.mode {
            Mode::Confirm(_) => Err(Exception::precondition(
                "cannot switch from confirm to tx mode",
            )),
            Mode::Transaction(_) => Ok(()),
            Mode::Plain => {
                channel.mode = Mode::Transaction(Box::new(Transaction::new(held)));
                Ok(())
            }
        }
    }

    fn transaction(&mut self, number: u16) -> Result<&mut Transaction, Exception> {
        let channel = self.channels.get_mut(&number);
        match channel.map(|channel| &mut channel.mode) {
            Some(Mode::Transaction(transaction)) => Ok(transaction),
            _ => Err(Exception::precondition("channel is not transactional")),
        }
    }

    /// `tx.commit`: it is answered once all messages are as durable as they should be.
    pub(super) fn commit(&mut self, number: u16) -> Result<(), Exception> {
        let transaction = self.transaction(number)?;
        transaction.is_committing = true;
        let publishes = std::mem::take(&mut transaction.publishes);
        let settled = std::mem::take(&mut transaction.settled);
        transaction.held.release();
        // What other channels have published of late has confirms of its own.
        self.flush();
        for publish in publishes {
            let message = Message {
                exchange: &publish.exchange,
                routing_key: &publish.routing_key,
                properties: &publish.properties,
                bcc: &publish.bcc,
                body: publish.body[..].into(),
            };
            self.store(number, &publish.route, &message, publish.mandatory, true);
        }
        let incarnation = self.channels.get(&number).map_or(0, |c| c.incarnation);
        self.flush_for(Some(Waiting::Commit(Commit {
            channel: number,
            incarnation,
        })));
        for (settle, runs) in settled {
            self.settle_runs(settle, &runs);
        }
        self.settle_acks();
        Ok(())
    }

    /// `tx.rollback`: nothing was published, and what was acknowledged is not.
    pub(super) fn roll_back(&mut self, number: u16) -> Result<(), Exception> {
        let transaction = self.transaction(number)?;
        transaction.publishes.clear();
        transaction.held.release();
        let settled = std::mem::take(&mut transaction.settled);
        if let Some(channel) = self.channels.get_mut(&number) {
            for (_, runs) in settled {
                channel.unacked.restore(runs);
            }
        }
        Ok(())
    }
}
