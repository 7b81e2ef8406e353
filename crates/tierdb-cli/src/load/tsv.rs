//! Lines of key, tab and value.

use super::lines::{Line, Lines, without_mark};
use super::{Found, Source};
use crate::exit::Failure;
use crate::text::unescape;
use std::io::Read;

/// The first tab of a line ends the key; all that follows it is the value.
pub struct Tsv {
    lines: Lines,
    raw: bool,
}

impl Tsv {
    /// Entries of `from`; with `raw`, backslashes are ordinary characters.
    pub fn new(from: Box<dyn Read>, name: &str, raw: bool) -> Self {
        Tsv { lines: Lines::new(from, name), raw }
    }
}

impl Source for Tsv {
    fn next(&mut self) -> Result<Option<(u64, Found)>, Failure> {
        let raw = self.raw;
        Ok(self.lines.next()?.map(|line| match line {
            Line::Whole(number, line) => {
                let line = if raw { line } else { without_mark(number, line) };
                (number, entry(line, raw).unwrap_or_else(Found::Malformed))
            }
            Line::TooLong(number) => (number, Found::Malformed("the line is too long for an entry".into())),
        }))
    }
}

fn entry(line: &[u8], raw: bool) -> Result<Found, String> {
    let tab = line.iter().position(|b| *b == b'\t').ok_or("there is no tab between a key and a value")?;
    let read = |part: &[u8], what: &str| match raw {
        true => Ok(part.to_vec()),
        false => unescape(part).map_err(|why| format!("the {what} {why} (or say --raw)")),
    };
    Ok(Found::Entry(read(&line[..tab], "key")?, read(&line[tab + 1..], "value")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &'static str, raw: bool) -> Vec<u8> {
        let mut tsv = Tsv::new(Box::new(text.as_bytes()), "test", raw);
        match tsv.next() {
            Ok(Some((1, Found::Entry(key, _)))) => key,
            _ => panic!("{text:?} is a line with a key"),
        }
    }

    #[test]
    fn the_mark_that_a_file_begins_with_is_no_part_of_its_first_key() {
        assert_eq!(first("\u{feff}k\tv\n", false), b"k");
        assert_eq!(first("\u{feff}k\tv\n", true), "\u{feff}k".as_bytes());
        // A key that has it comes back from a dump.
        let key = "\u{feff}k".as_bytes();
        let dumped: &'static str = format!("{}\tv\n", crate::text::escape(key)).leak();
        assert_eq!(first(dumped, false), key);
    }
}
