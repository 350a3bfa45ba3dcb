//! Field tables: names with typed values, nested.
//!
//! A [`Table`] borrows bytes that were validated once, so that iterating over it cannot fail. The
//! types are RabbitMQ's, which differ from the specification's (`l` and `L` are both signed, `s` is
//! a short integer).

use super::reader::{Reader, Result, malformed};
use super::writer::Writer;

/// Maximum nesting depth of tables and arrays: a hostile client must not overflow the stack.
pub const DEPTH_MAX: u32 = 64;

/// A well-formed field table.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Table<'a> {
    bytes: &'a [u8],
}

/// A well-formed field array.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Array<'a> {
    bytes: &'a [u8],
}

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`, and `L` when read
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: the number of digits after the decimal point, and all digits.
    Decimal(u8, u32),
    /// `S`: any bytes, usually text.
    String(&'a [u8]),
    /// `x`
    Bytes(&'a [u8]),
    /// `A`
    Array(Array<'a>),
    /// `T`: seconds since 1970.
    Timestamp(u64),
    /// `F`
    Table(Table<'a>),
    /// `V`
    Void,
}

impl<'a> Table<'a> {
    /// The table in `bytes`, which are without the length prefix.
    ///
    /// # Errors
    /// The bytes are not a table, or are nested too deep.
    pub fn check(bytes: &'a [u8]) -> Result<Self> {
        check_table(bytes, DEPTH_MAX)?;
        Ok(Self { bytes })
    }

    /// The encoded fields, without the length prefix.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        // Cannot fail: the bytes were validated by `check`.
        std::iter::from_fn(move || {
            let name = reader.shortstr().ok()?;
            Some((name, read_value(&mut reader).ok()?))
        })
    }

    /// The value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        self.fields()
            .find_map(|(found, value)| (found == name).then_some(value))
    }
}

impl<'a> Array<'a> {
    /// The array in `bytes`, which are without the length prefix.
    ///
    /// # Errors
    /// The bytes are not an array, or are nested too deep.
    pub fn check(bytes: &'a [u8]) -> Result<Self> {
        check_array(bytes, DEPTH_MAX)?;
        Ok(Self { bytes })
    }

    /// The encoded values, without the length prefix.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The values, in order.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || read_value(&mut reader).ok())
    }
}

impl<'a> Value<'a> {
    /// The value if it is an integer, whatever its type.
    pub fn as_integer(&self) -> Option<i64> {
        match *self {
            Value::I8(value) => Some(value.into()),
            Value::U8(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I64(value) => Some(value),
            _ => None,
        }
    }

    /// The value if it is a long string in UTF-8.
    pub fn as_text(&self) -> Option<&'a str> {
        match self {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Appends the type octet and the value.
    pub fn write(&self, out: &mut Writer<'_>) {
        let tag = |out: &mut Writer<'_>, tag: u8| out.octet(tag);
        match *self {
            Value::Bool(value) => {
                tag(out, b't');
                out.octet(value.into());
            }
            Value::I8(value) => {
                tag(out, b'b');
                out.bytes(&value.to_be_bytes());
            }
            Value::U8(value) => {
                tag(out, b'B');
                out.octet(value);
            }
            Value::I16(value) => {
                tag(out, b's');
                out.bytes(&value.to_be_bytes());
            }
            Value::U16(value) => {
                tag(out, b'u');
                out.short(value);
            }
            Value::I32(value) => {
                tag(out, b'I');
                out.bytes(&value.to_be_bytes());
            }
            Value::U32(value) => {
                tag(out, b'i');
                out.long(value);
            }
            Value::I64(value) => {
                tag(out, b'l');
                out.bytes(&value.to_be_bytes());
            }
            Value::F32(value) => {
                tag(out, b'f');
                out.bytes(&value.to_be_bytes());
            }
            Value::F64(value) => {
                tag(out, b'd');
                out.bytes(&value.to_be_bytes());
            }
            Value::Decimal(scale, digits) => {
                tag(out, b'D');
                out.octet(scale);
                out.long(digits);
            }
            Value::String(bytes) => {
                tag(out, b'S');
                out.longstr(bytes);
            }
            Value::Bytes(bytes) => {
                tag(out, b'x');
                out.longstr(bytes);
            }
            Value::Array(array) => {
                tag(out, b'A');
                out.longstr(array.bytes);
            }
            Value::Timestamp(seconds) => {
                tag(out, b'T');
                out.longlong(seconds);
            }
            Value::Table(table) => {
                tag(out, b'F');
                out.table(table);
            }
            Value::Void => tag(out, b'V'),
        }
    }
}

/// Encodes a table with these fields, without the length prefix.
pub fn table_bytes(fields: &[(&str, Value<'_>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Writer::new(&mut bytes);
    for (name, value) in fields {
        out.shortstr(name);
        value.write(&mut out);
    }
    bytes
}

/// Encodes an array with these values, without the length prefix.
pub fn array_bytes(values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Writer::new(&mut bytes);
    for value in values {
        value.write(&mut out);
    }
    bytes
}

/// Parses one value. Nested tables and arrays are not checked here: they are known to be well
/// formed, or the caller checks them.
fn read_value<'a>(reader: &mut Reader<'a>) -> Result<Value<'a>> {
    Ok(match reader.octet()? {
        b't' => Value::Bool(reader.octet()? != 0),
        b'b' => Value::I8(reader.octet()?.cast_signed()),
        b'B' => Value::U8(reader.octet()?),
        b's' => Value::I16(reader.short()?.cast_signed()),
        b'u' => Value::U16(reader.short()?),
        b'I' => Value::I32(reader.long()?.cast_signed()),
        b'i' => Value::U32(reader.long()?),
        b'l' | b'L' => Value::I64(reader.longlong()?.cast_signed()),
        b'f' => Value::F32(f32::from_bits(reader.long()?)),
        b'd' => Value::F64(f64::from_bits(reader.longlong()?)),
        b'D' => Value::Decimal(reader.octet()?, reader.long()?),
        b'S' => Value::String(reader.longstr()?),
        b'x' => Value::Bytes(reader.longstr()?),
        b'A' => {
            let bytes = reader.longstr()?;
            Value::Array(Array { bytes })
        }
        b'T' => Value::Timestamp(reader.longlong()?),
        b'F' => {
            let bytes = reader.longstr()?;
            Value::Table(Table { bytes })
        }
        b'V' => Value::Void,
        _ => return malformed("a field table has a value of an unknown type"),
    })
}

fn check_table(bytes: &[u8], depth_left: u32) -> Result<()> {
    let mut reader = Reader::new(bytes);
    while !reader.rest().is_empty() {
        reader.shortstr()?;
        check_value(&mut reader, depth_left)?;
    }
    Ok(())
}

fn check_value(reader: &mut Reader<'_>, depth_left: u32) -> Result<()> {
    let (nested, is_table) = match read_value(reader)? {
        Value::Table(table) => (table.bytes, true),
        Value::Array(array) => (array.bytes, false),
        _ => return Ok(()),
    };
    let Some(depth_left) = depth_left.checked_sub(1) else {
        return malformed("a field table is nested too deep");
    };
    if is_table {
        check_table(nested, depth_left)
    } else {
        check_array(nested, depth_left)
    }
}

fn check_array(bytes: &[u8], depth_left: u32) -> Result<()> {
    let mut values = Reader::new(bytes);
    while !values.rest().is_empty() {
        check_value(&mut values, depth_left)?;
    }
    Ok(())
}
