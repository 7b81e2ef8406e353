//! `load`: entries of a text file, written in batches.
//!
//! A source turns a file into entries and complaints, each with its line; [`run`] writes the entries.
//! Invariants
//! 1. Entries are written in the order of the input, a batch at a time, so what a crash leaves of the
//!    input is its beginning up to some entry.
//! 2. What is told as loaded has been synced before it is told.

mod csv_rows;
mod json_lines;
mod lines;
mod progress;
mod tsv;

pub use progress::Progress;

use crate::args::{Load, LoadFormat, OnError};
use crate::exit::{Exit, Failure};
use crate::stat;
use crate::text::{counted, grouped};
use progress::Counted;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;
use tierdb_base::{ByteSize, MAX_BATCH_BYTES, check_key, check_value};
use tierdb_engine::{Durability, Engine, Stats, WriteBatch};

/// A batch of several entries has at most this many bytes, whatever their number.
const BATCH_BYTES: usize = 1 << 20;

/// What a source found.
enum Found {
    /// A key and its value.
    Entry(Vec<u8>, Vec<u8>),
    /// Something that is no entry, and why.
    Malformed(String),
}

/// Entries of an input, in order, each with the number of the line it starts on.
trait Source {
    /// The next entry or complaint, or `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Found)>, Failure>;
}

/// What `load` reads, checked and opened before the store is touched.
pub struct Input {
    source: Box<dyn Source>,
    name: String,
    progress: Progress,
}

impl Input {
    /// Opens the file that `load` names, or takes standard input.
    pub fn open(load: &Load, stdin: Box<dyn Read>, progress: Progress) -> Result<Self, Failure> {
        let format = format_of(load)?;
        let (from, size): (Box<dyn Read>, Option<u64>) = if is_stdin(&load.file) {
            (stdin, None)
        } else {
            let told = |e| Failure::read(&load.file, &e);
            let file = File::open(&load.file).map_err(told)?;
            let about = file.metadata().map_err(told)?;
            let size = about.is_file().then_some(about.len());
            (Box::new(file), size)
        };
        Self::new(load, format, from, size, progress)
    }

    fn new(
        load: &Load,
        format: LoadFormat,
        from: Box<dyn Read>,
        size: Option<u64>,
        mut progress: Progress,
    ) -> Result<Self, Failure> {
        let name =
            if is_stdin(&load.file) { "standard input".to_owned() } else { load.file.display().to_string() };
        let from: Box<dyn Read> = Box::new(Counted::new(from, progress.start(size)));
        let source: Box<dyn Source> = match format {
            LoadFormat::Tsv => Box::new(tsv::Tsv::new(from, &name, load.raw)),
            LoadFormat::Csv => Box::new(csv_rows::CsvRows::new(from, &name, load)?),
            LoadFormat::Jsonl => Box::new(json_lines::JsonLines::new(from, &name, load)),
        };
        Ok(Input { source, name, progress })
    }
}

/// Whether a path stands for standard input.
fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The format that was asked for, or else that of the file's name; options of other formats are refused.
fn format_of(load: &Load) -> Result<LoadFormat, Failure> {
    let guess = match load.file.extension().map(OsStr::to_ascii_lowercase).as_deref().and_then(OsStr::to_str)
    {
        Some("tsv") => Some(LoadFormat::Tsv),
        Some("csv") => Some(LoadFormat::Csv),
        Some("jsonl" | "ndjson") => Some(LoadFormat::Jsonl),
        _ => None,
    };
    let format = load.format.or(guess).ok_or_else(|| {
        let name = if is_stdin(&load.file) { Path::new("standard input") } else { &load.file };
        let message = format!("what {} holds is not known: say --format tsv, csv or jsonl", name.display());
        Failure::Told(Exit::Usage, message)
    })?;
    let misplaced = [
        (LoadFormat::Csv, !load.key_column.is_empty(), "--key-column"),
        (LoadFormat::Csv, load.value_column.is_some(), "--value-column"),
        (LoadFormat::Csv, load.no_header, "--no-header"),
        (LoadFormat::Csv, load.delimiter != ",", "--delimiter"),
        (LoadFormat::Jsonl, !load.key_field.is_empty(), "--key-field"),
        (LoadFormat::Tsv, load.raw, "--raw"),
    ];
    for (of, given, option) in misplaced {
        if given && of != format {
            let message = format!("{option} is for --format {of:?}, not {format:?}").to_lowercase();
            return Err(Failure::Told(Exit::Usage, message));
        }
    }
    if format == LoadFormat::Csv && load.key_column.is_empty() {
        let message = "csv needs --key-column: the name or number of the column that is the key";
        return Err(Failure::Told(Exit::Usage, message.to_owned()));
    }
    if load.key_separator != "/" && load.key_column.is_empty() && load.key_field.is_empty() {
        let message = "--key-separator is for keys made of --key-column or --key-field";
        return Err(Failure::Told(Exit::Usage, message.to_owned()));
    }
    Ok(format)
}

/// What was loaded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    entries: u64,
    bytes: u64,
    malformed: u64,
}

impl Tally {
    fn add(&mut self, entries: usize, bytes: usize) {
        self.entries += entries as u64;
        self.bytes += bytes as u64;
    }
}

