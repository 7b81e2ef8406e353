//! Every command on the model engine: what it prints, what it stores, and how it ends.

use clap::Parser;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use tierdb_base::Error;
use tierdb_cli::args::Cli;
use tierdb_cli::exit::{Exit, Failure};
use tierdb_cli::store::{Copied, OpenHow, Saved, Show, Stores, Work};
use tierdb_cli::{Streams, run};
use tierdb_engine::model::ModelStore;
use tierdb_engine::{Durability, Engine, KeyRange, VerifyReport};

/// Stores in memory, by path.
#[derive(Default)]
struct Models(RefCell<HashMap<PathBuf, ModelStore>>);

impl Stores for Models {
    fn with(&self, target: &Path, how: OpenHow, work: &mut Work<'_>) -> Result<(), Failure> {
        let mut stores = self.0.borrow_mut();
        if how == OpenHow::Existing && !stores.contains_key(target) {
            return Err(Error::NotFound { path: target.into(), hint: "put something first" }.into());
        }
        let engine = stores.entry(target.into()).or_default().open()?;
        let done = work(&engine);
        engine.close()?;
        done
    }

    fn stat(&self, target: &Path, show: &mut Show<'_>) -> Result<(), Failure> {
        self.with(target, OpenHow::Existing, &mut |engine| show(&engine.stats(), None))
    }

    /// That of what is stored.
    fn flash_bytes(&self, target: &Path) -> Result<u64, Failure> {
        let mut bytes = 0;
        self.with(target, OpenHow::Existing, &mut |engine| {
            bytes = engine.verify()?.bytes_checked;
            Ok(())
        })?;
        Ok(bytes)
    }

    fn verify(&self, target: &Path) -> Result<VerifyReport, Failure> {
        let mut report = None;
        self.with(target, OpenHow::Existing, &mut |engine| {
            report = Some(engine.verify()?);
            Ok(())
        })?;
        report.ok_or_else(|| Failure::invalid("no report"))
    }

    fn repair(&self, source: &Path, target: &Path) -> Result<Saved, Failure> {
        let keys = self.copy(source, target)?.entries;
        Ok(Saved { keys, index_whole: true, list: "REPORT", ..Saved::default() })
    }

    fn checkpoint(&self, target: &Path, dir: &Path) -> Result<Copied, Failure> {
        self.copy(target, dir)
    }

    fn restore(&self, dir: &Path, target: &Path) -> Result<Copied, Failure> {
        self.copy(dir, target)
    }
}

impl Models {
    fn copy(&self, from: &Path, to: &Path) -> Result<Copied, Failure> {
        let mut entries = Vec::new();
        self.with(from, OpenHow::Existing, &mut |engine| {
            let mut cursor = engine.cursor(KeyRange::all(), None)?;
            while let Some(entry) = cursor.next()? {
                entries.push(entry);
            }
            Ok(())
        })?;
        let mut copied = Copied::default();
        self.with(to, OpenHow::Create, &mut |engine| {
            for (key, value) in &entries {
                engine.put(key, value, Durability::Durable)?;
                copied.entries += 1;
                copied.bytes += (key.len() + value.len()) as u64;
            }
            Ok(())
        })?;
        Ok(copied)
    }
}

struct Ran {
    exit: Exit,
    out: Vec<u8>,
    err: String,
}

impl Ran {
    #[track_caller]
    fn ok(self) -> Vec<u8> {
        assert_eq!(self.exit, Exit::Ok, "{}", self.err);
        self.out
    }

    #[track_caller]
    fn ok_text(self) -> String {
        String::from_utf8(self.ok()).expect("text")
    }
}

impl Models {
    fn run(&self, words: &[&str]) -> Ran {
        self.run_with(words.iter().map(OsString::from), b"")
    }

