//! Keys and values as text: escapes that lose nothing, hexadecimal digits, and numbers for people.
//!
//! The escaped form of any bytes is one line without tabs: a backslash is `\\`, a tab `\t`, a line feed
//! `\n`, a carriage return `\r`; control characters, U+FEFF and bytes that are not UTF-8 are `\xNN`; everything
//! else stands for itself. Since every backslash is doubled, reading it back gives the same bytes.

use crate::exit::Failure;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use tierdb_base::hex;

/// How keys and values stand on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    /// Their bytes, whatever they are.
    #[default]
    Raw,
    /// Pairs of hexadecimal digits.
    Hex,
    /// The escaped form.
    Escaped,
}

impl Notation {
    /// The bytes that `given` stands for; `what` names it in the refusal.
    pub fn read(self, what: &str, given: &OsStr) -> Result<Vec<u8>, Failure> {
        match self {
            Notation::Raw => Ok(given.as_bytes().to_vec()),
            Notation::Hex => given.to_str().and_then(hex::decode).ok_or_else(|| {
                Failure::invalid(format!(
                    "the {what} is not hexadecimal: write two digits for each byte, as in 00ff"
                ))
            }),
            Notation::Escaped => {
                unescape(given.as_bytes()).map_err(|why| Failure::invalid(format!("the {what} {why}")))
            }
        }
    }

    /// `bytes` in this notation.
    pub fn write(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Notation::Raw => bytes.to_vec(),
            Notation::Hex => hex::encode(bytes).into_bytes(),
            Notation::Escaped => escape(bytes).into_bytes(),
        }
    }
}

/// The escaped form of `bytes`.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                // At the beginning of a file the latter is no part of the text.
                c if c.is_control() || c == '\u{feff}' => {
                    push_hex(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes())
                }
                c => out.push(c),
            }
        }
        push_hex(&mut out, chunk.invalid());
    }
    out
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(out, "\\x{byte:02x}");
    }
}

/// The bytes whose escaped form is `text`. The refusal says what is wrong, to stand behind a subject.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| *b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let (byte, len) = match rest.first() {
            Some(b'\\') => (b'\\', 1),
            Some(b't') => (b'\t', 1),
            Some(b'n') => (b'\n', 1),
            Some(b'r') => (b'\r', 1),
            Some(b'x') => (hex_byte(rest.get(1..3)).ok_or("has \\x without two hexadecimal digits")?, 3),
            Some(other) => {
                let shown = escape(&[*other]);
                return Err(format!("has the unknown escape \\{shown}: a backslash itself is \\\\"));
            }
            None => return Err("ends in a single backslash: a backslash itself is \\\\".to_owned()),
        };
        out.push(byte);
        rest = &rest[len..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

fn hex_byte(digits: Option<&[u8]>) -> Option<u8> {
    match hex::decode(std::str::from_utf8(digits?).ok()?)?.as_slice() {
        [byte] => Some(*byte),
        _ => None,
    }
}

/// `n` with a comma after every three digits.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `n` and `noun`, which takes its plural as `plural` says.
pub fn counted(n: u64, noun: &str, plural: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { noun } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_their_escaped_form_on_one_line_without_tabs() {
        let mut random = 0x1234_5678_u64;
        for round in 0..2000 {
            let bytes: Vec<u8> = (0..round % 40)
                .map(|_| {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // Mostly bytes that have a meaning of their own, so that they meet often.
                    match random >> 61 {
                        0 => b'\\',
                        1 => b'x',
                        2 => b'\t',
                        3 => b'n',
                        _ => (random >> 33) as u8,
                    }
                })
                .collect();
            let text = escape(&bytes);
            assert!(!text.contains(['\t', '\n', '\r', '\0']), "{text:?}");
            assert_eq!(unescape(text.as_bytes()).as_deref(), Ok(bytes.as_slice()), "{text:?}");
        }
    }

    #[test]
    fn text_stays_text_and_control_characters_do_not() {
        assert_eq!(escape("Zürich 東京".as_bytes()), "Zürich 東京");
        assert_eq!(escape(b"a\\b\x1b[0m\xff"), "a\\\\b\\x1b[0m\\xff");
        assert_eq!(escape("\u{85}".as_bytes()), "\\xc2\\x85");
    }

    #[test]
    fn wrong_escapes_are_refused_with_a_reason() {
        for (text, reason) in [
            (&b"a\\"[..], "single backslash"),
            (b"\\q", "unknown escape \\q"),
            (b"\\xz0", "hexadecimal"),
            (b"\\x1", "hexadecimal"),
            (b"\\x+1", "hexadecimal"),
            (b"\\\xff", "unknown escape \\\\xff"),
        ] {
            let why = unescape(text).expect_err("refused");
            assert!(why.contains(reason), "{why}");
        }
    }

    #[test]
    fn notations_read_what_they_write() {
        for notation in [Notation::Raw, Notation::Hex, Notation::Escaped] {
            let written = notation.write(b"k\x00\\\xff");
            let read = notation.read("key", OsStr::from_bytes(&written)).expect("read back");
            assert_eq!(read, b"k\x00\\\xff");
        }
        assert!(Notation::Hex.read("key", OsStr::new("0")).is_err());
        assert!(Notation::Hex.read("key", OsStr::from_bytes(b"\xff\xff")).is_err());
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(144_563), "144,563");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(counted(1, "key", "keys"), "1 key");
    }
}
