//! Lines of JSON.

use super::lines::{Line, Lines, without_mark};
use super::{Found, Source};
use crate::args::Load;
use crate::exit::Failure;
use crate::jsonl;
use serde_json::Value;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

/// Each line is an object. Without key fields it is a line of `dump`; with them, the key is made of these
/// fields and the value is the line itself.
pub struct JsonLines {
    lines: Lines,
    fields: Vec<String>,
    separator: Vec<u8>,
}

impl JsonLines {
    /// Entries of `from`, with keys as `load` asks for them.
    pub fn new(from: Box<dyn Read>, name: &str, load: &Load) -> Self {
        let separator = load.key_separator.as_bytes().to_vec();
        JsonLines { lines: Lines::new(from, name), fields: load.key_field.clone(), separator }
    }
}

impl Source for JsonLines {
    fn next(&mut self) -> Result<Option<(u64, Found)>, Failure> {
        let (fields, separator) = (&self.fields, &self.separator);
        loop {
            let found = match self.lines.next()? {
                None => return Ok(None),
                Some(Line::TooLong(number)) => (number, Err("the line is too long for an entry".to_owned())),
                Some(Line::Whole(number, line)) => {
                    let line = without_mark(number, line).trim_ascii();
                    if line.is_empty() {
                        continue;
                    }
                    let entry =
                        if fields.is_empty() { own_line(line) } else { keyed_line(line, fields, separator) };
                    (number, entry)
                }
            };
            let (number, entry) = found;
            let entry = entry.map_or_else(Found::Malformed, |(key, value)| Found::Entry(key, value));
            return Ok(Some((number, entry)));
        }
    }
}

fn own_line(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    jsonl::read_entry(line)
        .map_err(|why| format!("{why}; for lines that 'tierdb dump' did not write, say --key-field"))
}

fn keyed_line(line: &[u8], fields: &[String], separator: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let object: Value = serde_json::from_slice(line).map_err(|e| jsonl::json_error(&e))?;
    let mut key = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            key.extend_from_slice(separator);
        }
        match find(&object, field) {
            Some(Value::String(text)) => key.extend_from_slice(text.as_bytes()),
            // A fraction, or an integer too large for 64 bits, has more than one way to be written.
            Some(Value::Number(n)) if n.is_i64() || n.is_u64() => {
                key.extend_from_slice(n.to_string().as_bytes());
            }
            Some(_) => return Err(format!("the field {field} is neither a text nor a 64-bit integer")),
            None => return Err(format!("there is no field {field}")),
        }
    }
    Ok((key, line.to_vec()))
}

/// The field of that very name, or else what a dotted path leads to.
fn find<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    if let Some(value) = object.get(field) {
        return Some(value);
    }
    let (first, rest) = field.split_once('.')?;
    find(object.get(first)?, rest)
}