    fn run_with(&self, words: impl IntoIterator<Item = OsString>, stdin: &[u8]) -> Ran {
        let words = std::iter::once(OsString::from("tierdb")).chain(words);
        let cli = Cli::try_parse_from(words).expect("a correct command line");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let streams = Streams {
            stdin: Box::new(io::Cursor::new(stdin.to_vec())),
            out: &mut out,
            err: &mut err,
            out_is_terminal: false,
            err_is_terminal: false,
        };
        let exit = run(&cli, self, streams);
        Ran { exit, out, err: String::from_utf8(err).expect("messages are text") }
    }

    /// Loads `text` from standard input with more `words`.
    fn load(&self, store: &str, words: &[&str], text: &[u8]) -> Ran {
        let words = ["load", store, "-"].into_iter().chain(words.iter().copied()).map(OsString::from);
        self.run_with(words, text)
    }

    fn scan(&self, store: &str) -> String {
        self.run(&["scan", store]).ok_text()
    }
}

/// Keys and values of every length up to 64, with every byte, in no order.
fn binary_entries() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries = Vec::new();
    for i in 0..=255_u8 {
        let key = vec![i; 1 + usize::from(i) % 7];
        let value: Vec<u8> =
            (0..usize::from(i) % 65).map(|j| i.wrapping_mul(31).wrapping_add(j as u8)).collect();
        entries.push((key, value));
    }
    entries.push(("Zürich\\n\t".into(), "東京\r\n\u{feff}\"{}\"".into()));
    entries
}

#[test]
fn what_is_put_is_got_byte_for_byte() {
    let models = Models::default();
    let value: Vec<u8> = (0..=255).collect();
    let key = OsString::from_vec(vec![0xff, b'k']);
    models.run_with(["put".into(), "s".into(), key.clone()], &value).ok();
    assert_eq!(models.run_with(["get".into(), "s".into(), key], b"").ok(), value);
    assert_eq!(models.run(&["get", "s", "--hex", "ff6b"]).ok_text().trim_end().len(), 512);

    models.run(&["put", "s", "--hex", "00", "0aff"]).ok();
    assert_eq!(models.run(&["get", "s", "--escaped", "\\x00"]).ok(), b"\\n\\xff\n");
    assert_eq!(
        models.run(&["get", "s", "--hex", "00", "--json"]).ok(),
        b"{\"key\":\"\\u0000\",\"value_hex\":\"0aff\"}\n"
    );
    models.run(&["put", "s", "a\\x00", "raw"]).ok();
    assert_eq!(models.run(&["get", "s", "a\\x00"]).ok(), b"raw", "without --escaped a backslash is one");
    models.run(&["put", "s", "empty", ""]).ok();
    assert_eq!(models.run(&["get", "s", "empty"]).ok(), b"");
    models.run(&["put", "s", "--", "-k", "-v"]).ok();
    assert_eq!(models.run(&["get", "s", "--", "-k"]).ok(), b"-v");
}

#[test]
fn a_value_comes_from_a_file_where_one_is_named() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), b"\x00from a file\n").expect("write");
    let models = Models::default();
    let name = file.path().to_str().expect("a plain path");
    models.run(&["put", "s", "k", "--file", name]).ok();
    assert_eq!(models.run(&["get", "s", "k"]).ok(), b"\x00from a file\n");
    let missing = models.run(&["put", "s", "k", "--file", "/nonexistent/file"]);
    assert_eq!(missing.exit, Exit::Refused);
    assert!(missing.err.contains("/nonexistent/file"), "{}", missing.err);
}

