//! Goal: every comparison of a checksum that this crate makes is needed, and a test would notice if it were left out.
//! Method: list them by the sources. For each there is one test with damage that it alone tells; that test passes,
//! and fails with the comparison left out. Those of the engines are their own suites'.

use super::*;
use crate::db::Db;
use crate::history;
use std::panic::catch_unwind;
use tierdb_base::sources::comparisons;
use tierdb_base::{ErrorKind, mutant};
use tierdb_engine::Value;
use tierdb_engine::model::ListCursor;

/// File, function, which one in it, and the test that notices.
type Row = (&'static str, &'static str, usize, fn() -> std::result::Result<(), String>);

const TESTS: [Row; 5] = [
    ("src/checkpoint.rs", "read", 0, record_of_a_checkpoint),
    ("src/checkpoint.rs", "agrees", 0, entry_of_a_checkpoint),
    ("src/checkpoint.rs", "fill", 0, entries_that_are_read_back),
    ("src/identity.rs", "decode", 0, identity_of_a_tier),
    ("src/history.rs", "checked", 0, history_of_a_store),
];

/// That `result` is the error for damage.
fn refused<T>(result: Result<T>) -> std::result::Result<(), String> {
    match result {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
        Err(error) => Err(format!("another error: {error}")),
        Ok(_) => Err("nothing was noticed".into()),
    }
}

/// A small checkpoint, in `copy` of a directory of its own.
fn checkpoint() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let db = Db::open(dir.path().join("store")).expect("create");
    db.put("key", "old value").expect("put");
    db.checkpoint(dir.path().join("copy")).expect("checkpoint");
    dir
}

fn restored(dir: &tempfile::TempDir) -> Result<Copied> {
    restore(dir.path().join("copy"), &Config::one_directory(dir.path().join("restored")))
}

/// A field that nothing else is compared with.
fn record_of_a_checkpoint() -> std::result::Result<(), String> {
    let dir = checkpoint();
    let path = dir.path().join("copy").join(RECORD_NAME);
    let text = std::fs::read_to_string(&path).expect("read");
    let changed = text.replace("seqno = ", "seqno = 7");
    assert_ne!(text, changed);
    std::fs::write(&path, changed).expect("write");
    refused(restored(&dir))
}

/// With fields that nobody knows yet, and without some that everybody knows.
#[test]
fn a_newer_record_is_refused_as_such() {
    let dir = checkpoint();
    let body = "format = 2\nmade_of = \"a store\"\n";
    let text = format!("{body}{SUM}{:016x}\"\n", checksum(0, body.as_bytes()));
    std::fs::write(dir.path().join("copy").join(RECORD_NAME), text).expect("write");
    assert!(matches!(restored(&dir), Err(Error::NewerFormat { found: 2, newest: 1, .. })));
}

/// Another value as long as the one that was copied.
fn entry_of_a_checkpoint() -> std::result::Result<(), String> {
    let dir = checkpoint();
    let db = Db::open_existing(dir.path().join("copy")).expect("open");
    db.put("key", "new value").expect("put");
    db.close().expect("close");
    refused(restored(&dir))
}

/// Entries that come in another order than they are read back in, with the same count and the same bytes.
fn entries_that_are_read_back() -> std::result::Result<(), String> {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config::one_directory(dir.path().join("store"));
    let mut prepared = Prepared::begin(&config, Intent::CreateNew, None).expect("create");
    let entry = |key: &str| (key.as_bytes().to_vec(), Value::from(b"value".to_vec()));
    refused(fill(&mut prepared, &mut ListCursor::new(vec![entry("b"), entry("a")])))
}

/// The same change in every copy, to the time of creation, which nothing else is compared with.
fn identity_of_a_tier() -> std::result::Result<(), String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    Db::open(&path).and_then(|db| db.close()).expect("create");
    let file = path.join("TIER");
    let mut bytes = std::fs::read(&file).expect("read");
    bytes.chunks_mut(4096).for_each(|copy| copy[40] ^= 1);
    std::fs::write(&file, bytes).expect("write");
    refused(Db::open_existing(&path))
}

