//! Lines of an input, with their numbers.

use crate::exit::Failure;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use tierdb_base::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// The longest line that could hold an entry: every byte takes at most six characters (`\u00ff`).
pub const MAX_LINE: usize = 6 * (MAX_KEY_BYTES + MAX_VALUE_BYTES) + 4096;

/// Reads an input line by line, without its line ends (LF or CR LF), skipping empty lines.
pub struct Lines {
    from: BufReader<Box<dyn Read>>,
    name: PathBuf,
    number: u64,
    line: Vec<u8>,
    limit: usize,
}

/// One line of the input.
pub enum Line<'a> {
    /// Its number from 1, and its bytes.
    Whole(u64, &'a [u8]),
    /// The number of a line too long to hold an entry; it was skipped.
    TooLong(u64),
}

/// Line `number` without the mark that some editors begin a file with, and which is no part of the text.
pub fn without_mark(number: u64, line: &[u8]) -> &[u8] {
    line.strip_prefix("\u{feff}".as_bytes()).filter(|_| number == 1).unwrap_or(line)
}

impl Lines {
    /// Lines of `from`, which is called `name` in messages.
    pub fn new(from: Box<dyn Read>, name: &str) -> Self {
        let from = BufReader::with_capacity(256 << 10, from);
        Lines { from, name: PathBuf::from(name), number: 0, line: Vec::new(), limit: MAX_LINE }
    }

    /// The next line that is not empty, or `None` at the end.
    pub fn next(&mut self) -> Result<Option<Line<'_>>, Failure> {
        loop {
            self.line.clear();
            self.number += 1;
            let most = self.limit as u64 + 1;
            let told = |e| Failure::read(&self.name, &e);
            let read = (&mut self.from).take(most).read_until(b'\n', &mut self.line).map_err(told)?;
            if read == 0 {
                return Ok(None);
            }
            if read > self.limit && self.line.last() != Some(&b'\n') {
                self.line = Vec::new();
                self.from.skip_until(b'\n').map_err(told)?;
                return Ok(Some(Line::TooLong(self.number)));
            }
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
                if self.line.last() == Some(&b'\r') {
                    self.line.pop();
                }
            }
            if !self.line.is_empty() {
                return Ok(Some(Line::Whole(self.number, &self.line)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_long_ones_skipped() {
        let mut lines = Lines::new(Box::new(&b"a\r\n\nabcdef\nabcdefg\nz"[..]), "test");
        lines.limit = 6;
        let mut seen = Vec::new();
        while let Some(line) = lines.next().expect("reads") {
            seen.push(match line {
                Line::Whole(number, line) => (number, String::from_utf8_lossy(line).into_owned()),
                Line::TooLong(number) => (number, "too long".to_owned()),
            });
        }
        let expected = [(1, "a"), (3, "abcdef"), (4, "too long"), (5, "z")];
        assert_eq!(seen, expected.map(|(number, line)| (number, line.to_owned())));
    }
}
