//! All methods, from one table: class, number, arguments.
//!
//! Source: AMQP 0-9-1 specification, section 1 of its reference; RabbitMQ's extensions are
//! `basic.nack`, `confirm`, `exchange.bind` and `unbind`, `connection.blocked`, `unblocked` and
//! `update-secret`.

use super::reader::{Malformed, Reader, malformed};
use super::table::Table;
use super::writer::Writer;

/// Names a method.
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

        /// A method with its arguments, which lie where they were read.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs)] // each is documented at its arguments
        pub enum Method<'a> {
            $($($Name(method::$Name $(<$life>)?),)*)*
        }

        impl<'a> Method<'a> {
            /// Reads a method frame's payload; `None`: no such method.
            ///
            /// # Errors
            /// The payload is too short, or longer than the arguments, or one of them is malformed.
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

            /// Its class and number.
            pub fn id(&self) -> MethodId {
                match self {
                    $($(Method::$Name(_) => method::$Name::ID,)*)*
                }
            }
        }

        impl MethodId {
            /// Reads the beginning of a method frame's payload; zeros if it is too short.
            pub fn peek(payload: &[u8]) -> Self {
                let mut reader = Reader::new(payload);
                let class = reader.short().unwrap_or(0);
                Self { class, method: reader.short().unwrap_or(0) }
            }

            /// Its name as the specification writes it: `basic.publish`.
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
        /// The client's description of itself, and how it authenticates.
        11 "start-ok" ConnectionStartOk<'a> {
            client_properties: table -> Table<'a>,
            mechanism: shortstr -> &'a str,
            response: longstr -> &'a [u8],
            locale: shortstr -> &'a str,
        }
        /// A further challenge.
        20 "secure" ConnectionSecure<'a> { challenge: longstr -> &'a [u8] }
        /// Its response.
        21 "secure-ok" ConnectionSecureOk<'a> { response: longstr -> &'a [u8] }
        /// The server's limits; 0: none. The heartbeat is in seconds.
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
        /// It is open.
        41 "open-ok" ConnectionOpenOk<'a> { reserved_1: shortstr -> &'a str }
        /// The end, and why.
        50 "close" ConnectionClose<'a> {
            reply_code: short -> u16,
            reply_text: shortstr -> &'a str,
            class_id: short -> u16,
            method_id: short -> u16,
        }
        /// The other side has heard of the end.
        51 "close-ok" ConnectionCloseOk
        /// Publishing is held back (RabbitMQ).
        60 "blocked" ConnectionBlocked<'a> { reason: shortstr -> &'a str }
        /// It goes on.
        61 "unblocked" ConnectionUnblocked
        /// A new password or token (RabbitMQ).
        70 "update-secret" ConnectionUpdateSecret<'a> {
            new_secret: longstr -> &'a [u8],
            reason: shortstr -> &'a str,
        }
        /// It was taken.
        71 "update-secret-ok" ConnectionUpdateSecretOk
    }
    20 "channel" {
        /// Opens a channel.
        10 "open" ChannelOpen<'a> { reserved_1: shortstr -> &'a str }
        /// It is open.
        11 "open-ok" ChannelOpenOk<'a> { reserved_1: longstr -> &'a [u8] }
        /// Stops or continues the flow of contents.
        20 "flow" ChannelFlow { active: bit -> bool }
        /// It is so now.
        21 "flow-ok" ChannelFlowOk { active: bit -> bool }
        /// The channel's end, and why.
        40 "close" ChannelClose<'a> {
            reply_code: short -> u16,
            reply_text: shortstr -> &'a str,
            class_id: short -> u16,
            method_id: short -> u16,
        }
        /// The other side has heard of the end.
        41 "close-ok" ChannelCloseOk
    }
    30 "access" {
        /// Of AMQP 0-8; answered so that old clients go on.
        10 "request" AccessRequest<'a> {
            realm: shortstr -> &'a str,
            exclusive: bit -> bool,
            passive: bit -> bool,
            active: bit -> bool,
            write: bit -> bool,
            read: bit -> bool,
        }
        /// Granted.
        11 "request-ok" AccessRequestOk { ticket: short -> u16 }
    }
    40 "exchange" {
        /// Makes an exchange, or checks that it is as it should be.
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
        /// It is there.
        11 "declare-ok" ExchangeDeclareOk
        /// Removes an exchange.
        20 "delete" ExchangeDelete<'a> {
            reserved_1: short -> u16,
            exchange: shortstr -> &'a str,
            if_unused: bit -> bool,
            no_wait: bit -> bool,
        }
        /// It is gone.
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
        /// It is bound.
        31 "bind-ok" ExchangeBindOk
        /// Unbinds it (RabbitMQ).
        40 "unbind" ExchangeUnbind<'a> {
            reserved_1: short -> u16,
            destination: shortstr -> &'a str,
            source: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            no_wait: bit -> bool,
            arguments: table -> Table<'a>,
        }
        /// It is unbound.
        51 "unbind-ok" ExchangeUnbindOk
    }
    50 "queue" {
        /// Makes a queue, or checks that it is as it should be.
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
        /// It is there, with so many messages ready and so many consumers.
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
        /// It is bound.
        21 "bind-ok" QueueBindOk
        /// Drops the messages that wait.
        30 "purge" QueuePurge<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            no_wait: bit -> bool,
        }
        /// So many were dropped.
        31 "purge-ok" QueuePurgeOk { message_count: long -> u32 }
        /// Removes a queue.
        40 "delete" QueueDelete<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            if_unused: bit -> bool,
            if_empty: bit -> bool,
            no_wait: bit -> bool,
        }
        /// It is gone, with so many messages.
        41 "delete-ok" QueueDeleteOk { message_count: long -> u32 }
        /// Unbinds a queue.
        50 "unbind" QueueUnbind<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            arguments: table -> Table<'a>,
        }
        /// It is unbound.
        51 "unbind-ok" QueueUnbindOk
    }
    60 "basic" {
        /// How much may be unacknowledged.
        10 "qos" BasicQos {
            prefetch_size: long -> u32,
            prefetch_count: short -> u16,
            global: bit -> bool,
        }
        /// It holds.
        11 "qos-ok" BasicQosOk
        /// Begins to consume.
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
        /// The consumer has this tag.
        21 "consume-ok" BasicConsumeOk<'a> { consumer_tag: shortstr -> &'a str }
        /// Ends a consumer; from the server: it has ended.
        30 "cancel" BasicCancel<'a> {
            consumer_tag: shortstr -> &'a str,
            no_wait: bit -> bool,
        }
        /// It has ended.
        31 "cancel-ok" BasicCancelOk<'a> { consumer_tag: shortstr -> &'a str }
        /// A message for an exchange; its content follows.
        40 "publish" BasicPublish<'a> {
            reserved_1: short -> u16,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            mandatory: bit -> bool,
            immediate: bit -> bool,
        }
        /// A message that found no queue; its content follows.
        50 "return" BasicReturn<'a> {
            reply_code: short -> u16,
            reply_text: shortstr -> &'a str,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
        }
        /// A message for a consumer; its content follows.
        60 "deliver" BasicDeliver<'a> {
            consumer_tag: shortstr -> &'a str,
            delivery_tag: longlong -> u64,
            redelivered: bit -> bool,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
        }
        /// Asks for one message.
        70 "get" BasicGet<'a> {
            reserved_1: short -> u16,
            queue: shortstr -> &'a str,
            no_ack: bit -> bool,
        }
        /// Here it is; its content follows.
        71 "get-ok" BasicGetOk<'a> {
            delivery_tag: longlong -> u64,
            redelivered: bit -> bool,
            exchange: shortstr -> &'a str,
            routing_key: shortstr -> &'a str,
            message_count: long -> u32,
        }
        /// There is none.
        72 "get-empty" BasicGetEmpty<'a> { reserved_1: shortstr -> &'a str }
        /// Acknowledges a delivery, or confirms a publish.
        80 "ack" BasicAck {
            delivery_tag: longlong -> u64,
            multiple: bit -> bool,
        }
        /// Gives a delivery up or back.
        90 "reject" BasicReject {
            delivery_tag: longlong -> u64,
            requeue: bit -> bool,
        }
        /// As `recover`, without an answer.
        100 "recover-async" BasicRecoverAsync { requeue: bit -> bool }
        /// Delivers all that is unacknowledged again.
        110 "recover" BasicRecover { requeue: bit -> bool }
        /// It will be.
        111 "recover-ok" BasicRecoverOk
        /// Gives deliveries up or back, or refuses to confirm a publish (RabbitMQ).
        120 "nack" BasicNack {
            delivery_tag: longlong -> u64,
            multiple: bit -> bool,
            requeue: bit -> bool,
        }
    }
    85 "confirm" {
        /// Asks for confirms of publishes (RabbitMQ).
        10 "select" ConfirmSelect { no_wait: bit -> bool }
        /// They come.
        11 "select-ok" ConfirmSelectOk
    }
    90 "tx" {
        /// Makes the channel transactional.
        10 "select" TxSelect
        /// It is.
        11 "select-ok" TxSelectOk
        /// Ends the transaction, and its work holds.
        20 "commit" TxCommit
        /// It holds.
        21 "commit-ok" TxCommitOk
        /// Ends the transaction without its work.
        30 "rollback" TxRollback
        /// It is undone.
        31 "rollback-ok" TxRollbackOk
    }
}