#[test]
fn each_failure_has_its_code_and_a_message() {
    let models = Models::default();
    for command in ["get", "delete"] {
        let refused = models.run(&[command, "nowhere", "k"]);
        assert_eq!(refused.exit, Exit::Refused);
        assert!(refused.err.starts_with("tierdb: nothing to open at nowhere: "), "{}", refused.err);
    }
    models.run(&["put", "s", "k", "v"]).ok();
    let missing = models.run(&["get", "s", "no\nsuch"]);
    assert_eq!(
        (missing.exit, missing.err.as_str()),
        (Exit::KeyNotFound, "tierdb: key not found: no\\nsuch\n")
    );
    assert_eq!(models.run(&["put", "s", "", "v"]).exit, Exit::Invalid);
    assert_eq!(models.run(&["put", "s", &"k".repeat(4097), "v"]).exit, Exit::Invalid);
    assert_eq!(models.run(&["put", "s", "--hex", "0", "00"]).exit, Exit::Invalid);
    assert_eq!(models.run(&["get", "s", "--escaped", "\\"]).exit, Exit::Invalid);
    assert_eq!(models.run(&["load", "s", "/nonexistent.tsv"]).exit, Exit::Refused);
    assert_eq!(models.run(&["load", "s", "/"]).exit, Exit::Usage);
}

#[test]
fn a_range_is_deleted_and_counted() {
    let models = Models::default();
    for key in ["a1", "a2", "b1", "b2", "c1"] {
        models.run(&["put", "s", key, key]).ok();
    }
    assert_eq!(models.run(&["delete", "s", "--prefix", "a"]).ok_text(), "deleted 2 keys\n");
    assert_eq!(models.run(&["delete", "s", "--start", "b2", "--end", "c1"]).ok_text(), "deleted 1 key\n");
    assert_eq!(models.run(&["delete", "s", "b1"]).ok_text(), "");
    assert_eq!(models.run(&["delete", "s", "b1"]).ok_text(), "", "deleting nothing is no error");
    assert_eq!(models.scan("s"), "c1\tc1\n");
    let refused = models.run(&["delete", "s", "--prefix", ""]);
    assert_eq!(refused.exit, Exit::Invalid);
    assert!(refused.err.contains("--all"));
    let refused = models.run(&["delete", "s", "--start", "", "--end", "d"]);
    assert_eq!((refused.exit, models.scan("s").as_str()), (Exit::Invalid, "c1\tc1\n"));
    assert!(refused.err.contains("leave --start out"), "{}", refused.err);
    assert_eq!(models.run(&["delete", "s", "--all"]).ok_text(), "deleted 1 key\n");
}

#[test]
fn scan_shows_the_range_that_was_asked_for_in_every_form() {
    let models = Models::default();
    for (key, value) in [("a", "1"), ("b\\", "2\t"), ("c", "3"), ("d", "4")] {
        models.run(&["put", "s", key, value]).ok();
    }
    models.run(&["put", "s", "--hex", "62ff", "00"]).ok();
    assert_eq!(models.scan("s"), "a\t1\nb\\\\\t2\\t\nb\\xff\t\\x00\nc\t3\nd\t4\n");
    let scan = |words: &[&str]| models.run(&[&["scan", "s"], words].concat()).ok_text();
    assert_eq!(scan(&["--start", "b", "--end", "d", "--keys-only"]), "b\\\\\nb\\xff\nc\n");
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "d\t4\nc\t3\n");
    assert_eq!(scan(&["--reverse", "--end", "b"]), "a\t1\n");
    assert_eq!(scan(&["--prefix", "b", "--format", "hex"]), "625c\t3209\n62ff\t00\n");
    assert_eq!(
        scan(&["--prefix", "b", "--format", "jsonl"]),
        "{\"key\":\"b\\\\\",\"value\":\"2\\t\"}\n{\"key_hex\":\"62ff\",\"value\":\"\\u0000\"}\n"
    );
    assert_eq!(
        scan(&["--prefix", "62ff", "--hex", "--keys-only", "--format", "jsonl"]),
        "{\"key_hex\":\"62ff\"}\n"
    );
    assert_eq!(scan(&["--count"]), "5\n");
    assert_eq!(scan(&["--count", "--limit", "3"]), "3\n");
    assert_eq!(scan(&["--limit", "0"]), "");
    assert_eq!(scan(&["--start", "d", "--end", "a"]), "", "a reversed range is empty");
}

