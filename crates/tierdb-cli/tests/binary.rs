//! The command as it is run from a shell, on stores on disk.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A place for stores that is gone afterwards.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("write");
        path
    }

    /// A configuration with a fast tier of its own and a small flash tier.
    fn two_tiers(&self, name: &str) -> PathBuf {
        let text = format!(
            "memory = \"32 MiB\"\n[[fast]]\npath = \"{name}-fast\"\ncapacity = \"64 MiB\"\nkind = \"block\"\n\
             [[flash]]\npath = \"{name}-flash\"\ncapacity = \"64 MiB\"\n"
        );
        self.file(&format!("{name}.toml"), text)
    }
}

fn tierdb<S: AsRef<OsStr>>(words: &[S]) -> Output {
    command(words).output().expect("the command starts")
}

fn command<S: AsRef<OsStr>>(words: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tierdb"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Words of a command line, whatever each of them is.
macro_rules! words {
    ($($word:expr),* $(,)?) => { [$(OsString::from($word)),*] };
}

#[track_caller]
fn ok(output: Output) -> Vec<u8> {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[track_caller]
fn ok_text(output: Output) -> String {
    String::from_utf8(ok(output)).expect("text")
}

#[track_caller]
fn fails(output: &Output, code: i32, told: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert!(err.contains(told), "{told:?} is not in {err:?}");
}

#[test]
fn a_store_lives_from_put_to_restore() {
    let place = Place::new();
    for store in [place.path("store"), place.two_tiers("tiers")] {
        ok(tierdb(&words!["put", &store, "a", "1"]));
        ok(tierdb(&words!["put", &store, OsString::from_vec(vec![0xff, 0xfe]), "2"]));
        let mut child =
            command(&words!["put", &store, "big"]).stdin(Stdio::piped()).spawn().expect("the command starts");
        let big = vec![7_u8; 300_000];
        child.stdin.take().expect("piped").write_all(&big).expect("write");
        assert!(child.wait().expect("ends").success());

        assert_eq!(ok(tierdb(&words!["get", &store, "a"])), b"1");
        assert_eq!(ok(tierdb(&words!["get", &store, "big"])), big);
        assert_eq!(ok_text(tierdb(&words!["scan", &store, "--keys-only"])), "a\nbig\n\\xff\\xfe\n");
        assert!(ok_text(tierdb(&words!["verify", &store])).starts_with("checked 3 keys and "));
        assert!(ok_text(tierdb(&words!["stat", &store])).contains("  keys                      3\n"));
        let stat = ok(tierdb(&words!["stat", &store, "--json"]));
        let stat: serde_json::Value = serde_json::from_slice(&stat).expect("JSON");
        assert_eq!(stat["keys"], 3);
        // Three puts and two gets, each of a use of its own; what only looks at the store is none.
        assert_eq!(stat["history"]["operations"]["put"], 3);
        assert!(
            ok_text(tierdb(&words!["stat", &store]))
                .contains("before this open\n  used                      ")
        );

        let name = store.file_stem().expect("named").to_str().expect("plain");
        let copy = place.path(&format!("copy-{name}"));
        assert!(ok_text(tierdb(&words!["checkpoint", &store, &copy])).starts_with("copied 3 entries, "));
        assert_eq!(ok_text(tierdb(&words!["delete", &store, "--all"])), "deleted 3 keys\n");
        fails(&tierdb(&words!["get", &store, "a"]), 1, "tierdb: key not found: a\n");
        let compacted = ok_text(tierdb(&words!["compact", &store]));
        assert!(compacted.starts_with("on flash: ") && compacted.ends_with(" now\n"), "{compacted}");
        let restored = place.path(&format!("restored-{name}"));
        assert!(ok_text(tierdb(&words!["restore", &copy, &restored])).starts_with("restored 3 entries, "));
        assert_eq!(ok(tierdb(&words!["get", &restored, "big"])), big);
        fails(&tierdb(&words!["restore", &copy, &restored]), 3, "tierdb: ");
        fails(&tierdb(&words!["checkpoint", &restored, &copy]), 3, "tierdb: ");
    }
}

#[test]
fn a_dump_loads_back_byte_for_byte() {
    let place = Place::new();
    let mut lines = Vec::new();
    for i in 0..5_000_u32 {
        let value: Vec<u8> =
            (0..i % 200).map(|j| (i.wrapping_mul(2_654_435_761).rotate_left(j % 32)) as u8).collect();
        let (key, value) = (tierdb_base::hex::encode(&i.to_be_bytes()), tierdb_base::hex::encode(&value));
        writeln!(lines, "{{\"key_hex\":\"{key}\",\"value_hex\":\"{value}\"}}").expect("a vector takes it");
    }
    let input = place.file("input.jsonl", lines);
    let first = place.path("first");
    assert!(ok_text(tierdb(&words!["load", &first, &input])).starts_with("loaded 5,000 entries, "));
    for format in ["jsonl", "tsv"] {
        let dump = ok(tierdb(&words!["dump", &first, "--format", format]));
        let file = place.file(&format!("dump.{format}"), &dump);
        let again = place.path(format);
        ok(tierdb(&words!["load", &again, &file]));
        assert_eq!(ok(tierdb(&words!["dump", &again, "--format", format])), dump);
    }
}

#[test]
fn every_exit_code_is_met() {
    let place = Place::new();
    let store = place.path("store");
    fails(&tierdb(&words!["get", &store, "k"]), 4, "tierdb: nothing to open at ");
    assert!(!store.exists(), "looking for a store makes none");
    ok(tierdb(&words!["put", &store, "k", "v"]));
    fails(&tierdb(&words!["get", &store, "other"]), 1, "tierdb: key not found: other\n");
    fails(&tierdb(&words!["frobnicate", &store]), 2, "frobnicate");
    fails(&tierdb(&words!["get", &store]), 2, "<KEY>");
    fails(&tierdb(&words!["put", &store, "", "v"]), 3, "tierdb: invalid argument: ");
    let config = place.file("wrong.toml", "memroy = \"1 GiB\"\n");
    fails(&tierdb(&words!["get", &config, "k"]), 3, "memroy");
    let foreign = place.path("foreign");
    fs::create_dir(&foreign).expect("a directory");
    fs::write(foreign.join("notes.txt"), "not a store").expect("write");
    fails(&tierdb(&words!["put", &foreign, "k", "v"]), 4, "tierdb: ");

    let open = tierdb::Db::open(&store).expect("the store opens");
    fails(&tierdb(&words!["get", &store, "k"]), 5, "tierdb: ");
    open.close().expect("closes");
    assert_eq!(ok(tierdb(&words!["get", &store, "k"])), b"v");
}

#[test]
fn damage_and_a_full_tier_have_their_codes() {
    let place = Place::new();
    let store = place.two_tiers("small");
    // Far more than 64 MiB of flash holds.
    let line = format!("\t{}\n", "v".repeat(20_000));
    let text: String = (0..6_000).map(|i| format!("key{i:05}{line}")).collect();
    let input = place.file("input.tsv", text);
    let full = tierdb(&words!["load", &store, &input, "--quiet"]);
    fails(&full, 7, "loaded before it");
    let kept = ok_text(tierdb(&words!["scan", &store, "--count"]));
    assert!(kept.trim().parse::<u64>().expect("a number") > 500, "{kept}");
    ok(tierdb(&words!["verify", &store]));
    ok(tierdb(&words!["delete", &store, "key00000"]));

    let flash = largest_file(&place.path("small-flash"));
    let mut bytes = fs::read(&flash).expect("the flash file");
    let middle = bytes.len() / 2;
    bytes[middle / 2..middle].fill(0x5a);
    fs::write(&flash, bytes).expect("damage it");
    let found = tierdb(&words!["verify", &store]);
    assert_eq!(found.status.code(), Some(6), "{}", String::from_utf8_lossy(&found.stderr));
    let text = String::from_utf8(found.stdout).expect("text");
    assert!(text.starts_with("damage: ") && text.contains("key key0"), "{text}");
    fails(&tierdb(&words!["dump", &store]), 6, "tierdb: ");

    let saved = place.path("saved");
    let repaired = tierdb(&words!["repair", &store, &saved]);
    assert_eq!(repaired.status.code(), Some(6), "{}", String::from_utf8_lossy(&repaired.stderr));
    assert!(ok_text(tierdb(&words!["verify", &saved])).contains(": no damage"));
    for line in ok_text(tierdb(&words!["dump", &saved, "--format", "tsv"])).lines() {
        assert!(
            line.starts_with("key0") && line.ends_with(&"v".repeat(20_000)),
            "only what was stored is saved"
        );
    }
}

fn largest_file(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    files.max_by_key(|path| fs::metadata(path).map_or(0, |about| about.len())).expect("a file")
}

#[test]
fn a_closed_pipe_ends_a_scan_quietly() {
    let place = Place::new();
    let store = place.path("store");
    let text: String = (0..50_000).map(|i| format!("key{i:06}\t{}\n", "v".repeat(100))).collect();
    ok(tierdb(&words!["load", &store, place.file("input.tsv", text), "--quiet"]));
    let mut child = command(&words!["scan", &store])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut first = [0; 10];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("reads");
    let ended = child.wait_with_output().expect("ends");
    assert_eq!((&first, ended.status.code(), ended.stderr), (b"key000000\t", Some(0), Vec::new()));
}

/// Goal: after kill -9 the store holds what was told as loaded, and exactly the beginning of the input.
/// Method: feed a load without end, kill it after some reports, compare the store with the input.
#[test]
fn a_killed_load_keeps_what_it_told_and_no_hole() {
    for durability in ["durable", "grouped"] {
        let place = Place::new();
        let store = place.two_tiers("killed");
        let line = |i: u32| format!("key{i:08}\tvalue of {i}\n");
        let mut child = command(&words!["load", &store, "-", "--format", "tsv", "--durability", durability])
            .args(["--progress-every", "0.02", "--batch-size", "16"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut stdin = child.stdin.take().expect("piped");
        // Ends when the reader is killed, or by itself if it never is.
        let feeder = std::thread::spawn(move || {
            (0..3_000_000_u32).map(line).try_for_each(|line| stdin.write_all(line.as_bytes()))
        });
        let mut reports = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut told = String::new();
        for _ in 0..5 {
            told = reports.next().expect("a report").expect("text");
        }
        child.kill().expect("kill -9");
        child.wait().expect("ends");
        let _ = feeder.join();
        let words = told.strip_prefix("loaded ").and_then(|rest| rest.split_once(" entries"));
        let (told, _) = words.unwrap_or_else(|| panic!("{told}"));
        let told: usize = told.replace(',', "").parse().expect("a number");

        ok(tierdb(&words!["verify", &store]));
        let kept = ok_text(tierdb(&words!["scan", &store]));
        let count = kept.lines().count();
        assert!(count >= told && told > 0, "{durability}: {told} were told, {count} are there");
        assert_eq!(count % 16, 0, "a batch is there or not, as one");
        let expected: String = (0..count as u32).map(line).collect();
        assert!(kept == expected, "{durability}: what is there is not the beginning of the input");
    }
}

#[test]
fn every_subcommand_explains_itself_with_an_example() {
    let all = ok_text(tierdb(&["--help"]));
    assert!(all.contains("Exit codes:\n  0  done\n"), "{all}");
    for sub in [
        "put",
        "get",
        "delete",
        "scan",
        "load",
        "dump",
        "stat",
        "compact",
        "verify",
        "repair",
        "checkpoint",
        "restore",
    ] {
        assert!(all.contains(&format!("\n  {sub} ")), "{sub} is listed");
        let help = ok_text(tierdb(&[sub, "--help"]));
        assert!(help.contains("Example") && help.contains(&format!("  tierdb {sub} ")), "{help}");
    }
    assert!(ok_text(tierdb(&["--version"])).starts_with("tierdb 0."));
}
