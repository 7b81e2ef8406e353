//! Rows of comma-separated values.

use super::lines::MAX_LINE;
use super::{Found, Source};
use crate::args::Load;
use crate::exit::{Exit, Failure};
use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use std::io::{self, Chain, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Each row is an entry: its key is made of some columns, its value is one column or the whole row.
pub struct CsvRows {
    rows: Reader<Limited>,
    name: PathBuf,
    keys: Vec<usize>,
    separator: Vec<u8>,
    value: RowValue,
    row: ByteRecord,
    /// The most bytes of one row.
    limit: usize,
}

/// An input of which only so much is read: a quote that is not closed makes all that follows one row. It ends with a line break more,
/// which ends the last row: who reads on in a row does so because of such a quote.
struct Limited {
    from: Chain<Box<dyn Read>, &'static [u8]>,
    left: usize,
    /// Who reads has been told that this is the end.
    is_over: bool,
}

impl Read for Limited {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !buf.is_empty() {
            let why = "the row is too long to hold an entry: is a quote in it not closed?";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let most = buf.len().min(self.left);
        let read = self.from.read(&mut buf[..most])?;
        self.left -= read;
        self.is_over |= read == 0 && most > 0;
        Ok(read)
    }
}

/// What becomes the value.
enum RowValue {
    /// One column, byte for byte.
    Column(usize),
    /// The row as a JSON object with these names, already written as JSON.
    Object(Vec<String>),
    /// The row as a JSON array.
    Array,
}

impl CsvRows {
    /// Rows of `from`, with keys and values as `load` asks for them.
    pub fn new(from: Box<dyn Read>, name: &str, load: &Load) -> Result<Self, Failure> {
        let &[delimiter] = load.delimiter.as_bytes() else {
            return Err(Failure::Told(Exit::Usage, "--delimiter takes one ASCII character".to_owned()));
        };
        let from = Limited { from: from.chain(b"\n"), left: MAX_LINE, is_over: false };
        let mut rows =
            ReaderBuilder::new().has_headers(!load.no_header).delimiter(delimiter).from_reader(from);
        let name = PathBuf::from(name);
        let told = |e| fatal(&name, 1, e);
        let header = if load.no_header { None } else { Some(rows.byte_headers().map_err(told)?.clone()) };
        if header.as_ref().is_some_and(|header| !header.is_empty()) && rows.get_ref().is_over {
            return Err(open_quote(&name, 1));
        }
        let names = header.as_ref().map(|header| names(header, &name)).transpose()?;
        let column = |asked: &String| column(asked, names.as_deref());
        let keys = load.key_column.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        let value = match (&load.value_column, &names) {
            (Some(asked), _) => RowValue::Column(column(asked)?),
            (None, Some(names)) => {
                RowValue::Object(names.iter().map(|name| json_text(name)).collect::<Result<_, _>>()?)
            }
            (None, None) => RowValue::Array,
        };
        let separator = load.key_separator.as_bytes().to_vec();
        Ok(CsvRows { rows, name, keys, separator, value, row: ByteRecord::new(), limit: MAX_LINE })
    }
}

impl Source for CsvRows {
    fn next(&mut self) -> Result<Option<(u64, Found)>, Failure> {
        // The reader takes the next row where an error left off, so an error costs one row.
        let line = self.rows.position().line();
        self.rows.get_mut().left = self.limit;
        let read = self.rows.read_byte_record(&mut self.row);
        if self.rows.get_ref().is_over && !matches!(read, Ok(false)) {
            return Err(open_quote(&self.name, line));
        }
        match read {
            Ok(false) => Ok(None),
            Ok(true) => {
                let line = self.row.position().map_or(line, csv::Position::line);
                Ok(Some((line, self.entry().unwrap_or_else(Found::Malformed))))
            }
            Err(error) => match error.kind() {
                ErrorKind::UnequalLengths { pos, expected_len, len } => {
                    let line = pos.as_ref().map_or(line, csv::Position::line);
                    let why = format!("the row has {len} columns, the first one has {expected_len}");
                    Ok(Some((line, Found::Malformed(why))))
                }
                _ => Err(fatal(&self.name, line, error)),
            },
        }
    }
}

impl CsvRows {
    fn entry(&self) -> Result<Found, String> {
        let field = |at: usize| {
            self.row
                .get(at)
                .ok_or_else(|| format!("there is no column {}: the row has {}", at + 1, self.row.len()))
        };
        let mut key = Vec::new();
        for (i, at) in self.keys.iter().enumerate() {
            if i > 0 {
                key.extend_from_slice(&self.separator);
            }
            key.extend_from_slice(field(*at)?);
        }
        let value = match &self.value {
            RowValue::Column(at) => field(*at)?.to_vec(),
            RowValue::Object(names) => {
                let named = names.iter().zip(&self.row).enumerate();
                let fields = named.map(|(at, (name, field))| Ok(format!("{name}:{}", text(at, field)?)));
                format!("{{{}}}", fields.collect::<Result<Vec<_>, String>>()?.join(",")).into_bytes()
            }
            RowValue::Array => {
                let fields = self.row.iter().enumerate().map(|(at, field)| text(at, field));
                format!("[{}]", fields.collect::<Result<Vec<_>, _>>()?.join(",")).into_bytes()
            }
        };
        Ok(Found::Entry(key, value))
    }
}

/// Field `at` of a row as a JSON text.
fn text(at: usize, field: &[u8]) -> Result<String, String> {
    let field = std::str::from_utf8(field)
        .map_err(|_| format!("column {} is not UTF-8: JSON cannot hold it (say --value-column)", at + 1))?;
    serde_json::to_string(field).map_err(|e| e.to_string())
}

fn json_text(name: &str) -> Result<String, Failure> {
    serde_json::to_string(name).map_err(|e| Failure::invalid(e.to_string()))
}

/// The names in the header: each must be there once, or JSON objects would lose a column.
fn names(header: &ByteRecord, file: &std::path::Path) -> Result<Vec<String>, Failure> {
    let refused = |why: String| Failure::invalid(format!("{}: the header {why}", file.display()));
    let mut names: Vec<String> = Vec::with_capacity(header.len());
    for name in header {
        let name = std::str::from_utf8(name).map_err(|_| refused("is not UTF-8".to_owned()))?;
        if names.iter().any(|known| known == name) {
            return Err(refused(format!("names the column {name:?} twice")));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// The column that was asked for by its name, or else by its number from 1.
fn column(asked: &str, names: Option<&[String]>) -> Result<usize, Failure> {
    if let Some(at) = names.and_then(|names| names.iter().position(|name| name == asked)) {
        return Ok(at);
    }
    let last = names.map_or(usize::MAX, <[String]>::len);
    match asked.parse::<usize>() {
        Ok(number) if (1..=last).contains(&number) => Ok(number - 1),
        _ => Err(Failure::invalid(match names {
            Some(names) => format!("there is no column {asked}: there are {}", names.join(", ")),
            None => format!("{asked} is not the number of a column: they count from 1"),
        })),
    }
}

/// A quote that is not closed has made all that follows `line` part of its row.
fn open_quote(name: &std::path::Path, line: u64) -> Failure {
    let name = name.display();
    Failure::invalid(format!(
        "{name} line {line}: a quote in the row is not closed before the end of the input"
    ))
}

fn fatal(name: &std::path::Path, line: u64, error: csv::Error) -> Failure {
    let told = error.to_string();
    match error.into_kind() {
        ErrorKind::Io(cause) if cause.kind() == io::ErrorKind::InvalidData => {
            Failure::invalid(format!("{} line {line}: {cause}", name.display()))
        }
        ErrorKind::Io(cause) => Failure::read(name, &cause),
        _ => Failure::invalid(format!("{}: {told}", name.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn keys_and_values() -> Load {
        let words = ["tierdb", "load", "s", "rows.csv", "--key-column", "k", "--value-column", "v"];
        let Command::Load(load) = Cli::try_parse_from(words).expect("a command").command else { panic!() };
        load
    }

    #[test]
    fn a_quote_that_is_not_closed_is_no_value_up_to_the_end() {
        let read = |rows: &'static str| -> Result<Vec<(u64, Found)>, String> {
            let told = |failure| match failure {
                Failure::Told(Exit::Invalid, why) => why,
                other => panic!("{other:?}"),
            };
            let from = Box::new(io::Cursor::new(rows));
            let mut source = CsvRows::new(from, "rows.csv", &keys_and_values()).map_err(told)?;
            std::iter::from_fn(|| source.next().transpose()).collect::<Result<_, _>>().map_err(told)
        };
        let last = |rows| match read(rows).map(|mut rows| rows.pop()) {
            Ok(Some((_, Found::Entry(_, value)))) => String::from_utf8(value).expect("text"),
            _ => panic!("{rows}"),
        };
        for rows in ["k,v\na,\"1\nb,2\nc,3\n", "k,v\na,1\nb,\"2", "k,v\na,1\n\"b", "k,\"v\n"] {
            let Err(why) = read(rows) else { panic!("{rows}") };
            assert!(why.contains("a quote in the row is not closed"), "{rows}: {why}");
        }
        // None of these is: what ends with the input ends with a line break as well.
        for (rows, value) in [
            ("k,v\na,\"1\"", "1"),
            ("k,v\na,\"1\n\"", "1\n"),
            ("k,v\na,1\"2", "1\"2"),
            ("k,v\na,1\r", "1"),
            ("k,v\na,1\r\n", "1"),
            ("k,v\na,1\n\n", "1"),
            ("k,v\na,", ""),
        ] {
            assert_eq!(last(rows), value, "{rows:?}");
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_does_not_take_the_whole_input() {
        let load = keys_and_values();
        let input = |rows: &'static str| Box::new(io::Cursor::new(rows).chain(io::repeat(b'x')));
        let mut source = CsvRows::new(input("k,v\na,1\nb,\"2"), "rows.csv", &load).expect("a header");
        source.limit = 100_000;
        assert!(matches!(source.next(), Ok(Some((2, Found::Entry(key, _)))) if key == b"a"));
        let Err(Failure::Told(exit, why)) = source.next() else { panic!("it is no row") };
        assert!(exit == Exit::Invalid && why.starts_with("rows.csv line 3: the row is too long"), "{why}");
    }
}
