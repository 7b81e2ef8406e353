//! Values that can be told apart and checked, whatever their length.

use super::{Checked, ensure, fail};
use std::fmt::Write;

/// `len` bytes that `tag` and `len` determine. Of at least 8 bytes, the first 8 are the tag.
pub(super) fn value(tag: u64, len: usize) -> Vec<u8> {
    let mut word = tag ^ (len as u64) << 40;
    let mut bytes = Vec::with_capacity(len + 8);
    bytes.extend_from_slice(&tag.to_le_bytes());
    while bytes.len() < len {
        // A step of Marsaglia's xorshift64: never the same word twice in a value.
        word = if word == 0 { 0x9e37_79b9_7f4a_7c15 } else { word };
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The tag of a value that [`value`] made; an error if any byte is not as it was made.
pub(super) fn tag_of(bytes: &[u8]) -> Checked<u64> {
    let Some(first) = bytes.first_chunk::<8>() else {
        fail!("a value of {} bytes was never written", bytes.len())
    };
    let tag = u64::from_le_bytes(*first);
    let wrong = bytes.iter().zip(value(tag, bytes.len())).position(|(found, made)| *found != made);
    ensure!(
        wrong.is_none(),
        "{} is torn: byte {} belongs to another value",
        show(Some(bytes)),
        wrong.unwrap_or_default()
    );
    Ok(tag)
}

/// A value for a failure message: its length and its first bytes.
pub(super) fn show(value: Option<&[u8]>) -> String {
    let Some(value) = value else { return "nothing".into() };
    let mut text = format!("{} bytes", value.len());
    for (i, byte) in value.iter().take(8).enumerate() {
        let _ = write!(text, "{}{byte:02x}", if i == 0 { " " } else { "" });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_carry_their_tag_and_notice_other_bytes() {
        for len in [8, 9, 4096, 100_000] {
            let mut bytes = value(7, len);
            assert_eq!(bytes.len(), len);
            assert_eq!(tag_of(&bytes).expect("whole"), 7);
            bytes[len - 1] ^= 1;
            assert!(tag_of(&bytes).is_err() || len == 8);
        }
        assert!(value(1, 0).is_empty());
        assert_ne!(value(1, 3), value(2, 3));
    }
}