#[test]
fn a_dump_loads_back_to_the_same_bytes_in_both_formats() {
    let models = Models::default();
    for (key, value) in binary_entries() {
        let key = OsString::from_vec([&b"k"[..], &key].concat());
        // Keys with NUL cannot stand on a command line of the system, but can here.
        models.run_with(["put".into(), "s".into(), key], &value).ok();
    }
    let count = binary_entries().len();
    for format in ["jsonl", "tsv"] {
        let dump = models.run(&["dump", "s", "--format", format]).ok();
        assert_eq!(dump.iter().filter(|b| **b == b'\n').count(), count);
        let loaded = models.load(format, &["--format", format, "--batch-size", "7"], &dump).ok_text();
        assert!(loaded.starts_with(&format!("loaded {count} entries, ")), "{loaded}");
        assert_eq!(models.run(&["dump", format, "--format", format]).ok(), dump);
        assert_eq!(models.scan(format), models.scan("s"));
    }
    let part = models.run(&["dump", "s", "--prefix", "kZ", "--format", "tsv"]).ok_text();
    assert!(part.lines().count() >= 1 && part.lines().all(|line| line.starts_with("kZ")));
}

#[test]
fn tsv_lines_are_read_with_escapes_or_raw() {
    let models = Models::default();
    models.load("s", &["--format", "tsv", "--prefix", "p/"], b"a\\t\t1\tand more\r\n\nb\t\n").ok();
    assert_eq!(models.scan("s"), "p/a\\t\t1\\tand more\np/b\t\n");
    models.load("raw", &["--format", "tsv", "--raw"], b"c:\\new\tx\\y\xff").ok();
    assert_eq!(models.scan("raw"), "c:\\\\new\tx\\\\y\\xff\n");
}

