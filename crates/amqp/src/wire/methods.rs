//! All methods, generated from one table: class, number, arguments.
//!
//! Source: AMQP 0-9-1 specification, section 1 of its reference; RabbitMQ's extensions are
//! `basic.nack`, `confirm`, `exchange.bind` and `unbind`, `connection.blocked`, `unblocked` and
//! `update-secret`.

use super::reader::{Malformed, Reader, malformed};
use super::table::Table;
use super::writer::Writer;

/// Identifies a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MethodId {
    /// The class: 60 is `basic`.
    pub class: u16,
    /// The method within its class: 40 is `basic.publish`.
    pub method: u16,
}

macro_rules! methods {
    ($(
        $class:literal $class_name:literal {
            $(
                $(#[$doc:meta])*
                $number:literal $method_name:literal $Name:ident $(<$life:lifetime>)?
                $({ $($field:ident: $type:ident -> $rust:ty),* $(,)? })?
            )*
        }
    )*) => {
        /// The arguments of each method.
        pub mod method {
            #[allow(unused_imports)]
            use super::Table;
            use super::{Malformed, MethodId, Reader, Writer};

            $($(methods! { @struct
                $class $number
                $(#[$doc])* $Name $(<$life>)? { $($($field: $type -> $rust),*)? }
            })*)*
        }

        /// A method with its arguments, borrowed from the payload.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs)] // each is documented at its arguments
        pub enum Method<'a> {
            $($($Name(method::$Name $(<$life>)?),)*)*
        }

        impl<'a> Method<'a> {
            /// Parses a method frame's payload; `None`: an unknown method.
            ///
            /// # Errors
            /// The payload is too short, longer than the arguments, or an argument is malformed.
            pub fn read(payload: &'a [u8]) -> Result<Option<Self>, Malformed> {
                let mut reader = Reader::new(payload);
                let method = match (reader.short()?, reader.short()?) {
                    $($(($class, $number) => {
                        Method::$Name(method::$Name::read(&mut reader)?)
                    })*)*
                    _ => return Ok(None),
                };
                match reader.rest() {
                    [] => Ok(Some(method)),
                    _ => malformed("it is longer than its arguments"),
                }
            }

            /// Appends a method frame's payload.
            pub fn write(&self, out: &mut Writer<'_>) {
                match self {
                    $($(Method::$Name(arguments) => arguments.write(out),)*)*
                }
            }

            /// The method's class and number.
            pub fn id(&self) -> MethodId {
                match self {
                    $($(Method::$Name(_) => method::$Name::ID,)*)*
                }
            }
        }

        impl MethodId {
            /// The class and method number of a method frame's payload; zeros if it is too short.
            pub fn peek(payload: &[u8]) -> Self {
                let mut reader = Reader::new(payload);
                let class = reader.short().unwrap_or(0);
                Self { class, method: reader.short().unwrap_or(0) }
            }

            /// The method's name in the specification, such as `basic.publish`.
            pub fn name(self) -> Option<&'static str> {
                match (self.class, self.method) {
                    $($(($class, $number) => Some(concat!($class_name, ".", $method_name)),)*)*
                    _ => None,
                }
            }
        }
    };

    (@struct
        $class:literal $number:literal
        $(#[$doc:meta])* $Name:ident $(<$life:lifetime>)? {
            $($field:ident: $type:ident -> $rust:ty),*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        #[allow(missing_docs)] // the specification's names
        pub struct $Name $(<$life>)? {
            $(pub $field: $rust,)*
        }

        impl $(<$life>)? $Name $(<$life>)? {
            /// Class and number.
            pub const ID: MethodId = MethodId { class: $class, method: $number };

            #[allow(unused_variables)] // methods without arguments
            pub(super) fn read(reader: &mut Reader<$($life)?>) -> Result<Self, Malformed> {
                Ok(Self {
                    $($field: reader.$type()?,)*
                })
            }

            pub(super) fn write(&self, out: &mut Writer<'_>) {
                out.short($class);
                out.short($number);
                $(out.$type(self.$field);)*
            }
        }
    };
}

methods! {
    10 "connection" {
        /// The server's greeting.
        10 "start" ConnectionStart<'a> {
            version_major: octet -> u8,
            version_minor: octet -> u8,
            server_properties: table -> Table<'a>,
            mechanisms: longstr -> &'a [u8],
            locales: longstr -> &'a [u8],
        }
        /// The client's properties, and its chosen login mechanism with a response.
        11 "start-ok" ConnectionStartOk<'a> {
            client_properties: table -> Table<'a>,
            mechanism: shortstr -> &'a str,
            response: longstr -> &'a [u8],
            locale: shortstr -> &'a str,
        }
        /// A further login challenge.
        20 "secure" ConnectionSecure<'a> { challenge: longstr -> &'a [u8] }
        /// The response to a challenge.
        21 "secure-ok" ConnectionSecureOk<'a> { response: longstr -> &'a [u8] }
        /// The server's limits; 0: no limit. The heartbeat is in seconds.
        30 "tune" ConnectionTune {
            channel_max: short -> u16,
            frame_max: long -> u32,
            heartbeat: short -> u16,
        }
        /// The limits that the client chose.
        31 "tune-ok" ConnectionTuneOk {
            channel_max: short -> u16,
            frame_max: long -> u32,
            heartbeat: short -> u16,
        }
        /// Opens a virtual host.
        40 "open" ConnectionOpen<'a> {
            virtual_host: shortstr -> &'a str,
            reserved_1: shortstr -> &'a str,
            reserved_2: bit -> bool,
        }
        /// The virtual host is open.
        41 "open-ok" ConnectionOpenOk<'a> { reserved_1: shortstr -> &'a str }
        /// Closes the connection and says why.
        50 "close" ConnectionClose<'a> {
            reply_code: short -> u16,
            reply_text: shortstr -> &'a str,
            class_id: short -> u16,
            method_id: short -> u16,
        }
        /// Confirms the close.
        51 "close-ok" ConnectionCloseOk
        /// The broker does not accept publishes for now (RabbitMQ).
        60 "blocked" ConnectionBlocked<'a> { reason: shortstr -> &'a str }
        /// The broker accepts publishes again (RabbitMQ).
        61 "unblocked" ConnectionUnblocked
        /// A new password or token (RabbitMQ).
        70 "update-secret" ConnectionUpdateSecret<'a> {
            new_secret: longstr -> &'a [u8],
            reason: shortstr -> &'a str,
        }
        /// The new secret was accepted (RabbitMQ).
        71 "update-secret-ok" ConnectionUpdateSecretOk
    }
    20 "channel" {
        /// Opens a channel.
        10 "open" ChannelOpen<'a> { reserved_1: shortstr -> &'a str }
        /// The channel is open.
        11 "open-ok" ChannelOpenOk<'a> { reserved_1: longstr -> &'a [u8] }
        /// Stops or resumes the flow of contents.
        20 "flow" ChannelFlow { active: bit -> bool }
        /// Confirms the flow state.
        21 "flow-ok" ChannelFlowOk { active: bit -> bool }
        /// Closes the channel and says why.
        40 "close" ChannelClose<'a> {
            reply_code: short -> u16,
            reply_text: shortstr -> &'a str,
            class_id: short -> u16,
            method_id: short -> u16,
        }
        /// Confirms the close.
        41 "close-ok" ChannelCloseOk
    }
    30 "access" {
        /// From AMQP 0-8; answered because old clients still send it.
        10 "request" AccessRequest<'a> {
            realm: shortstr -> &'a str,
            exclusive: bit -> bool,
            passive: bit -> bool,
            active: bit -> bool,
            write: bit -> bool,
            read: bit -> bool,
        }
        /// Access was granted.
        11 "request-ok" AccessRequestOk { ticket: short -> u16 }
    }
    40 "exchange" {
        /// Creates an exchange, or checks that it exists with these properties.
        10 "declare" ExchangeDeclare<'a> {
            reserved_1: short -> u16,
            exchange: shortstr -> &'a str,
            kind: shortstr -> &'a str,
            passive: bit -> bool,
            durable: bit -> bool,
            auto_delete: bit -> bool,
            internal: bit -> bool,
            no_wait: bit -> bool,
            arguments: table -> Table<'a>,
        }
        /// The exchange exists.
        11 "declare-ok" ExchangeDeclareOk
        /// Deletes an exchange.
        20 "delete" ExchangeDelete<'a> {
            reserved_1: short -> u16,
            exchange: shortstr -> &'a str,
            if_unused: bit -> bool,
            no_wait: bit -> bool,
        }
        /// The exchange was deleted.
        21 "delete-ok" ExchangeDeleteOk
        /// Binds an exchange to an exchange (RabbitMQ).
        30 "bind" ExchangeBind<'a> {
            reserved_1: short -> u16,
            destination: shortstr -> &'a str,
            source: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            no_wait: bit -> bool,
            arguments: table -> Table<'a>,
        }
        /// The binding exists.
        31 "bind-ok" ExchangeBindOk
        /// Removes a binding between exchanges (RabbitMQ).
        40 "unbind" ExchangeUnbind<'a> {
            reserved_1: short -> u16,
            destination: shortstr -> &'a str,
            source: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            no_wait: bit -> bool,
            arguments: table -> Table<'a>,
        }
        /// The binding was removed.
        51 "unbind-ok" ExchangeUnbindOk
    }
    50 "queue" {
        /// Creates a queue, or checks that it exists with these properties.
        10 "declare" QueueDeclare<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            passive: bit -> bool,
            durable: bit -> bool,
            exclusive: bit -> bool,
            auto_delete: bit -> bool,
            no_wait: bit -> bool,
            arguments: table -> Table<'a>,
        }
        /// The queue exists; with the number of its ready messages and consumers.
        11 "declare-ok" QueueDeclareOk<'a> {
            queue: shortstr -> &'a str,
            message_count: long -> u32,
            consumer_count: long -> u32,
        }
        /// Binds a queue to an exchange.
        20 "bind" QueueBind<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            no_wait: bit -> bool,
            arguments: table -> Table<'a>,
        }
        /// The binding exists.
        21 "bind-ok" QueueBindOk
        /// Drops the ready messages of a queue.
        30 "purge" QueuePurge<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            no_wait: bit -> bool,
        }
        /// The number of messages dropped.
        31 "purge-ok" QueuePurgeOk { message_count: long -> u32 }
        /// Deletes a queue.
        40 "delete" QueueDelete<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            if_unused: bit -> bool,
            if_empty: bit -> bool,
            no_wait: bit -> bool,
        }
        /// The queue was deleted; with the number of messages dropped with it.
        41 "delete-ok" QueueDeleteOk { message_count: long -> u32 }
        /// Removes a binding of a queue.
        50 "unbind" QueueUnbind<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            arguments: table -> Table<'a>,
        }
        /// The binding was removed.
        51 "unbind-ok" QueueUnbindOk
    }
    60 "basic" {
        /// Sets the prefetch limit: how many deliveries may be unacknowledged.
        10 "qos" BasicQos {
            prefetch_size: long -> u32,
            prefetch_count: short -> u16,
            global: bit -> bool,
        }
        /// The limit is in effect.
        11 "qos-ok" BasicQosOk
        /// Starts a consumer.
        20 "consume" BasicConsume<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            consumer_tag: shortstr -> &'a str,
            no_local: bit -> bool,
            no_ack: bit -> bool,
            exclusive: bit -> bool,
            no_wait: bit -> bool,
            arguments: table -> Table<'a>,
        }
        /// The consumer exists; with its tag.
        21 "consume-ok" BasicConsumeOk<'a> { consumer_tag: shortstr -> &'a str }
        /// Cancels a consumer. When the server sends it, the consumer was cancelled.
        30 "cancel" BasicCancel<'a> {
            consumer_tag: shortstr -> &'a str,
            no_wait: bit -> bool,
        }
        /// The consumer was cancelled.
        31 "cancel-ok" BasicCancelOk<'a> { consumer_tag: shortstr -> &'a str }
        /// Publishes a message to an exchange; its content follows.
        40 "publish" BasicPublish<'a> {
            reserved_1: short -> u16,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            mandatory: bit -> bool,
            immediate: bit -> bool,
        }
        /// Returns an unroutable message to its publisher; its content follows.
        50 "return" BasicReturn<'a> {
            reply_code: short -> u16,
            reply_text: shortstr -> &'a str,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
        }
        /// Delivers a message to a consumer; its content follows.
        60 "deliver" BasicDeliver<'a> {
            consumer_tag: shortstr -> &'a str,
            delivery_tag: longlong -> u64,
            redelivered: bit -> bool,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
        }
        /// Asks for one message of a queue.
        70 "get" BasicGet<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            no_ack: bit -> bool,
        }
        /// Delivers the message asked for; its content follows.
        71 "get-ok" BasicGetOk<'a> {
            delivery_tag: longlong -> u64,
            redelivered: bit -> bool,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            message_count: long -> u32,
        }
        /// The queue has no ready message.
        72 "get-empty" BasicGetEmpty<'a> { reserved_1: shortstr -> &'a str }
        /// Acknowledges deliveries. From the server: confirms publishes (RabbitMQ).
        80 "ack" BasicAck {
            delivery_tag: longlong -> u64,
            multiple: bit -> bool,
        }
        /// Rejects a delivery: it is requeued, or dead-lettered.
        90 "reject" BasicReject {
            delivery_tag: longlong -> u64,
            requeue: bit -> bool,
        }
        /// Like `recover`, without an answer.
        100 "recover-async" BasicRecoverAsync { requeue: bit -> bool }
        /// Requeues all unacknowledged deliveries of the channel.
        110 "recover" BasicRecover { requeue: bit -> bool }
        /// The deliveries were requeued.
        111 "recover-ok" BasicRecoverOk
        /// Rejects deliveries: they are requeued, or dead-lettered. From the server: publishes were
        /// not stored (RabbitMQ).
        120 "nack" BasicNack {
            delivery_tag: longlong -> u64,
            multiple: bit -> bool,
            requeue: bit -> bool,
        }
    }
    85 "confirm" {
        /// Turns on publisher confirms for the channel (RabbitMQ).
        10 "select" ConfirmSelect { no_wait: bit -> bool }
        /// Confirms are on (RabbitMQ).
        11 "select-ok" ConfirmSelectOk
    }
    90 "tx" {
        /// Makes the channel transactional.
        10 "select" TxSelect
        /// The channel is transactional.
        11 "select-ok" TxSelectOk
        /// Commits the transaction.
        20 "commit" TxCommit
        /// The transaction is committed.
        21 "commit-ok" TxCommitOk
        /// Discards the transaction.
        30 "rollback" TxRollback
        /// The transaction was discarded.
        31 "rollback-ok" TxRollbackOk
    }
}
