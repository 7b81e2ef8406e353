//! Keys as people read them.

use std::fmt::Write;

/// `bytes` as text where they are printable ASCII, otherwise as `0x` and hexadecimal digits.
///
/// Long keys are cut after 64 bytes, with the length said.
pub fn printable(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(64)];
    let mut out = String::new();
    if !shown.is_empty() && shown.iter().all(|b| (0x20..0x7f).contains(b)) {
        out.push_str(&String::from_utf8_lossy(shown));
    } else {
        out.push_str("0x");
        out.push_str(&encode(shown));
    }
    if shown.len() < bytes.len() {
        let _ = write!(out, "... ({} bytes)", bytes.len());
    }
    out
}

/// `bytes` as lower-case hexadecimal digits.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        let _ = write!(out, "{b:02x}");
    }
    out
}

/// The bytes that hexadecimal `digits` stand for, or `None` if they are not pairs of such digits.
pub fn decode(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_keeps_text_and_escapes_bytes() {
        assert_eq!(printable(b"user42"), "user42");
        assert_eq!(printable(&[0, 255]), "0x00ff");
        assert_eq!(printable(b""), "0x");
        assert!(printable(&[b'a'; 100]).ends_with("... (100 bytes)"));
    }

    #[test]
    fn hex_round_trips_and_refuses_other_text() {
        assert_eq!(decode(&encode(&[1, 171, 0])), Some(vec![1, 171, 0]));
        assert_eq!(decode("abc"), None);
        assert_eq!(decode("zz"), None);
        assert_eq!(decode("+1"), None);
    }
}
