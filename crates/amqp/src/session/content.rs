//! A content whose frames do not directly follow each other: it is received frame by frame.

use super::channel_input::cannot_decode;
use super::frames::BASIC;
use super::publishes::PublishTarget;
use crate::body::{Body, CollectedBody};
use crate::content_memory::ContentReservation;
use crate::exception::{Exception, ReplyCode};
use crate::wire::{ContentHeader, Frame, FrameType, MethodId, method};

/// A content of which not all frames have been received.
pub(super) struct Content {
    exchange: String,
    routing_key: String,
    mandatory: bool,
    /// The payload of its content header, once received.
    header: Option<Vec<u8>>,
    body: CollectedBody,
    /// Bytes of the body not yet received.
    left: u64,
    reservation: ContentReservation,
}

impl Content {
    /// The content of a publish; its bytes will be charged to `reservation`.
    pub(super) fn of(publish: &method::BasicPublish<'_>, reservation: ContentReservation) -> Self {
        Self {
            exchange: publish.exchange.to_owned(),
            routing_key: publish.routing_key.to_owned(),
            mandatory: publish.mandatory,
            header: None,
            body: CollectedBody::default(),
            left: 0,
            reservation,
        }
    }

    /// Takes its next frame. `true`: the content is complete.
    ///
    /// # Errors
    /// The frame does not belong to a content, or exceeds the size or memory limit.
    pub(super) fn take(
        &mut self,
        frame: &Frame<'_>,
        message_bytes_max: u64,
        now_us: u64,
    ) -> Result<bool, Exception> {
        match (&self.header, frame.kind) {
            (None, FrameType::Header) => {
                check_class(frame.payload)?;
                let header = ContentHeader::read(frame.payload);
                let (header, _) = header.map_err(|_| cannot_decode(frame.payload))?;
                check_size(header.body_bytes, message_bytes_max)?;
                self.reserve(frame.payload, now_us)?;
                self.left = header.body_bytes;
                self.header = Some(frame.payload.to_vec());
            }
            (None, _) => {
                return Err(Exception::unexpected_frame(format!(
                    "expected content header for class {BASIC}, got non content header frame \
                     instead"
                )));
            }
            (Some(_), FrameType::Body) => {
                let bytes = frame.payload.len() as u64;
                if bytes > self.left {
                    return Err(Exception::new(
                        ReplyCode::FrameError,
                        "content body frame exceeds remaining content size",
                    ));
                }
                self.reserve(frame.payload, now_us)?;
                self.left -= bytes;
                self.body.push(frame.payload);
            }
            (Some(_), _) => {
                return Err(Exception::unexpected_frame(
                    "expected content body, got non content body frame instead",
                ));
            }
        }
        Ok(self.left == 0)
    }

    /// Reserves memory for received bytes only: the announced body size is just a claim.
    fn reserve(&mut self, bytes: &[u8], now_us: u64) -> Result<(), Exception> {
        if self.reservation.try_grow(bytes.len(), now_us) {
            return Ok(());
        }
        let text = "no room for contents whose frames are mixed with those of other channels";
        Err(Exception::new(ReplyCode::ResourceError, text))
    }

    /// Releases the memory of a complete content: from here on the publish accounts for it.
    pub(super) fn release(&mut self) {
        self.reservation.release();
    }

    /// Whether it has occupied memory for too long.
    pub(super) fn is_overdue(&self, now_us: u64) -> bool {
        self.reservation.is_overdue(now_us)
    }

    pub(super) fn target(&self) -> PublishTarget<'_> {
        PublishTarget {
            exchange: &self.exchange,
            routing_key: &self.routing_key,
            mandatory: self.mandatory,
        }
    }

    /// The payload of its content header; empty before it was received.
    pub(super) fn header(&self) -> &[u8] {
        self.header.as_deref().unwrap_or_default()
    }

    pub(super) fn body(&self) -> Body<'_> {
        self.body.body()
    }
}

fn check_class(header: &[u8]) -> Result<(), Exception> {
    let class = MethodId::peek(header).class;
    if class == BASIC {
        return Ok(());
    }
    Err(Exception::unexpected_frame(format!(
        "expected content header for class {BASIC}, got one for class {class} instead"
    )))
}

fn check_size(bytes: u64, bytes_max: u64) -> Result<(), Exception> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Exception::precondition(format!(
        "message size {bytes} is larger than configured max size {bytes_max}"
    )))
}
