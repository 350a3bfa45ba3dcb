//! Encoding of answers: the primitive types of [`crate::wire`], in both encodings. Used for the
//! answers that the library `kafka-protocol` does not encode: Produce, Fetch, ApiVersions and
//! DescribeLogDirs.

use uuid::Uuid;

/// Appends one answer's body to a connection's output.
pub(crate) struct Writer<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    flexible: bool,
}

impl<'a> Writer<'a> {
    /// A writer at the end of `out`, in the encoding of flexible versions or not.
    pub(crate) fn new(out: &'a mut Vec<u8>, flexible: bool) -> Self {
        Self { out, flexible }
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.out.push(u8::from(value));
    }

    pub(crate) fn i16(&mut self, value: i16) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn uuid(&mut self, value: Uuid) {
        self.out.extend_from_slice(value.as_bytes());
    }

    fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    /// A string. Truncated if it is too long for an i16 length, which only the broker's own texts
    /// can be.
    pub(crate) fn string(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(i16::MAX as usize)];
        if self.flexible {
            self.uvarint(text.len() as u32 + 1)
        } else {
            self.i16(text.len() as i16)
        }
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn nullable_string(&mut self, text: Option<&str>) {
        match (text, self.flexible) {
            (Some(text), _) => self.string(text),
            (None, true) => self.uvarint(0),
            (None, false) => self.i16(-1),
        }
    }

    /// The length of bytes that follow, or the count of an array.
    #[inline]
    pub(crate) fn len(&mut self, len: usize) {
        if self.flexible {
            self.uvarint(u32::try_from(len + 1).unwrap_or(u32::MAX))
        } else {
            self.i32(i32::try_from(len).unwrap_or(i32::MAX))
        }
    }

    /// A null array.
    pub(crate) fn null_array(&mut self) {
        if self.flexible {
            self.uvarint(0)
        } else {
            self.i32(-1)
        }
    }

    /// An empty set of tagged fields, which ends every structure in flexible versions.
    pub(crate) fn no_tags(&mut self) {
        if self.flexible {
            self.out.push(0);
        }
    }
}
