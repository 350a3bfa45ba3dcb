//! NSQ message ids: 16 lower-case hexadecimal digits of `partition << 48 | offset`.
//!
//! ```text
//! 0         4                        16
//! | partition | offset in the partition |   ASCII digits, most significant first
//! ```
//!
//! The layout must not change: clients write ids into their own logs, and a message keeps its id
//! for its whole life.

use cloverleaf_broker::MessageId;

/// Bytes of an id on the wire.
pub const ID_BYTES: usize = 16;

/// Bits of the offset within an id.
const OFFSET_BITS: u32 = 48;

/// Marks a byte that is no hexadecimal digit.
const NO_DIGIT: u8 = 0xff;

static DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

/// The id on the wire.
#[inline]
pub fn encode_id(partition: u32, offset: u64) -> [u8; ID_BYTES] {
    debug_assert!(offset < 1 << OFFSET_BITS && partition < 1 << 16);
    let value = u64::from(partition) << OFFSET_BITS | offset;
    let mut id = [0; ID_BYTES];
    id[..8].copy_from_slice(&hex8((value >> 32) as u32));
    id[8..].copy_from_slice(&hex8(value as u32));
    id
}

/// The message that an id names; `None` if it is not 16 lower-case hexadecimal digits. Whether a
/// message has this id is not checked. Always inlined: parsing a FIN is little more than this.
#[inline(always)]
pub fn decode_id(id: &[u8; ID_BYTES]) -> Option<MessageId> {
    let mut value = 0_u64;
    let mut wrong = 0_u8;
    for byte in id {
        let digit = DIGITS[usize::from(*byte)];
        wrong |= digit;
        value = value << 4 | u64::from(digit & 0xf);
    }
    if wrong & 0xf0 != 0 {
        return None;
    }
    Some(MessageId {
        partition: (value >> OFFSET_BITS) as u32,
        offset: value & ((1 << OFFSET_BITS) - 1),
    })
}

/// Eight digits at once, without a branch or a table: spread the nibbles over the bytes of a
/// word, then add the distance to `'0'` or to `'a' - 10`.
#[inline]
fn hex8(value: u32) -> [u8; 8] {
    let mut word = u64::from(value);
    word = (word | word << 16) & 0x0000_ffff_0000_ffff;
    word = (word | word << 8) & 0x00ff_00ff_00ff_00ff;
    word = (word | word << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (word + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (word + 0x3030_3030_3030_3030 + letters * 0x27).to_be_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_is_sixteen_lower_case_digits() {
        assert_eq!(&encode_id(0, 0), b"0000000000000000");
        assert_eq!(&encode_id(1, 0xabc_def0), b"000100000abcdef0");
        assert_eq!(decode_id(b"00010000zabcdef0"), None);
        assert_eq!(decode_id(b"00010000ABCDEF00"), None);
    }

    proptest! {
        #[test]
        fn ids_come_back(partition in 0_u32..1 << 16, offset in 0_u64..1 << 48) {
            let id = encode_id(partition, offset);
            prop_assert_eq!(
                std::str::from_utf8(&id).unwrap(),
                format!("{:016x}", u64::from(partition) << 48 | offset)
            );
            let message = decode_id(&id).expect("own id");
            prop_assert_eq!((message.partition, message.offset), (partition, offset));
        }
    }
}