/// Writes every entry of `input` to `engine`; complaints and progress go to `err`, the result to `out`.
pub fn run(
    engine: &dyn Engine,
    load: &Load,
    mut input: Input,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let before = engine.stats();
    let mut tally = Tally::default();
    let loaded = write_all(engine, load, &mut input, &mut tally, err);
    // Also after a failure: what was written is told, so it must be durable.
    let synced = engine.sync().map_err(Failure::from);
    input.progress.finish();
    if let Err(failure) = loaded {
        return Err(match synced {
            Ok(()) => failure.and(&format!("{} loaded before it", entries(tally.entries))),
            Err(_) => failure,
        });
    }
    synced?;
    if tally.malformed > 0 {
        let skipped = counted(tally.malformed, "line", "lines");
        let message = format!("tierdb: {}: skipped {skipped} that could not be loaded", input.name);
        input.progress.aside(err, &message);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let stats = engine.stats();
    writeln!(
        out,
        "loaded {}, {}, in {seconds:.2} s ({} entries/s){}",
        entries(tally.entries),
        ByteSize(tally.bytes),
        grouped((tally.entries as f64 / seconds.max(1e-9)) as u64),
        replaced(tally.entries, &before, &stats),
    )?;
    if load.stat {
        stat::write_table(&stats, None, out)?;
    }
    Ok(())
}

/// Every entry either added a key or replaced the value of one that was there before it: how many did that, where keys are counted.
fn replaced(entries: u64, before: &Stats, after: &Stats) -> String {
    if before.keys_estimated || after.keys_estimated {
        return String::new();
    }
    let added = after.keys.saturating_sub(before.keys);
    format!("; {} replaced an older value", grouped(entries.saturating_sub(added)))
}

fn entries(n: u64) -> String {
    counted(n, "entry", "entries")
}

fn write_all(
    engine: &dyn Engine,
    load: &Load,
    input: &mut Input,
    tally: &mut Tally,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let durability = Durability::from(load.durability);
    let mut batch = WriteBatch::new();
    let prefix = load.prefix.as_bytes();
    let mut seen = 0;
    loop {
        let (line, found) = match input.source.next() {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(failure) => {
                write(engine, &mut batch, durability, tally)?;
                return Err(failure);
            }
        };
        let why = match prefixed(prefix, found) {
            Ok((key, value)) => {
                if batch.bytes() + key.len() + value.len() > BATCH_BYTES {
                    write(engine, &mut batch, durability, tally)?;
                }
                if key.len() + value.len() > MAX_BATCH_BYTES {
                    // The largest values fit no batch together with their key.
                    engine.put(&key, &value, durability)?;
                    tally.add(1, key.len() + value.len());
                } else {
                    batch.put(key, value)?;
                }
                None
            }
            Err(why) => Some(why),
        };
        if let Some(why) = why {
            let message = format!("{} line {line}: {why}", input.name);
            if load.on_error == OnError::Fail {
                write(engine, &mut batch, durability, tally)?;
                return Err(Failure::invalid(message));
            }
            tally.malformed += 1;
            if tally.malformed <= load.max_errors_shown {
                input.progress.aside(err, &format!("tierdb: {message}; skipped"));
            } else if tally.malformed == load.max_errors_shown + 1 {
                input.progress.aside(err, "tierdb: more lines like these are counted, but not shown");
            }
        }
        if batch.len() >= load.batch_size.get() {
            write(engine, &mut batch, durability, tally)?;
        }
        if tally.entries > seen && input.progress.is_due() {
            if durability == Durability::Grouped && input.progress.tells() {
                engine.sync()?;
            }
            input.progress.report(err, tally.entries);
        }
        seen = tally.entries;
    }
    write(engine, &mut batch, durability, tally)
}

/// The entry with `prefix` before its key, or why it cannot be stored.
fn prefixed(prefix: &[u8], found: Found) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (key, value) = match found {
        Found::Entry(key, value) => (key, value),
        Found::Malformed(why) => return Err(why),
    };
    if key.is_empty() {
        return Err("the key is empty".to_owned());
    }
    let key = if prefix.is_empty() { key } else { [prefix, &key].concat() };
    check_key(&key).and_then(|()| check_value(&value)).map_err(|e| e.to_string())?;
    Ok((key, value))
}

fn write(
    engine: &dyn Engine,
    batch: &mut WriteBatch,
    durability: Durability,
    tally: &mut Tally,
) -> Result<(), Failure> {
    if !batch.is_empty() {
        engine.write(batch, durability)?;
        tally.add(batch.len(), batch.bytes());
        batch.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use tierdb_engine::model::ModelStore;

    /// Some entries, and then an input that cannot be read on.
    struct Broken(u64);

    impl Source for Broken {
        fn next(&mut self) -> Result<Option<(u64, Found)>, Failure> {
            match self.0 {
                0 => Err(Failure::invalid("line 4: the row is too long")),
                left => {
                    self.0 -= 1;
                    Ok(Some((4 - left, Found::Entry(vec![left as u8], b"value".to_vec()))))
                }
            }
        }
    }

    #[test]
    fn what_comes_before_the_end_of_what_can_be_read_is_loaded() {
        let words = ["tierdb", "load", "s", "rows.tsv"];
        let Command::Load(load) = Cli::try_parse_from(words).expect("a command").command else { panic!() };
        let input =
            Input { source: Box::new(Broken(3)), name: "rows.tsv".to_owned(), progress: Progress::silent() };
        let store = ModelStore::default();
        let engine = store.open().expect("open");
        let failed = run(&engine, &load, input, &mut Vec::new(), &mut Vec::new());
        let Err(Failure::Told(exit, why)) = failed else { panic!("it cannot be read") };
        assert!(exit == Exit::Invalid && why.contains("3 entries loaded before it"), "{why}");
        assert_eq!(engine.stats().keys, 3);
    }

    #[test]
    fn replaced_entries_are_told_only_where_keys_are_counted() {
        let of = |keys, keys_estimated| Stats { keys, keys_estimated, ..Stats::default() };
        assert_eq!(replaced(5, &of(10, false), &of(13, false)), "; 2 replaced an older value");
        assert_eq!(replaced(5, &of(10, false), &of(13, true)), "");
        assert_eq!(replaced(5, &of(10, true), &of(13, false)), "");
    }
}
