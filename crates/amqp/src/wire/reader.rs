//! Parsing of primitive types. Each length is checked against the bytes that follow it.

use super::table::Table;

/// The error of bytes that are not well formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Malformed {
    /// The fault.
    pub what: &'static str,
}

/// The result of parsing.
pub(super) type Result<T> = std::result::Result<T, Malformed>;

pub(super) const fn malformed<T>(what: &'static str) -> Result<T> {
    Err(Malformed { what })
}

/// Parses the arguments of one method, a table, or the like. Cheap to create; owns nothing.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// The octet from which bits are being taken; `bits_taken` of them are used up.
    bits: u8,
    bits_taken: u8,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            bits: 0,
            bits_taken: 8,
        }
    }

    /// The bytes that are not parsed yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        self.bits_taken = 8;
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return malformed("it ends too early");
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.bits_taken = 8;
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return malformed("it ends too early");
        };
        self.rest = rest;
        Ok(*taken)
    }

    /// An octet.
    ///
    /// # Errors
    /// No byte is left.
    pub fn octet(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A 16-bit number.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn short(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// A 32-bit number.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn long(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// A 64-bit number.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn longlong(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A bit; consecutive ones share an octet.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn bit(&mut self) -> Result<bool> {
        if self.bits_taken == 8 {
            self.bits = self.octet()?;
            self.bits_taken = 0;
        }
        let bit = self.bits >> self.bits_taken & 1;
        self.bits_taken += 1;
        Ok(bit == 1)
    }

    /// A short string.
    ///
    /// # Errors
    /// There are too few bytes, or they are not UTF-8.
    pub fn shortstr(&mut self) -> Result<&'a str> {
        let length = self.octet()?;
        let bytes = self.take(length.into())?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => malformed("a short string is not UTF-8"),
        }
    }

    /// A long string: any bytes.
    ///
    /// # Errors
    /// There are too few bytes.
    pub fn longstr(&mut self) -> Result<&'a [u8]> {
        let length = self.long()?;
        self.take(length as usize)
    }

    /// A field table, validated as a whole.
    ///
    /// # Errors
    /// There are too few bytes, or they are not a well-formed table.
    pub fn table(&mut self) -> Result<Table<'a>> {
        Table::check(self.longstr()?)
    }
}
