//! Goal: tables of format 1 stay readable, and the writer goes on writing them byte for byte.
//! Method: a table kept in `tests/golden`, compared with one written now. Set `UPDATE_GOLDEN` to write it anew, which is
//! right only together with a new format number.

mod kit;

use kit::{Model, all, area, entries, new_world, open, tables, write};
use std::cmp::Reverse;
use std::path::PathBuf;
use tierdb_device::{AlignedBuf, BlockFile, Cause, Dir, OpenMode};
use tierdb_table::{Direction, file_name};

fn model() -> Model {
    let mut model = Model::new();
    for n in 0..60u64 {
        let value = (n % 7 > 0).then(|| n.to_le_bytes().repeat(n as usize % 9));
        model.insert((format!("key/{:02}", n / 2).into_bytes(), Reverse(1000 - n)), value);
    }
    model.insert((b"key/30".to_vec(), Reverse(u64::MAX)), Some(vec![0x5a; 4200]));
    model
}

#[test]
fn a_table_of_format_1_reads_and_is_written_as_it_was() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/table-v1");
    let world = new_world();
    let table = write(&tables(&world), 7, &model()).expect("write");
    let written = world.peek(&area(7), 0, table.footer().file_len as usize);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &written).expect("write");
    }
    let stored = std::fs::read(&path).expect("the golden table");

    let world = new_world();
    let file = world.dir("flash").open(&file_name(7), OpenMode::CreateNew).expect("create");
    file.set_len(stored.len() as u64).expect("room");
    file.write(0, &AlignedBuf::from_bytes(&stored).expect("memory")).expect("write");
    let table = open(&world, 7).expect("format 1");
    let (found, error) = all(&table, Direction::Forward);
    assert!(found == entries(&model()) && error.is_none());
    assert_eq!(table.verify(Cause::Verify).expect("memory").damage, []);
    assert!(written == stored, "the writer writes other bytes than before");
}
