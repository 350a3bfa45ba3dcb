//! Content headers: a body's size, and the message's properties.

use super::reader::{Reader, Result, malformed};
use super::table::Table;
use super::writer::Writer;

/// The class `basic`, the only one whose methods have contents.
const BASIC: u16 = 60;

/// A content header frame's payload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContentHeader<'a> {
    /// Size of the body that follows.
    pub body_bytes: u64,
    /// The flags and properties as they were sent; well formed.
    pub raw: &'a [u8],
}

impl<'a> ContentHeader<'a> {
    /// Parses a content header and its properties.
    ///
    /// # Errors
    /// The header is malformed, or of a class without contents.
    pub fn read(payload: &'a [u8]) -> Result<(Self, Properties<'a>)> {
        let mut reader = Reader::new(payload);
        let class = reader.short()?;
        // The weight is unused and must be zero.
        let weight = reader.short()?;
        if class != BASIC || weight != 0 {
            return malformed("a content header is of the wrong class or has a weight");
        }
        let body_bytes = reader.longlong()?;
        let raw = reader.rest();
        let properties = Properties::read(raw)?;
        Ok((Self { body_bytes, raw }, properties))
    }

    /// Appends the frame's payload.
    pub fn write(&self, out: &mut Writer<'_>) {
        out.short(BASIC);
        out.short(0);
        out.longlong(self.body_bytes);
        out.bytes(self.raw);
    }
}

macro_rules! properties {
    ($($(#[$doc:meta])* $bit:literal $name:ident: $type:ident -> $rust:ty),* $(,)?) => {
        /// The properties of a message (class `basic`); each may be absent.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct Properties<'a> {
            $($(#[$doc])* pub $name: Option<$rust>,)*
        }

        impl<'a> Properties<'a> {
            /// Parses flags and values; nothing may follow them.
            ///
            /// # Errors
            /// The bytes are malformed.
            pub fn read(raw: &'a [u8]) -> Result<Self> {
                let mut reader = Reader::new(raw);
                let flags = reader.short()?;
                // Bit 0 says that more flags follow. The class `basic` has 14 properties, so bit 1
                // is unused, too.
                if flags & 0b11 != 0 {
                    return malformed("a content header has flags of no property");
                }
                let properties = Self {
                    $($name: match flags >> $bit & 1 {
                        0 => None,
                        _ => Some(reader.$type()?),
                    },)*
                };
                match reader.rest() {
                    [] => Ok(properties),
                    _ => malformed("a content header is longer than its properties"),
                }
            }

            /// Appends flags and values.
            pub fn write(&self, out: &mut Writer<'_>) {
                let mut flags = 0u16;
                $(flags |= u16::from(self.$name.is_some()) << $bit;)*
                out.short(flags);
                $(if let Some(value) = self.$name {
                    out.$type(value);
                })*
            }
        }
    };
}

properties! {
    /// MIME type.
    15 content_type: shortstr -> &'a str,
    /// MIME encoding.
    14 content_encoding: shortstr -> &'a str,
    /// The user's headers.
    13 headers: table -> Table<'a>,
    /// 2: persistent; else transient.
    12 delivery_mode: octet -> u8,
    /// Message priority, 0 to 255.
    11 priority: octet -> u8,
    /// Identifies a request, in its reply.
    10 correlation_id: shortstr -> &'a str,
    /// The routing key for a reply.
    9 reply_to: shortstr -> &'a str,
    /// Time to live in milliseconds, in decimal digits.
    8 expiration: shortstr -> &'a str,
    /// The application's identifier of the message.
    7 message_id: shortstr -> &'a str,
    /// Seconds since 1970, set by the application.
    6 timestamp: longlong -> u64,
    /// The application's type of message (`type`).
    5 kind: shortstr -> &'a str,
    /// The publishing user; the broker checks it.
    4 user_id: shortstr -> &'a str,
    /// The publishing application.
    3 app_id: shortstr -> &'a str,
    /// Deprecated.
    2 cluster_id: shortstr -> &'a str,
}