/// Another number, which could be right. There is no error for it: it counts as none.
fn history_of_a_store() -> std::result::Result<(), String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let db = Db::open(&path).expect("create");
    db.put("key", "value").expect("put");
    db.close().expect("close");
    let file = path.join(history::NAME);
    let text = std::fs::read_to_string(&file).expect("read");
    let changed = text.replace("put = 1", "put = 7");
    assert_ne!(text, changed);
    std::fs::write(&file, changed).expect("write");
    let db = Db::open_existing(&path).expect("open");
    db.history().map_or(Ok(()), |_| Err("nothing was noticed".into()))
}

#[test]
fn every_comparison_of_a_checksum_that_is_left_out_is_noticed() {
    let comparisons = comparisons(env!("CARGO_MANIFEST_DIR"), &["tierdb"], &[]);
    for of in &comparisons {
        let row = TESTS.iter().find(|(file, function, nth, _)| {
            of.site.file.ends_with(file) && of.function == *function && of.nth == *nth
        });
        let (.., test) = row.unwrap_or_else(|| panic!("{of}: no test"));
        assert_eq!(test(), Ok(()), "{of}: nothing is left out");
        let before = mutant::left_out();
        let noticed = !matches!(catch_unwind(|| mutant::without(of.site, test)), Ok(Ok(())));
        assert!(mutant::left_out() != before, "{of}: its test does not pass it");
        assert!(noticed, "{of}: not noticed when it is left out");
    }
    assert_eq!(comparisons.len(), TESTS.len(), "tests of comparisons that are there");
}

/// Goal: a checkpoint that gets its name between being found under the partial one and being locked stays what it is.
/// Method: a link under the partial name, by which the finished checkpoint is opened as by a descriptor from before.
#[test]
fn a_checkpoint_that_another_has_finished_meanwhile_is_not_given_up() {
    let dir = checkpoint();
    let (copy, partial) = (dir.path().join("copy"), dir.path().join("copy.partial"));
    std::os::unix::fs::symlink(&copy, &partial).expect("link");
    let refused = give_up(&Config::one_directory(&partial), &copy).expect_err("it has its name");
    assert!(refused.to_string().contains("exists"), "{refused}");
    std::fs::remove_file(&partial).expect("remove");
    assert_eq!(restored(&dir).expect("restore").entries, 1);
    // Under the partial name alone it is given up, once and again, and what is not there needs nothing.
    std::fs::rename(&copy, &partial).expect("rename");
    for _ in 0..2 {
        give_up(&Config::one_directory(&partial), &copy).expect("nobody relies on it");
    }
    assert_eq!(Db::open_existing(&partial).expect_err("given up").kind(), ErrorKind::NotFound);
    assert_eq!(Db::open(&partial).expect_err("no empty store").kind(), ErrorKind::NotFound);
    std::fs::remove_dir_all(&partial).expect("remove");
    give_up(&Config::one_directory(&partial), &copy).expect("nothing is there");
    assert!(!partial.exists());
}

/// Goal: the removal of a failed checkpoint may end early, and the next one of that name comes after it.
/// Method: the last step has failed, and a file of others is in the way, which is left alone.
#[test]
fn a_removal_that_ends_early_leaves_a_partial_checkpoint() {
    let dir = checkpoint();
    let (copy, partial) = (dir.path().join("copy"), dir.path().join("copy.partial"));
    std::fs::rename(&copy, &partial).expect("rename");
    let mut prepared =
        Prepared::begin(&Config::one_directory(&partial), Intent::OpenExisting, None).expect("open");
    let notes = partial.join("notes");
    std::fs::write(&notes, "not ours").expect("write");
    prepared.remove().expect_err("it holds another file");
    drop(prepared);
    std::fs::remove_file(&notes).expect("it is there");
    assert_eq!(Db::open_existing(&partial).expect_err("nobody relies on it").kind(), ErrorKind::NotFound);
    let db = Db::open_existing(dir.path().join("store")).expect("open");
    db.checkpoint(&copy).expect("checkpoint");
    assert!(!partial.exists());
    assert_eq!(restored(&dir).expect("restore").entries, 1);
}

#[test]
fn the_removal_of_a_checkpoint_leaves_directories_of_others_alone() {
    let dir = checkpoint();
    let copy = dir.path().join("copy");
    let mut prepared =
        Prepared::begin(&Config::one_directory(&copy), Intent::OpenExisting, None).expect("open");
    let notes = copy.join("theirs").join("notes");
    std::fs::create_dir(copy.join("theirs")).expect("a directory");
    std::fs::write(&notes, "not ours").expect("write");
    prepared.remove().expect_err("it holds another directory");
    assert!(notes.exists());
}
