//! One entry as one line of JSON.
//!
//! ```text
//! {"key":"user42","value":"Zürich"}           both are UTF-8
//! {"key":"user42","value_hex":"00ff"}         what is not UTF-8 stands in hexadecimal digits,
//! {"key_hex":"ff01","value":"text"}           key and value each for itself
//! ```
//!
//! `scan`, `dump` and `get --json` write it, `load` reads it back to the same bytes.

use serde::Deserialize;
use std::borrow::Cow;
use std::io::{self, Write};
use tierdb_base::hex;

/// Writes `{"key":…,"value":…}` and a line feed; without a value, `{"key":…}`.
pub fn write_entry(out: &mut dyn Write, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
    out.write_all(b"{")?;
    write_field(out, "key", key)?;
    if let Some(value) = value {
        out.write_all(b",")?;
        write_field(out, "value", value)?;
    }
    out.write_all(b"}\n")
}

fn write_field(out: &mut dyn Write, name: &str, bytes: &[u8]) -> io::Result<()> {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            write!(out, "\"{name}\":")?;
            serde_json::to_writer(out, text).map_err(io::Error::from)
        }
        Err(_) => write!(out, "\"{name}_hex\":\"{}\"", hex::encode(bytes)),
    }
}

/// Adds `bytes` to a JSON object as `name`, or as `name_hex` where they are not UTF-8.
pub fn insert(object: &mut serde_json::Map<String, serde_json::Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_hex"), hex::encode(bytes).into()),
    };
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key_hex: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value_hex: Option<Cow<'a, str>>,
}

/// The key and value of a line, or why it is none.
pub fn read_entry(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let line: Line<'_> = serde_json::from_slice(line).map_err(|e| json_error(&e))?;
    Ok((either("key", line.key, line.key_hex)?, either("value", line.value, line.value_hex)?))
}

fn either(name: &str, text: Option<Cow<'_, str>>, digits: Option<Cow<'_, str>>) -> Result<Vec<u8>, String> {
    match (text, digits) {
        (Some(text), None) => Ok(text.into_owned().into_bytes()),
        (None, Some(digits)) => {
            hex::decode(&digits).ok_or_else(|| format!("{name}_hex is not pairs of hexadecimal digits"))
        }
        (None, None) => Err(format!("neither \"{name}\" nor \"{name}_hex\" is there")),
        (Some(_), Some(_)) => Err(format!("both \"{name}\" and \"{name}_hex\" are there")),
    }
}

/// What is wrong with a line of JSON. The line number in `error` would always be 1, so it is left out.
pub fn json_error(error: &serde_json::Error) -> String {
    let told = error.to_string();
    let what = told.split(" at line ").next().unwrap_or(&told);
    format!("{what} (column {})", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_entry(&mut out, key, Some(value)).expect("a vector takes it");
        out
    }

    #[test]
    fn entries_survive_their_line() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&b"plain"[..], b"", b"\"\\\n\t\x00", "Zürich \u{2028}".as_bytes(), &all] {
            for (key, value) in [(bytes, &b"v"[..]), (b"k", bytes)] {
                let line = line(key, value);
                assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
                let read = read_entry(&line).expect("read back");
                assert_eq!(read, (key.to_vec(), value.to_vec()));
            }
        }
        assert_eq!(line(b"k", b"\xff\x00"), b"{\"key\":\"k\",\"value_hex\":\"ff00\"}\n");
    }

    #[test]
    fn lines_that_are_no_entry_are_refused_with_a_reason() {
        for (line, reason) in [
            (r#"{"key":"a"}"#, "neither \"value\""),
            (r#"{"key":"a","key_hex":"61","value":""}"#, "both \"key\""),
            (r#"{"key_hex":"6","value":""}"#, "hexadecimal"),
            (r#"{"key":1,"value":""}"#, "invalid type"),
            (r#"{"key":"a","value":"","more":1}"#, "unknown field"),
            (r#"{"key":"a","key":"b","value":""}"#, "duplicate field"),
            (r#"["a","b"]"#, ""),
            (r#"{"key":"a","value":"b"} x"#, "trailing"),
            ("", "EOF"),
        ] {
            let why = read_entry(line.as_bytes()).expect_err(line);
            assert!(why.contains(reason) && !why.contains("line 1"), "{line}: {why}");
        }
        assert!(read_entry(b"{\"key\":\"\xff\",\"value\":\"\"}").is_err());
    }
}
