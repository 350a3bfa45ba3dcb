//! `tx`: publishes and acknowledgements that hold together, once they are committed.

use super::confirms::Commit;
use crate::content_memory::Held;
use crate::exception::{Exception, ReplyCode};
use crate::host::Route;
use crate::message::Message;
use crate::session::Session;
use crate::session::channel::Mode;
use crate::session::deliveries::settlement::Settled;

/// The publishes and acknowledgements of a channel since its last commit.
pub(in crate::session) struct Transaction {
    publishes: Vec<Publish>,
    /// Pays for the publishes.
    pub(in crate::session) held: Held,
    pub(in crate::session) settled: Settled,
    /// `tx.commit` has come and is not answered.
    pub(in crate::session) is_committing: bool,
}

/// A message that was routed, and not stored.
pub(in crate::session) struct Publish {
    pub(in crate::session) route: Route,
    exchange: String,
    routing_key: String,
    pub(in crate::session) mandatory: bool,
    properties: Vec<u8>,
    bcc: Vec<u8>,
    body: Vec<u8>,
}

/// The memory that an entry costs beside its own bytes, in bytes.
const PUBLISH_BYTES: usize = 256;

impl Publish {
    /// Keeps a message.
    pub(in crate::session) fn of(route: &Route, message: &Message<'_>, mandatory: bool) -> Self {
        Self {
            route: route.clone(),
            exchange: message.exchange.to_owned(),
            routing_key: message.routing_key.to_owned(),
            mandatory,
            properties: message.properties.to_vec(),
            bcc: message.bcc.to_vec(),
            body: message.body.to_vec(),
        }
    }

    pub(in crate::session) fn message(&self) -> Message<'_> {
        Message {
            exchange: &self.exchange,
            routing_key: &self.routing_key,
            properties: &self.properties,
            bcc: &self.bcc,
            body: self.body[..].into(),
        }
    }

    /// The memory that it takes, in bytes, about.
    pub(in crate::session) fn bytes(&self) -> usize {
        let texts = self.exchange.len() + self.routing_key.len();
        texts + self.properties.len() + self.bcc.len() + self.body.len() + PUBLISH_BYTES
    }
}

impl Transaction {
    pub(in crate::session) fn new(held: Held) -> Self {
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
    pub(in crate::session) fn publish(
        &mut self,
        publish: Publish,
        bytes_max: usize,
        now_us: u64,
    ) -> Result<(), Exception> {
        let bytes = publish.bytes();
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
    pub(in crate::session) fn select_transactions(&mut self, number: u16) -> Result<(), Exception> {
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
    pub(in crate::session) fn commit(&mut self, number: u16) -> Result<(), Exception> {
        let transaction = self.transaction(number)?;
        transaction.is_committing = true;
        let publishes = std::mem::take(&mut transaction.publishes);
        let settled = std::mem::take(&mut transaction.settled);
        transaction.held.release();
        // Publishes of late on other channels have confirms of their own.
        self.flush();
        let incarnation = self.channels.get(&number).map_or(0, |c| c.incarnation);
        let commit = Commit {
            channel: number,
            incarnation,
        };
        self.begin_commit(publishes, commit, settled);
        Ok(())
    }

    /// `tx.rollback`: nothing was published, and what was acknowledged is not.
    pub(in crate::session) fn roll_back(&mut self, number: u16) -> Result<(), Exception> {
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
