//! The wire format: frames, methods, content headers and field tables, parsed without copying.
//!
//! ```text
//! frame      octet type, short channel, long size, payload, octet 206
//! method     short class, short method, arguments; consecutive bits share octets, lowest first
//! short str  octet length, UTF-8       long str   long length, bytes
//! table      long length, { short str name, octet type, value }*
//! ```
//!
//! Source: AMQP 0-9-1 specification, section 4.2; RabbitMQ's errata
//! <https://www.rabbitmq.com/amqp-0-9-1-errata>.

mod frame;
mod methods;
mod properties;
mod reader;
mod table;
mod writer;

pub use frame::{
    FRAME_END, FRAME_HEADER_BYTES, FRAME_MIN_BYTES, FRAME_OVERHEAD_BYTES, Frame, FrameError,
    FrameType, PROTOCOL_HEADER, peek_frame,
};
pub use methods::{Method, MethodId, method};
pub use properties::{ContentHeader, Properties};
pub use reader::{Malformed, Reader};
pub use table::{Array, DEPTH_MAX, Table, Value, array_bytes, table_bytes};
pub use writer::Writer;
