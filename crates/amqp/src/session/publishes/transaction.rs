//! `tx`: publishes and acknowledgements that take effect together, with the commit.

use crate::content_memory::ContentReservation;
use crate::exception::{Exception, ReplyCode};
use crate::host::Route;
use crate::message::Message;
use crate::session::deliveries::{SettleAction, TransactionSettlements, UnackedRun};

/// The publishes and acknowledgements of a channel since its last commit.
pub(in crate::session) struct Transaction {
    publishes: Vec<RoutedPublish>,
    /// The memory of the publishes, out of the connection's share.
    reservation: ContentReservation,
    settled: TransactionSettlements,
    /// `tx.commit` was received and is not answered yet.
    is_committing: bool,
}

/// A message that is routed but not stored yet.
pub(in crate::session) struct RoutedPublish {
    pub(in crate::session) route: Route,
    exchange: String,
    routing_key: String,
    pub(in crate::session) mandatory: bool,
    properties: Vec<u8>,
    bcc: Vec<u8>,
    body: Vec<u8>,
}

/// Memory of a kept publish besides its strings and bytes, in bytes.
const PUBLISH_BYTES: usize = 256;

impl RoutedPublish {
    /// Copies a message.
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

    /// An estimate of the memory that it takes, in bytes.
    pub(in crate::session) fn bytes(&self) -> usize {
        let texts = self.exchange.len() + self.routing_key.len();
        texts + self.properties.len() + self.bcc.len() + self.body.len() + PUBLISH_BYTES
    }
}

impl Transaction {
    pub(in crate::session) fn new(reservation: ContentReservation) -> Self {
        Self {
            publishes: Vec::new(),
            reservation,
            settled: Vec::new(),
            is_committing: false,
        }
    }

    /// Keeps a message until the commit.
    ///
    /// # Errors
    /// The transaction, or the memory of all transactions and contents, would exceed its limit.
    pub(in crate::session) fn publish(
        &mut self,
        publish: RoutedPublish,
        bytes_max: usize,
        now_us: u64,
    ) -> Result<(), Exception> {
        let bytes = publish.bytes();
        let fits = self.reservation.bytes() + bytes as u64 <= bytes_max as u64;
        if !fits || !self.reservation.try_grow(bytes, now_us) {
            return Err(Exception::new(
                ReplyCode::ResourceError,
                "no room for the messages of transactions that are not committed",
            ));
        }
        self.publishes.push(publish);
        Ok(())
    }

    /// Keeps a settlement until the commit.
    pub(in crate::session) fn settle(&mut self, action: SettleAction, runs: Vec<UnackedRun>) {
        self.settled.push((action, runs));
    }

    /// `tx.commit`: takes the content of the transaction; the client may send nothing until the
    /// answer.
    pub(in crate::session) fn begin_commit(
        &mut self,
    ) -> (Vec<RoutedPublish>, TransactionSettlements) {
        self.is_committing = true;
        self.take()
    }

    /// `tx.commit` is answered.
    pub(in crate::session) fn end_commit(&mut self) {
        self.is_committing = false;
    }

    pub(in crate::session) fn is_committing(&self) -> bool {
        self.is_committing
    }

    /// `tx.commit` or `tx.rollback`: takes the content of the transaction and releases its memory.
    pub(in crate::session) fn take(&mut self) -> (Vec<RoutedPublish>, TransactionSettlements) {
        self.reservation.release();
        let settled = std::mem::take(&mut self.settled);
        (std::mem::take(&mut self.publishes), settled)
    }

    /// Whether it has occupied memory for too long.
    pub(in crate::session) fn is_overdue(&self, now_us: u64) -> bool {
        self.reservation.is_overdue(now_us)
    }
}
