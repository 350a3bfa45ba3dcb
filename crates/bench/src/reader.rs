//! Reading the fields that a broker has sent, one after the other: numbers are big-endian.

/// The bytes that are left to be read. Each method gives `None` where they end too early.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl<'b> Reader<'b> {
    /// So many bytes.
    #[inline]
    pub(crate) fn take(&mut self, size: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// A number of 7 bits in each byte, of which all but the last have the highest bit set; `None`
    /// if it does not fit.
    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0u64, 0);
        loop {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            let shifted = part.checked_shl(shift)?;
            if shifted >> shift != part {
                return None;
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                return Some(number);
            }
            shift += 7;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_beyond_64_bits_is_refused() {
        let mut bytes = [0xff; 10];
        bytes[9] = 0x01;
        assert_eq!(Reader(&bytes).varint(), Some(u64::MAX));
        bytes[9] = 0x02;
        assert_eq!(Reader(&bytes).varint(), None);
    }
}
