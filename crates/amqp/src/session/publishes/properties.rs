//! The properties of a publish: their checks, the removal of those that consumers must not see, and
//! those that decide how the message is stored.

use cloverleaf_log::Durability;

use crate::exception::Exception;
use crate::host::delay_ms;
use crate::message::Message;
use crate::queue_arguments::type_name;
use crate::wire::{Properties, Table, Value, Writer, table_bytes};

/// The longest `expiration`, in milliseconds (RabbitMQ's limit).
const EXPIRATION_MAX_MS: u64 = 0xffff_ffff;

/// The properties of a message that decide how it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageProperties {
    is_persistent: bool,
    /// A confirm or `tx.commit-ok` is owed for it.
    pub(super) wants_confirm: bool,
    pub(super) priority: Option<u8>,
    pub(super) expires_at_ms: Option<u64>,
    pub(super) delay_ms: Option<u64>,
}

impl StorageProperties {
    /// For a message whose properties were checked before.
    pub(super) fn of_checked(message: &Message<'_>, now_ms: u64, wants_confirm: bool) -> Self {
        let properties = Properties::read(message.properties).unwrap_or_default();
        let expires_at_ms = expires_at_ms(&properties, now_ms).unwrap_or_default();
        Self::of(&properties, expires_at_ms, wants_confirm)
    }

    pub(super) fn of(
        properties: &Properties<'_>,
        expires_at_ms: Option<u64>,
        wants_confirm: bool,
    ) -> Self {
        Self {
            is_persistent: properties.delivery_mode == Some(2),
            wants_confirm,
            priority: properties.priority,
            expires_at_ms,
            delay_ms: properties.headers.and_then(delay_ms),
        }
    }

    /// Only a confirm of a persistent message in a durable queue waits for the disk.
    pub(super) fn durability(&self, is_durable: bool) -> Durability {
        if self.is_persistent && self.wants_confirm && is_durable {
            Durability::Disk
        } else {
            Durability::Kernel
        }
    }
}

pub(super) fn no_reply_queue() -> Exception {
    Exception::precondition("fast reply consumer does not exist")
}

pub(super) fn rewrite<'o>(properties: &Properties<'_>, out: &'o mut Vec<u8>) -> &'o [u8] {
    out.clear();
    properties.write(&mut Writer::new(out));
    out
}

/// The headers without `BCC`, which consumers must not see.
pub(super) fn without_bcc<'t>(
    headers: Option<Table<'_>>,
    table: &'t mut Vec<u8>,
) -> Option<Table<'t>> {
    let fields = headers.unwrap_or_default();
    let kept: Vec<_> = fields.fields().filter(|(name, _)| *name != "BCC").collect();
    *table = table_bytes(&kept);
    Table::check(table).ok()
}

/// Checks that `CC` and `BCC` are arrays.
#[inline]
pub(super) fn check_cc(headers: Table<'_>) -> Result<(), Exception> {
    for (name, value) in headers.fields() {
        let is_array = matches!(value, Value::Array(_));
        if (name == "CC" || name == "BCC") && !is_array {
            let kind = type_name(value);
            return Err(Exception::precondition(format!(
                "invalid message: {{unacceptable_type_in_header,\"{name}\",{kind}}}"
            )));
        }
    }
    Ok(())
}

/// Checks that the property `user_id`, if set, names the connection's user.
#[inline]
pub(super) fn check_user(properties: &Properties<'_>, name: &str) -> Result<(), Exception> {
    match properties.user_id {
        Some(user) if user != name => Err(Exception::precondition(format!(
            "user_id property set to '{user}' but authenticated user was '{name}'"
        ))),
        _ => Ok(()),
    }
}

/// When a message that is published now expires, in milliseconds since 1970.
#[inline]
pub(super) fn expires_at_ms(
    properties: &Properties<'_>,
    now_ms: u64,
) -> Result<Option<u64>, Exception> {
    let expiration_ms = properties.expiration.map(expiration_ms).transpose()?;
    Ok(expiration_ms.map(|ms| now_ms.saturating_add(ms)))
}

/// Parses the property `expiration`.
fn expiration_ms(text: &str) -> Result<u64, Exception> {
    let invalid =
        |why: &str| Exception::precondition(format!("invalid expiration '{text}': {why}"));
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    if number.is_empty() {
        return Err(invalid(if text.starts_with('-') {
            "value_negative"
        } else {
            "no_integer"
        }));
    }
    if !rest.is_empty() {
        return Err(invalid(&format!("{{leftover_string,{rest:?}}}")));
    }
    match number.parse() {
        Ok(ms) if ms <= EXPIRATION_MAX_MS => Ok(ms),
        _ => Err(invalid(&format!("{{value_too_big,{number}}}"))),
    }
}
