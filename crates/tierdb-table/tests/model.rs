//! Goal: a table answers as a sorted map does: lookups at any seqno, ranges by any bounds in both directions.
//! Method: random entries of many shapes (long keys, long values, many versions), random questions.

mod kit;

use kit::{
    Kind, all, drain, entries, entry_of, expected, key_of, new_world, open, random_model, tables, write,
};
use std::ops::Bound;
use tierdb_base::ErrorKind;
use tierdb_device::Cause;
use tierdb_table::{Direction, EntryRef, MAX_TABLE_BYTES, ReadAhead, Table, WriterOptions};

const KINDS: [Kind; 5] = [
    Kind { keys: 1, key_len: 4096, value_len: 0, versions: 1 },
    Kind { keys: 300, key_len: 40, value_len: 300, versions: 6 },
    Kind { keys: 60, key_len: 4096, value_len: 5000, versions: 400 },
    Kind { keys: 40, key_len: 20, value_len: 70_000, versions: 3 },
    Kind { keys: 3000, key_len: 12, value_len: 30, versions: 2 },
];

fn random_bound(rng: &mut fastrand::Rng, keys: &[Vec<u8>], kind: &Kind) -> Bound<Vec<u8>> {
    let key = match rng.u8(..4) {
        0 => Vec::new(),
        1 => key_of(rng, kind),
        _ => keys[rng.usize(..keys.len())].clone(),
    };
    match rng.u8(..5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[test]
fn tables_answer_as_the_model_does() {
    for seed in 0..35 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kind = KINDS[seed as usize % KINDS.len()];
        let model = random_model(&mut rng, &kind);
        let world = new_world();
        let written = write(&tables(&world), 3, &model).expect("write");
        let table = open(&world, 3).expect("open");
        assert_eq!(written.footer(), table.footer());
        assert_eq!(written.parts(), table.parts());
        let footer = table.footer();
        let all_entries = entries(&model);
        assert_eq!(footer.entries, model.len() as u64);
        assert_eq!(footer.tombstones, model.values().filter(|value| value.is_none()).count() as u64);
        let mut keys: Vec<Vec<u8>> = all_entries.iter().map(|entry| entry.key.clone()).collect();
        keys.dedup();
        assert_eq!(footer.keys, keys.len() as u64);
        assert_eq!((&footer.smallest, Some(&footer.largest)), (&keys[0], keys.last()));
        let seqnos = || all_entries.iter().map(|entry| entry.seqno);
        assert_eq!((Some(footer.lowest_seqno), Some(footer.highest_seqno)), (seqnos().min(), seqnos().max()));

        for entry in &all_entries {
            for seqno in [entry.seqno, entry.seqno - 1, entry.seqno + 1, u64::MAX] {
                let found = table.get(&entry.key, seqno, Cause::Foreground).expect("whole");
                let found = found.map(|found| (found.seqno, found.value));
                assert_eq!(found, expected(&model, &entry.key, seqno), "seed {seed}");
            }
        }
        for _ in 0..300 {
            let key = key_of(&mut rng, &kind);
            let seqno = rng.u64(..2000);
            let found = table.get(&key, seqno, Cause::Foreground).expect("whole");
            assert_eq!(found.map(|found| (found.seqno, found.value)), expected(&model, &key, seqno));
        }

        let forward = all(&table, Direction::Forward);
        assert!(forward.0 == all_entries && forward.1.is_none(), "seed {seed}");
        for _ in 0..150 {
            let bounds = (random_bound(&mut rng, &keys, &kind), random_bound(&mut rng, &keys, &kind));
            let inside = |key: &Vec<u8>| {
                let above = match &bounds.0 {
                    Bound::Included(start) => key >= start,
                    Bound::Excluded(start) => key > start,
                    Bound::Unbounded => true,
                };
                above
                    && match &bounds.1 {
                        Bound::Included(end) => key <= end,
                        Bound::Excluded(end) => key < end,
                        Bound::Unbounded => true,
                    }
            };
            let mut wanted: Vec<_> = all_entries.iter().filter(|entry| inside(&entry.key)).cloned().collect();
            let ahead = ReadAhead { first: 1 << rng.u32(0..16), most: 1 << rng.u32(0..20) };
            for direction in [Direction::Forward, Direction::Backward] {
                let range = (as_slice(&bounds.0), as_slice(&bounds.1));
                let (found, error) =
                    drain(&mut table.iter(range, direction, ahead, Cause::Foreground), usize::MAX);
                assert!(error.is_none());
                assert!(found == wanted, "seed {seed}: {bounds:?} {direction:?}");
                wanted.reverse();
            }
        }
        let report = table.verify(Cause::Verify).expect("memory");
        assert_eq!(report.damage, [], "seed {seed}");
        assert_eq!((report.entries, report.keys), (footer.entries, footer.keys));
        assert_eq!(report.bytes, footer.file_len);
    }
}

#[test]
fn lookups_of_many_keys_are_those_of_each() {
    let mut rng = fastrand::Rng::with_seed(5);
    let world = new_world();
    let kind = KINDS[2];
    let tables = tables(&world);
    let both = [1, 2].map(|number| write(&tables, number, &random_model(&mut rng, &kind)).expect("write"));
    let mut keys: Vec<_> = (0..100).map(|_| (key_of(&mut rng, &kind), rng.u64(..1 << 30))).collect();
    keys.extend(both.iter().map(|table| (table.footer().smallest.clone(), u64::MAX)));
    let asked: Vec<_> = keys
        .iter()
        .enumerate()
        .map(|(number, (key, seqno))| (&both[number % 2], key.as_slice(), *seqno))
        .collect();
    let many = Table::get_many(&asked, Cause::Foreground);
    for ((table, key, seqno), found) in asked.iter().zip(many) {
        assert_eq!(found.expect("whole"), table.get(key, *seqno, Cause::Foreground).expect("whole"));
    }
}

#[test]
fn an_entry_out_of_order_or_over_a_limit_changes_nothing() {
    let world = new_world();
    let tables = tables(&world);
    let mut writer = tables.create(1, Cause::Gc, &WriterOptions::default()).expect("create");
    writer.add(&EntryRef { key: b"b", seqno: 5, value: Some(b"v") }).expect("first");
    let long = vec![b'c'; 4097];
    for (key, seqno, kind) in [
        (&b"a"[..], 9, ErrorKind::Invalid),
        (b"b", 5, ErrorKind::Invalid),
        (b"b", 6, ErrorKind::Invalid),
        (b"", 1, ErrorKind::Invalid),
        (&long, 1, ErrorKind::Invalid),
    ] {
        let refused = writer.add(&EntryRef { key, seqno, value: None }).expect_err("refused");
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    let huge = vec![0; (64 << 20) + 1];
    assert!(writer.add(&EntryRef { key: b"c", seqno: 1, value: Some(&huge) }).is_err());
    writer.add(&EntryRef { key: b"b", seqno: 4, value: None }).expect("an older version");
    writer.add(&EntryRef { key: b"c", seqno: 0, value: Some(b"") }).expect("the next key");
    assert_eq!((writer.entries(), writer.last_key()), (3, &b"c"[..]));
    assert!(tables.create(1, Cause::Gc, &WriterOptions::default()).is_err(), "the number is taken");
    let table = writer.finish().expect("finish");
    assert_eq!(table.footer().entries, 3);
    assert_eq!(tables.list().expect("list"), [1]);

    let writer = tables.create(2, Cause::Gc, &WriterOptions::default()).expect("create");
    assert_eq!(writer.finish().err().map(|error| error.kind()), Some(ErrorKind::Invalid), "no entries");
    let mut writer = tables.create(3, Cause::Gc, &WriterOptions::default()).expect("create");
    writer.add(&EntryRef { key: b"a", seqno: 1, value: None }).expect("add");
    writer.abandon().expect("abandon");
    assert_eq!(tables.list().expect("list"), [1, 2]);
}

#[test]
fn the_longest_key_and_value_make_a_table() {
    let world = new_world();
    let tables = tables(&world);
    let (key, value) = (vec![0xff; 4096], vec![7; 64 << 20]);
    let options = WriterOptions { allocate: 70 << 20, filter: true };
    let mut writer = tables.create(1, Cause::Gc, &options).expect("create");
    writer.add(&EntryRef { key: b"a", seqno: 2, value: Some(b"small") }).expect("small");
    writer.add(&EntryRef { key: &key, seqno: u64::MAX, value: Some(&value) }).expect("longest");
    assert!(writer.file_len() > 64 << 20 && writer.file_len() < MAX_TABLE_BYTES);
    let table = writer.finish().expect("finish");
    let found = table.get(&key, u64::MAX, Cause::Foreground).expect("whole").expect("there");
    assert!(found.value.as_deref() == Some(&value));
    assert_eq!(table.verify(Cause::Verify).expect("memory").damage, []);
}

/// One entry of 1 KiB and a few of other sizes: what a table costs, and what a lookup reads.
#[test]
fn a_lookup_is_one_read_and_a_table_wastes_little() {
    for (value_len, most_pages, least_use) in
        [(100, 1.1, 0.85), (400, 1.3, 0.9), (1024, 1.3, 0.93), (3000, 1.8, 0.95)]
    {
        let world = new_world();
        let tables = tables(&world);
        let mut writer = tables.create(1, Cause::Gc, &WriterOptions::default()).expect("create");
        let value = vec![1; value_len];
        let keys: Vec<_> = (0..4000).map(|n| format!("user{:020}", n * 7)).collect();
        for (n, key) in keys.iter().enumerate() {
            let entry = EntryRef { key: key.as_bytes(), seqno: 1000 + n as u64, value: Some(&value) };
            writer.add(&entry).expect("add");
        }
        let estimate = writer.file_len();
        let table = writer.finish().expect("finish");
        let footer = table.footer();
        assert!(estimate.abs_diff(footer.file_len) < footer.file_len / 20, "{estimate}: {footer:?}");
        let meter = tables.meter();
        let before = meter.get(Cause::Foreground);
        for key in &keys {
            assert!(table.get(key.as_bytes(), u64::MAX, Cause::Foreground).expect("whole").is_some());
        }
        let after = meter.get(Cause::Foreground);
        assert_eq!(after.reads - before.reads, keys.len() as u64);
        let pages = (after.read_bytes - before.read_bytes) as f64 / 4096.0 / keys.len() as f64;
        let used = footer.data_bytes as f64 / footer.file_len as f64;
        println!(
            "values of {value_len}: {pages:.2} pages a lookup, {:.1} % of the file are keys and values, index {:.1} and \
             filter {:.2} bytes a key",
            used * 100.0,
            footer.index_len as f64 / 4000.0,
            footer.filter_len as f64 / 4000.0,
        );
        assert!(pages < most_pages && used > least_use, "{value_len}: {pages} pages, {used} used");
        let mut passed = 0;
        for n in 0..4000 {
            let absent = format!("user{:020}", n * 7 + 1);
            assert_eq!(table.get(absent.as_bytes(), u64::MAX, Cause::Gc).expect("whole"), None);
            passed += u64::from(table.locate(absent.as_bytes(), u64::MAX).is_some());
        }
        assert_eq!(meter.get(Cause::Gc).reads, passed, "reads only where the filter passes");
        assert!(passed < 40, "{passed} of 4000");
    }
}

#[test]
fn parts_kept_elsewhere_open_a_table_without_reading_it() {
    let mut rng = fastrand::Rng::with_seed(9);
    let world = new_world();
    let model = random_model(&mut rng, &KINDS[1]);
    let parts = write(&tables(&world), 1, &model).expect("write").parts();
    write(&tables(&world), 2, &model).expect("write");
    let tables = tables(&world);
    let table = tables.open_with(1, &parts).expect("open");
    assert_eq!(tables.meter().get(Cause::Recovery).reads, 0);
    assert_eq!(table.parts(), parts);
    let entry = model.iter().next().map(entry_of).expect("some");
    assert!(table.get(entry.key, u64::MAX, Cause::Foreground).expect("whole").is_some());
    assert_eq!(tables.open_with(2, &parts).err().map(|e| e.kind()), Some(ErrorKind::Refused));
}