#[test]
fn csv_rows_become_json_or_one_column() {
    let csv = b"id,name,city\n1,\"Smith, J\",Z\xc3\xbcrich\n2,\"a \"\"b\"\"\nc\",\n";
    let models = Models::default();
    models.load("s", &["--format", "csv", "--key-column", "id"], csv).ok();
    assert_eq!(models.run(&["get", "s", "1"]).ok_text(), r#"{"id":"1","name":"Smith, J","city":"Zürich"}"#);
    assert_eq!(models.run(&["get", "s", "2"]).ok_text(), r#"{"id":"2","name":"a \"b\"\nc","city":""}"#);

    let words =
        ["--format", "csv", "--key-column", "city,1", "--key-separator", "|", "--value-column", "name"];
    models.load("t", &words, csv).ok();
    assert_eq!(models.scan("t"), "Zürich|1\tSmith, J\n|2\ta \"b\"\\nc\n");

    models
        .load("u", &["--format", "csv", "--key-column", "2", "--no-header", "--delimiter", ";"], b"a;k;c\n")
        .ok();
    assert_eq!(models.scan("u"), "k\t[\"a\",\"k\",\"c\"]\n");

    for (words, text, reason) in [
        (&["--key-column", "nope"][..], &b"id,b\n1,2\n"[..], "there is no column nope: there are id, b"),
        (&["--key-column", "3"], b"id,b\n1,2\n", "no column 3"),
        (&["--key-column", "0", "--no-header"], b"1,2\n", "count from 1"),
        (&["--key-column", "id"], b"id,id\n1,2\n", "twice"),
        (&["--key-column", "id"], b"id,b\n1\n", "line 2: the row has 1 columns"),
        (&["--key-column", "id"], b"id,b\n1,\xff\n", "line 2: column 2 is not UTF-8"),
        (&["--key-column", "3", "--no-header"], b"1,2\n", "line 1: there is no column 3"),
    ] {
        let refused = models.load("v", &[&["--format", "csv"], words].concat(), text);
        assert_eq!(refused.exit, Exit::Invalid);
        assert!(refused.err.contains(reason), "{reason}: {}", refused.err);
    }
}

#[test]
fn json_lines_are_keyed_by_fields_and_kept_as_they_are() {
    let models = Models::default();
    let text =
        "\u{feff} {\"user\": {\"id\": 7}, \"at\": \"x\"} \r\n\n  \n{\"user.id\":-1,\"at\":\"\",\"n\":1.50}\n";
    models.load("s", &["--format", "jsonl", "--key-field", "user.id,at"], text.as_bytes()).ok();
    assert_eq!(models.run(&["get", "s", "7/x"]).ok_text(), r#"{"user": {"id": 7}, "at": "x"}"#);
    assert_eq!(models.run(&["get", "s", "--", "-1/"]).ok_text(), r#"{"user.id":-1,"at":"","n":1.50}"#);
    for (line, reason) in [
        (r#"{"a":1}"#, "there is no field id"),
        (r#"{"id":1.5}"#, "neither a text nor a 64-bit integer"),
        (r#"{"id":18446744073709551616}"#, "neither a text nor a 64-bit integer"),
        (r#"{"id":null}"#, "neither a text"),
        (r#"{"id":""}"#, "the key is empty"),
        (r#"{"id":"#, "EOF while parsing a value (column 6)"),
        ("[1]", "there is no field id"),
    ] {
        let refused = models.load("t", &["--format", "jsonl", "--key-field", "id"], line.as_bytes());
        assert_eq!(refused.exit, Exit::Invalid);
        assert!(
            refused.err.contains("standard input line 1: ") && refused.err.contains(reason),
            "{}",
            refused.err
        );
    }
    let foreign = models.load("u", &["--format", "jsonl"], b"{\"id\":1}\n");
    assert!(foreign.err.contains("--key-field"), "{}", foreign.err);
    let deep = ["[".repeat(100_000), "]".repeat(100_000)].concat();
    assert_eq!(
        models.load("u", &["--format", "jsonl", "--key-field", "id"], deep.as_bytes()).exit,
        Exit::Invalid
    );
}

#[test]
fn a_malformed_line_stops_the_load_after_what_came_before_it() {
    let models = Models::default();
    let failed = models.load("s", &["--format", "tsv"], b"a\t1\nb\t2\nno tab\nc\t3\n");
    assert_eq!(failed.exit, Exit::Invalid);
    assert_eq!(
        failed.err,
        "tierdb: standard input line 3: there is no tab between a key and a value; 2 entries loaded before it\n"
    );
    assert_eq!(failed.out, b"");
    assert_eq!(models.scan("s"), "a\t1\nb\t2\n");
}

#[test]
fn malformed_lines_are_skipped_counted_and_shown_up_to_a_number() {
    let models = Models::default();
    let words = ["--format", "tsv", "--on-error", "skip", "--max-errors-shown", "2"];
    let long = format!("{}\tv", "k".repeat(5000));
    let text = format!("a\t1\nbad\nb\\\t2\n\tno key\n{long}\nc\t3\n");
    let ran = models.load("s", &words, text.as_bytes());
    let err = ran.err.clone();
    let out = ran.ok_text();
    assert!(out.starts_with("loaded 2 entries, 4 B, in "), "{out}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 4, "{err}");
    assert!(lines[0].starts_with("tierdb: standard input line 2: ") && lines[0].ends_with("; skipped"));
    assert!(lines[1].contains("line 3: the key ends in a single backslash"), "{err}");
    assert!(lines[2].contains("not shown"));
    assert_eq!(lines[3], "tierdb: standard input: skipped 4 lines that could not be loaded");
    assert_eq!(models.scan("s"), "a\t1\nc\t3\n");
}

#[test]
fn the_largest_entry_loads_and_a_larger_one_does_not() {
    let models = Models::default();
    let mut text = b"a\t1\n".to_vec();
    for (key, over) in [("largest", 0), ("larger", 1)] {
        text.extend_from_slice(key.as_bytes());
        text.push(b'\t');
        text.resize(text.len() + tierdb_base::MAX_VALUE_BYTES + over, b'v');
        text.push(b'\n');
    }
    let ran = models.load("s", &["--format", "tsv", "--on-error", "skip"], &text);
    assert!(ran.err.contains("line 3: value of 67108865 bytes is too large"), "{}", ran.err);
    assert!(ran.ok_text().starts_with("loaded 2 entries"));
    assert_eq!(models.run(&["get", "s", "largest"]).ok().len(), tierdb_base::MAX_VALUE_BYTES);
    assert_eq!(models.run(&["scan", "s", "--keys-only"]).ok_text(), "a\nlargest\n");
}

#[test]
fn replaced_values_are_counted() {
    let models = Models::default();
    models.run(&["put", "s", "a", "old"]).ok();
    let with_stat = models.load("t", &["--format", "tsv", "--stat"], b"a\t1\n").ok_text();
    assert!(with_stat.contains("; 0 replaced an older value\nstore\n  engine"), "{with_stat}");
    let out = models.load("s", &["--format", "tsv"], b"a\t1\nb\t2\nb\t3\n").ok_text();
    assert!(out.ends_with("; 2 replaced an older value\n"), "{out}");
    assert_eq!(models.scan("s"), "a\t1\nb\t3\n");
}

#[test]
fn the_format_is_guessed_from_the_name_and_foreign_options_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let models = Models::default();
    for (name, text, words) in [
        ("a.tsv", "tsv\t1\n", &[][..]),
        ("b.CSV", "k\ncsv\n", &["--key-column", "k"]),
        ("c.ndjson", "{\"key\":\"json\",\"value\":\"\"}\n", &[]),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("write");
        models.run(&[&["load", "s", path.to_str().expect("plain")], words].concat()).ok();
    }
    assert_eq!(models.scan("s"), "csv\t{\"k\":\"csv\"}\njson\t\ntsv\t1\n");
    let usage = |words: &[&str]| models.load("s", words, b"").exit;
    assert_eq!(usage(&[]), Exit::Usage);
    assert_eq!(usage(&["--format", "csv"]), Exit::Usage);
    assert_eq!(usage(&["--format", "tsv", "--key-column", "k"]), Exit::Usage);
    assert_eq!(usage(&["--format", "tsv", "--key-separator", "|"]), Exit::Usage);
    assert_eq!(usage(&["--format", "jsonl", "--key-separator", "|"]), Exit::Usage);
    assert_eq!(usage(&["--format", "csv", "--key-column", "k", "--raw"]), Exit::Usage);
    assert_eq!(usage(&["--format", "csv", "--key-column", "k", "--delimiter", "ab"]), Exit::Usage);
}

#[test]
fn progress_is_told_in_lines_off_a_terminal() {
    let models = Models::default();
    let text: String = (0..1000).map(|i| format!("key{i}\tvalue\n")).collect();
    let words = ["--format", "tsv", "--progress-every", "0", "--batch-size", "100"];
    let ran = models.load("s", &words, text.as_bytes());
    assert_eq!(ran.err.lines().count(), 10, "{}", ran.err);
    assert!(ran.err.starts_with("loaded 100 entries, "), "{}", ran.err);
    assert!(ran.ok_text().starts_with("loaded 1,000 entries, "));
    let quiet = models.load("s", &["--format", "tsv", "--progress-every", "0", "--quiet"], text.as_bytes());
    assert_eq!(quiet.err, "");
}

#[test]
fn any_input_ends_without_a_panic() {
    let models = Models::default();
    let mut random = fastrand(7);
    for round in 0..400_u32 {
        let alphabet: &[u8] = b"{}[]\",:\\\t\n\r0ax\xff\x00keyvalu_h";
        let text: Vec<u8> = (0..round % 97).map(|_| alphabet[random() as usize % alphabet.len()]).collect();
        for words in [
            &["--format", "tsv"][..],
            &["--format", "tsv", "--raw"],
            &["--format", "csv", "--key-column", "1"],
            &["--format", "csv", "--key-column", "1", "--no-header"],
            &["--format", "jsonl"],
            &["--format", "jsonl", "--key-field", "a,key"],
        ] {
            for on_error in ["fail", "skip"] {
                let ran = models.load("s", &[words, &["--on-error", on_error]].concat(), &text);
                assert!(matches!(ran.exit, Exit::Ok | Exit::Invalid), "{:?}: {}", ran.exit, ran.err);
            }
        }
    }
}

/// A small generator of numbers, the same in every run.
fn fastrand(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    }
}

#[test]
fn stat_and_verify_speak_to_people_and_programs() {
    let models = Models::default();
    models.run(&["put", "s", "k", "v"]).ok();
    let table = models.run(&["stat", "s"]).ok_text();
    assert!(table.starts_with("store\n  engine "), "{table}");
    let object: serde_json::Value =
        serde_json::from_slice(&models.run(&["stat", "s", "--json"]).ok()).expect("JSON");
    assert_eq!(object["keys"], 1);
    assert!(models.run(&["verify", "s"]).ok_text().starts_with("checked 1 key and "));
    let object: serde_json::Value =
        serde_json::from_slice(&models.run(&["verify", "s", "--json"]).ok()).expect("JSON");
    assert_eq!(object["keys_checked"], 1);
    assert_eq!(object["damage"].as_array().map(Vec::len), Some(0));
}

#[test]
fn copies_say_how_much_they_hold() {
    let models = Models::default();
    models.run(&["put", "s", "key", "value"]).ok();
    assert!(models.run(&["compact", "s"]).ok_text().starts_with("on flash: "));
    assert_eq!(models.run(&["checkpoint", "s", "c"]).ok_text(), "copied 1 entry, 8 B\n");
    assert_eq!(models.run(&["restore", "c", "t"]).ok_text(), "restored 1 entry, 8 B\n");
    assert_eq!(models.run(&["repair", "t", "u"]).ok_text(), "saved 1 key; REPORT has the details\n");
    assert_eq!(models.scan("u"), "key\tvalue\n");
}

/// A pipe whose reader has gone away.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_output_ends_quietly_and_does_not_stop_a_load() {
    let models = Models::default();
    let run_closed = |words: &[&str], stdin: &[u8]| {
        let cli = Cli::try_parse_from(words).expect("a correct command line");
        let mut err = Vec::new();
        let stdin = Box::new(io::Cursor::new(stdin.to_vec()));
        let streams = Streams {
            stdin,
            out: &mut Closed,
            err: &mut err,
            out_is_terminal: false,
            err_is_terminal: false,
        };
        let exit = run(&cli, &models, streams);
        (exit, err)
    };
    let load = ["tierdb", "load", "s", "-", "--format", "tsv"];
    assert_eq!(run_closed(&load, b"a\t1\nb\t2\n"), (Exit::Ok, Vec::new()));
    assert_eq!(models.scan("s"), "a\t1\nb\t2\n");
    assert_eq!(run_closed(&["tierdb", "scan", "s"], b""), (Exit::Ok, Vec::new()));

    let cli = Cli::try_parse_from([&load[..], &["--progress-every", "0", "--batch-size", "1"]].concat())
        .expect("a command line");
    let mut out = Vec::new();
    let streams = Streams {
        stdin: Box::new(&b"c\t3\nd\t4\n"[..]),
        out: &mut out,
        err: &mut Closed,
        out_is_terminal: false,
        err_is_terminal: false,
    };
    assert_eq!(run(&cli, &models, streams), Exit::Ok);
    assert!(out.starts_with(b"loaded 2 entries"));
}

#[test]
fn paths_need_not_be_text() {
    let models = Models::default();
    let store = OsStr::from_bytes(b"st\xffore").to_owned();
    models.run_with(["put".into(), store.clone(), "k".into(), "v".into()], b"").ok();
    assert_eq!(models.run_with(["get".into(), store, "k".into()], b"").ok(), b"v");
}
