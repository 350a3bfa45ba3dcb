//! Zigzag variable-length integers, as in Kafka's records.
//!
//! Each byte has seven bits, the lowest first, and its top bit is set if another byte follows.
//! Signed values are folded (`0, -1, 1, -2, …` becomes `0, 1, 2, 3, …`), so that small negative
//! numbers are short.

/// Longest encoding of a 64-bit value, in bytes.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// Folds a signed value into an unsigned one.
#[inline]
pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Undoes [`zigzag`].
#[inline]
const fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Encoded length of a folded value in bytes, 1 to 10.
#[inline]
pub(crate) const fn encoded_len(folded: u64) -> usize {
    // One byte per started group of seven significant bits.
    ((70 - (folded | 1).leading_zeros()) / 7) as usize
}

/// Writes a folded value at `at` and returns the position after it.
///
/// Precondition: `buffer` has [`VARINT_BYTES_MAX`] bytes after `at`.
#[inline]
pub(crate) fn put(buffer: &mut [u8], mut at: usize, mut folded: u64) -> usize {
    while folded >= 0x80 {
        buffer[at] = folded as u8 | 0x80;
        folded >>= 7;
        at += 1;
    }
    buffer[at] = folded as u8;
    at + 1
}

/// Reads one signed value of at most 64 bits; `None` if it is truncated or too long. The fast path
/// is for one or two bytes, which nearly all numbers in records take.
#[inline(always)]
pub(crate) fn get_i64(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(unzigzag(u64::from(first)));
    }
    let second = *bytes.get(*at + 1)?;
    if second < 0x80 {
        *at += 2;
        return Some(unzigzag(u64::from(first & 0x7f) | u64::from(second) << 7));
    }
    get_long_i64(bytes, at)
}

/// The slow path of [`get_i64`]: any number of bytes.
fn get_long_i64(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let mut folded = 0;
    for index in 0..VARINT_BYTES_MAX {
        let byte = *bytes.get(*at + index)?;
        if index == VARINT_BYTES_MAX - 1 && byte > 1 {
            return None;
        }
        folded |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *at += index + 1;
            return Some(unzigzag(folded));
        }
    }
    None
}

/// Reads one signed value that fits in 32 bits; `None` otherwise.
#[inline(always)]
pub(crate) fn get_i32(bytes: &[u8], at: &mut usize) -> Option<i32> {
    i32::try_from(get_i64(bytes, at)?).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn check(value: i64) {
        let mut buffer = [0u8; 16];
        let end = put(&mut buffer, 0, zigzag(value));
        assert_eq!(end, encoded_len(zigzag(value)), "{value}");
        let mut at = 0;
        assert_eq!(get_i64(&buffer[..end], &mut at), Some(value));
        assert_eq!(at, end);
        let mut at = 0;
        assert_eq!(get_i64(&buffer[..end - 1], &mut at), None);
    }

    #[test]
    fn values_survive_the_round_trip() {
        for value in [0, 1, -1, 63, 64, -64, -65, 8191, 8192, i64::MAX, i64::MIN] {
            check(value);
        }
        for bit in 0..63 {
            check(1 << bit);
            check(-(1 << bit));
        }
    }

    #[test]
    fn endless_and_oversized_encodings_are_refused() {
        assert_eq!(get_i64(&[0xff; 32], &mut 0), None);
        let mut buffer = [0u8; 16];
        let end = put(&mut buffer, 0, zigzag(i64::from(i32::MAX) + 1));
        assert_eq!(get_i32(&buffer[..end], &mut 0), None);
    }
}
