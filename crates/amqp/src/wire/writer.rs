//! Encoding of primitive types.

use super::table::Table;

/// Appends to a buffer. Consecutive bits share octets, lowest first.
#[derive(Debug)]
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    /// Number of bits in use in the last octet; 8 if it is full or no octet of bits.
    bits: u8,
}

impl<'o> Writer<'o> {
    /// A writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out, bits: 8 }
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bits = 8;
        self.out.extend_from_slice(bytes);
    }

    /// An octet.
    pub fn octet(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    /// A 16-bit number.
    pub fn short(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    /// A 32-bit number.
    pub fn long(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    /// A 64-bit number.
    pub fn longlong(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    /// A bit.
    pub fn bit(&mut self, value: bool) {
        if self.bits == 8 {
            self.out.push(0);
            self.bits = 0;
        }
        if let Some(last) = self.out.last_mut() {
            *last |= u8::from(value) << self.bits;
        }
        self.bits += 1;
    }

    /// A short string; a longer one is cut after at most 255 bytes, between characters.
    pub fn shortstr(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(255)];
        self.octet(text.len() as u8);
        self.bytes(text.as_bytes());
    }

    /// A long string. Its length fits: no caller has 4 GiB.
    pub fn longstr(&mut self, bytes: &[u8]) {
        self.long(bytes.len() as u32);
        self.bytes(bytes);
    }

    /// A field table.
    pub fn table(&mut self, table: Table<'_>) {
        self.longstr(table.bytes());
    }
}
