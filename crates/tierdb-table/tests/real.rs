//! Goal: tables work on files of the system, with direct I/O where it has that, and from many threads.
//! Method: a table in a temporary directory, read by several threads at once, reopened, cut.

use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{ErrorKind, Seqno};
use tierdb_device::{Cause, Meter, RealDir};
use tierdb_table::{Direction, EntryRef, ReadAhead, Source, TableDir, WriterOptions, file_name};

const KEYS: u64 = 5000;

fn key(n: u64) -> String {
    format!("key{n:08}")
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; (n * 37 % 900) as usize]
}

#[test]
fn threads_read_a_table_in_real_files() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let tables = TableDir::new(RealDir::open(temporary.path()).expect("open"), 3, Meter::new(), None);
    let options = WriterOptions { allocate: 64 << 10, ..WriterOptions::default() };
    let mut writer = tables.create(9, Cause::Gc, &options).expect("create");
    for n in 0..KEYS {
        let (key, value) = (key(n), value(n));
        writer.add(&EntryRef { key: key.as_bytes(), seqno: n + 1, value: Some(&value) }).expect("add");
    }
    let footer = writer.finish().expect("finish").footer().clone();
    let path = temporary.path().join(file_name(9));
    assert_eq!(std::fs::metadata(&path).expect("there").len(), footer.file_len);

    let table = Arc::new(tables.open(9, Cause::Recovery).expect("open"));
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let table = table.clone();
            threads.spawn(move || {
                for n in (thread..KEYS).step_by(4) {
                    let found = table.get(key(n).as_bytes(), Seqno::MAX, Cause::Foreground).expect("whole");
                    assert_eq!(found.and_then(|found| found.value), Some(value(n)));
                }
                let range = (Bound::Unbounded, Bound::Unbounded);
                let mut iter =
                    table.iter(range, Direction::Backward, ReadAhead::default(), Cause::Foreground);
                for n in (0..KEYS).rev() {
                    iter.advance().expect("whole");
                    let entry = iter.entry().expect("an entry");
                    assert!(entry.key == key(n).as_bytes() && entry.value == Some(&value(n)));
                }
            });
        }
    });
    assert_eq!(table.verify(Cause::Verify).expect("memory").damage, []);

    let file = std::fs::File::options().write(true).open(&path).expect("open");
    file.set_len(footer.file_len - 4096).expect("cut");
    assert_eq!(tables.open(9, Cause::Recovery).err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
    assert!(!table.verify(Cause::Verify).expect("memory").damage.is_empty());
    let mut salvage = tables.salvage(9, Cause::Verify).expect("open");
    for n in 0..KEYS {
        salvage.advance().expect("no error");
        assert_eq!(salvage.entry().map(|entry| entry.key.to_vec()), Some(key(n).into_bytes()));
    }
    tables.remove(9).expect("remove");
    tables.sync().expect("sync");
    assert_eq!(tables.list().expect("list"), []);
}
