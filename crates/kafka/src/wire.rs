//! Decoding of requests: Kafka's primitive types, big endian. Every length is checked against the
//! bytes that remain.
//!
//! ```text
//!                  before flexible versions      flexible versions (KIP-482)
//! string           i16 length, UTF-8             unsigned varint length + 1, UTF-8
//! nullable string  length -1: null               0: null
//! bytes            i32 length                    unsigned varint length + 1
//! array            i32 count (-1: null)          unsigned varint count + 1 (0: null)
//! tagged fields    none                          unsigned varint count { tag, size, bytes }
//! ```
//!
//! Source: <https://kafka.apache.org/protocol#protocol_types>.

use uuid::Uuid;

/// Maximum number of array elements in one request, over all its arrays. An element takes more
/// memory than bytes on the wire; 200,000 are ten times what a request about 10,000 partitions
/// needs.
pub const ELEMENTS_MAX: u32 = 200_000;

/// A request does not follow the schema of its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed request: {what}")]
pub struct Malformed {
    /// The fault.
    pub what: &'static str,
}

/// Decodes the body of one request. Cheap to create; borrows the bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    flexible: bool,
    elements_left: u32,
}

type Result<T> = std::result::Result<T, Malformed>;

const fn malformed<T>(what: &'static str) -> Result<T> {
    Err(Malformed { what })
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`, in the encoding of flexible versions or not.
    pub fn new(bytes: &'a [u8], flexible: bool) -> Self {
        Self {
            rest: bytes,
            flexible,
            elements_left: ELEMENTS_MAX,
        }
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return malformed("too short");
        };
        self.rest = rest;
        Ok(*head)
    }

    /// Takes `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            return malformed("a length goes beyond the request");
        };
        self.rest = rest;
        Ok(head)
    }

    /// A signed byte.
    pub fn i8(&mut self) -> Result<i8> {
        self.chunk().map(i8::from_be_bytes)
    }

    /// A boolean: anything but 0 is true.
    pub fn bool(&mut self) -> Result<bool> {
        self.i8().map(|byte| byte != 0)
    }

    /// A 16-bit integer.
    pub fn i16(&mut self) -> Result<i16> {
        self.chunk().map(i16::from_be_bytes)
    }

    /// A 32-bit integer.
    pub fn i32(&mut self) -> Result<i32> {
        self.chunk().map(i32::from_be_bytes)
    }

    /// A 64-bit integer.
    pub fn i64(&mut self) -> Result<i64> {
        self.chunk().map(i64::from_be_bytes)
    }

    /// A UUID; all zeros stand for none.
    pub fn uuid(&mut self) -> Result<Uuid> {
        self.chunk().map(Uuid::from_bytes)
    }

    /// An unsigned variable-length integer of at most 32 bits.
    pub fn uvarint(&mut self) -> Result<u32> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.chunk::<1>()?;
            if shift == 28 && byte > 0x0f {
                break;
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        malformed("a variable-length integer is too long")
    }

    /// The length of a string (`i16` before flexible versions), `None`: null.
    fn string_len(&mut self) -> Result<Option<usize>> {
        if self.flexible {
            return Ok(self.uvarint()?.checked_sub(1).map(|len| len as usize));
        }
        match self.i16()? {
            -1 => Ok(None),
            len => match usize::try_from(len) {
                Ok(len) => Ok(Some(len)),
                Err(_) => malformed("a negative length"),
            },
        }
    }

    /// The length of bytes or an array (`i32` before flexible versions), `None`: null.
    #[inline]
    fn long_len(&mut self) -> Result<Option<usize>> {
        if self.flexible {
            return Ok(self.uvarint()?.checked_sub(1).map(|len| len as usize));
        }
        match self.i32()? {
            -1 => Ok(None),
            len => match usize::try_from(len) {
                Ok(len) => Ok(Some(len)),
                Err(_) => malformed("a negative length"),
            },
        }
    }

    /// A string that may be null.
    pub fn nullable_string(&mut self) -> Result<Option<&'a str>> {
        let Some(len) = self.string_len()? else {
            return Ok(None);
        };
        match std::str::from_utf8(self.take(len)?) {
            Ok(text) => Ok(Some(text)),
            Err(_) => malformed("a string is not UTF-8"),
        }
    }

    /// A string.
    pub fn string(&mut self) -> Result<&'a str> {
        match self.nullable_string()? {
            Some(text) => Ok(text),
            None => malformed("a string is null"),
        }
    }

    /// Bytes that may be null.
    #[inline]
    pub fn nullable_bytes(&mut self) -> Result<Option<&'a [u8]>> {
        match self.long_len()? {
            Some(len) => self.take(len).map(Some),
            None => Ok(None),
        }
    }

    /// Bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        match self.nullable_bytes()? {
            Some(bytes) => Ok(bytes),
            None => malformed("bytes are null"),
        }
    }

    /// An array that may be null. Elements are read one by one, so that memory grows with the bytes
    /// that have arrived, never with the announced count.
    pub fn nullable_array<T>(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        match self.array_count()? {
            Some(count) => self.elements(count, element).map(Some),
            None => Ok(None),
        }
    }

    /// An array.
    pub fn array<T>(&mut self, element: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        match self.nullable_array(element)? {
            Some(elements) => Ok(elements),
            None => malformed("an array is null"),
        }
    }

    /// The count of an array whose elements the caller reads; `None`: null. A count above the
    /// remaining bytes is refused, because each element takes at least a byte; so is one beyond
    /// [`ELEMENTS_MAX`].
    #[inline]
    pub fn array_count(&mut self) -> Result<Option<usize>> {
        let Some(count) = self.long_len()? else {
            return Ok(None);
        };
        if count > self.rest.len() {
            return malformed("an array goes beyond the request");
        }
        match u32::try_from(count)
            .ok()
            .and_then(|n| self.elements_left.checked_sub(n))
        {
            Some(left) => self.elements_left = left,
            None => return malformed("too many array elements"),
        }
        Ok(Some(count))
    }

    fn elements<T>(
        &mut self,
        count: usize,
        mut element: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut elements = Vec::new();
        for _ in 0..count {
            elements.push(element(self)?);
        }
        Ok(elements)
    }

    /// Passes each tagged field to `field`, which must ignore unknown tags. There are none before
    /// flexible versions.
    pub fn tagged(&mut self, mut field: impl FnMut(u32, Reader<'a>) -> Result<()>) -> Result<()> {
        if !self.flexible {
            return Ok(());
        }
        for _ in 0..self.uvarint()? {
            let tag = self.uvarint()?;
            let size = self.uvarint()? as usize;
            let bytes = self.take(size)?;
            let inner = Reader {
                rest: bytes,
                flexible: true,
                elements_left: self.elements_left,
            };
            field(tag, inner)?;
        }
        Ok(())
    }

    /// Skips tagged fields.
    pub fn skip_tagged(&mut self) -> Result<()> {
        self.tagged(|_, _| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_count_larger_than_the_request_is_refused_before_anything_is_allocated() {
        let mut classic = Reader::new(&[0x7f, 0xff, 0xff, 0xff, 0], false);
        assert!(classic.array(Reader::i8).is_err());
        let mut flexible = Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0], true);
        assert!(flexible.array(Reader::i8).is_err());
    }

    #[test]
    fn elements_are_counted_over_all_arrays() {
        let count = ELEMENTS_MAX - 1;
        let mut bytes = count.to_be_bytes().to_vec();
        bytes.resize(4 + count as usize, 0);
        bytes.extend_from_slice(&[0, 0, 0, 2, 0, 0]);
        let mut reader = Reader::new(&bytes, false);
        assert_eq!(reader.array(Reader::i8).unwrap().len(), count as usize);
        assert!(reader.array(Reader::i8).is_err());
    }

    #[test]
    fn both_encodings_are_read() {
        let mut classic = Reader::new(&[0, 2, b'h', b'i', 0xff, 0xff, 0, 0, 0, 1, 7], false);
        assert_eq!(classic.string().unwrap(), "hi");
        assert_eq!(classic.nullable_string().unwrap(), None);
        assert_eq!(classic.bytes().unwrap(), [7]);
        let mut flexible = Reader::new(&[3, b'h', b'i', 0, 2, 7, 1, 9, 1, 5], true);
        assert_eq!(flexible.string().unwrap(), "hi");
        assert_eq!(flexible.nullable_string().unwrap(), None);
        assert_eq!(flexible.bytes().unwrap(), [7]);
        let mut seen = Vec::new();
        flexible
            .tagged(|tag, mut value| {
                seen.push((tag, value.i8()?));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [(9, 5)]);
        assert!(flexible.is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300),
                                       flexible in any::<bool>()) {
            let mut reader = Reader::new(&bytes, flexible);
            let read = reader.nullable_array(|reader| {
                reader.nullable_string()?;
                reader.nullable_bytes()?;
                reader.skip_tagged()?;
                reader.array(Reader::i32)
            });
            prop_assert!(reader.rest().len() <= bytes.len());
            if let Ok(Some(elements)) = read {
                prop_assert!(elements.len() <= bytes.len());
            }
        }
    }
}
