//! `load` of any text in every format; what was loaded is dumped and loaded again, and is the same.
#![no_main]

use arbitrary::Arbitrary;
use clap::Parser;
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use tierdb_cli::args::{Cli, Command};
use tierdb_cli::load::{Input, Progress, run};
use tierdb_cli::scan::dump;
use tierdb_engine::model::{ModelEngine, ModelStore};
use tierdb_engine::{Engine, KeyRange};

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Format {
    Tsv,
    RawTsv,
    Csv,
    CsvColumns,
    Jsonl,
    JsonlFields,
}

impl Format {
    fn options(self) -> &'static [&'static str] {
        match self {
            Format::Tsv => &["--format", "tsv"],
            Format::RawTsv => &["--format", "tsv", "--raw"],
            Format::Csv => &["--format", "csv", "--key-column", "1,2", "--no-header", "--delimiter", ";"],
            Format::CsvColumns => &["--format", "csv", "--key-column", "a", "--value-column", "b"],
            Format::Jsonl => &["--format", "jsonl"],
            Format::JsonlFields => &["--format", "jsonl", "--key-field", "a,b.c"],
        }
    }
}

fn command(words: &[&str]) -> Command {
    Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{e}")).command
}

fn load(engine: &dyn Engine, options: &[&str], text: &[u8]) -> bool {
    let Command::Load(load) = command(&[&["tierdb", "load", "store", "-", "-q"], options].concat()) else {
        panic!("it is a load")
    };
    let text = Box::new(Cursor::new(text.to_vec()));
    let Ok(input) = Input::open(&load, text, Progress::silent()) else { return false };
    run(engine, &load, input, &mut Vec::new(), &mut Vec::new()).is_ok()
}

fn model() -> ModelEngine {
    ModelStore::new().open().expect("it is not open")
}

fn entries(engine: &ModelEngine) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = engine.cursor(KeyRange::all(), None).expect("a model has no faults");
    let mut found = Vec::new();
    while let Some((key, value)) = cursor.next().expect("a model has no faults") {
        found.push((key.to_vec(), value.into_vec()));
    }
    found
}

fuzz_target!(|input: (Format, bool, &[u8])| {
    let (format, skip, text) = input;
    let engine = model();
    let on_error: &[&str] = if skip { &["--on-error", "skip"] } else { &[] };
    load(&engine, &[format.options(), on_error].concat(), text);
    let loaded = entries(&engine);
    for format in ["jsonl", "tsv"] {
        let Command::Dump(options) = command(&["tierdb", "dump", "store", "--format", format]) else {
            panic!("it is a dump")
        };
        let mut text = Vec::new();
        assert!(dump(&engine, &options, &mut text).is_ok(), "a dump to memory");
        let again = model();
        assert!(load(&again, &["--format", format], &text), "what was dumped can be loaded");
        assert_eq!(entries(&again), loaded, "as {format}");
    }
});
