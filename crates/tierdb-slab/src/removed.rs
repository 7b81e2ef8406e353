//! Goal: what was removed stays removed, and takes no room once nothing is left for it to hide. The rules about tombstones that this
//! rests on are needed, and a test would notice if one were left out. (Those about damaged records have tests where these are read.)
//! Method: for each, the moment in which it tells is made by hand; each rule is left out in turn.

use crate::config::{Options, Promotion as When};
use crate::descend::Down;
use crate::engine::SlabStore;
use crate::levels::FIRST;
use crate::plan::{Plan, Victims};
use crate::promote::Promotion;
use crate::rig::{self, Store};
use crate::salvage::salvage;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use tierdb_device::Cause;
use tierdb_engine::{Durability, Engine, KeyRange, Snapshot};

const POOL: u64 = 132 << 10;
const KEYS: u8 = 60;

fn options() -> Options {
    rig::options(POOL)
}

fn value(key: u8, version: u8) -> Vec<u8> {
    [&[key, version][..], &[version; 600]].concat()
}

fn put(store: &Store, keys: impl IntoIterator<Item = u8>, version: u8) {
    for key in keys {
        store.engine.put(&[key], &value(key, version), Durability::Durable).expect("room");
    }
}

fn delete(store: &Store, key: u8) {
    store.engine.delete(&[key], Durability::Durable).expect("room");
}

fn remove(store: &Store, keys: Range<u8>) {
    let range = KeyRange::half_open([keys.start], [keys.end]);
    store.engine.delete_range(&range, Durability::Durable).expect("room");
}

/// Everything leaves the fast tier for flash.
fn flush(store: &Store) {
    store.engine.flush().expect("room");
}

/// A store whose flash has version 1 of all keys, and whose fast tier has nothing.
fn on_flash(options: Options) -> Store {
    let store = Store::new(POOL, options);
    put(&store, 0..KEYS, 1);
    flush(&store);
    assert_eq!(store.part().read().index.len(), 0);
    store
}

/// The same, with all of flash in the second level.
fn in_second_level() -> Store {
    let store = on_flash(Options { levels: Some(2), ..options() });
    while store.core().descend(Down::Any).expect("room").is_some() {}
    let levels = store.part().read().tables.clone();
    assert!(levels.first().tables().is_empty() && levels.level(2).tables().len() > 2);
    store
}

fn reopened(store: Store, options: Options) -> Store {
    let Store { world, engine } = store;
    drop(engine);
    let engine = SlabStore::open(rig::media(&world, 1 << 20), options).expect("it opens");
    Store { world, engine }
}

/// Tombstones in tables.
fn on_tables(store: &Store) -> u64 {
    store.part().read().tables.tables().map(|table| table.footer().tombstones).sum()
}

/// That each key has the version that `expected` says, 0 being none, by gets one by one, at once, and by scans both ways.
fn check(store: &Store, expected: impl Fn(u8) -> u8) {
    let of = |key: u8| Some(expected(key)).filter(|version| *version > 0).map(|version| value(key, version));
    let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for (key, found) in (0..).zip(store.engine.multi_get(&keys)) {
        assert_eq!(found.expect("whole").as_deref(), of(key).as_deref(), "key {key}, with all");
        assert_eq!(store.engine.get(&[key]).expect("whole").as_deref(), of(key).as_deref(), "key {key}");
    }
    let mut cursor = store.engine.cursor(KeyRange::all(), None).expect("open");
    for key in (0..KEYS).filter(|key| of(*key).is_some()) {
        let (found, read) = cursor.next().expect("whole").expect("one more");
        assert_eq!((&found[..], Some(&read[..])), (&[key][..], of(key).as_deref()));
    }
    assert!(cursor.next().expect("whole").is_none());
    let mut cursor = store.engine.cursor(KeyRange::all(), None).expect("open");
    for key in (0..KEYS).rev().filter(|key| of(*key).is_some()) {
        let (found, read) = cursor.prev().expect("whole").expect("one more");
        assert_eq!((&found[..], Some(&read[..])), (&[key][..], of(key).as_deref()));
    }
    assert!(cursor.prev().expect("whole").is_none());
}

fn check_at(store: &Store, snapshot: &Snapshot, expected: impl Fn(u8) -> u8) {
    for key in 0..KEYS {
        let found = store.engine.get_at(&[key], snapshot).expect("whole");
        let expected = Some(expected(key)).filter(|version| *version > 0);
        assert_eq!(found.as_deref(), expected.map(|version| value(key, version)).as_deref(), "key {key}");
    }
}

fn without(removed: u8) -> impl Fn(u8) -> u8 {
    move |key| u8::from(key != removed)
}

fn outside(removed: Range<u8>) -> impl Fn(u8) -> u8 {
    move |key| u8::from(!removed.contains(&key))
}

/// The fast tier says that a key is gone of which flash has a version, and then a merge takes both away.
fn a_delete_hides_what_flash_has() {
    let store = on_flash(options());
    delete(&store, 7);
    check(&store, without(7));
    flush(&store);
    check(&store, without(7));
    assert_eq!(on_tables(&store), 0, "nothing is left to hide");
    check(&reopened(store, options()), without(7));
}

fn a_second_delete_writes_nothing() {
    let store = on_flash(options());
    delete(&store, 7);
    let last = store.core().clock.last();
    delete(&store, 7);
    assert_eq!(store.core().clock.last(), last);
}

/// What a migration reads now is on flash when it ends.
fn a_delete_beside_a_migration_is_kept() {
    let store = Store::new(POOL, options());
    put(&store, [7], 1);
    store.part().write().migrating = Some(KeyRange::all());
    delete(&store, 7);
    let entry = store.part().read().index.get(&[7]);
    assert!(entry.is_some_and(|entry| entry.is_tombstone()));
    store.part().write().end_migration(&store.core().heap);
}

/// A migration frees only what is still the newest.
fn a_delete_beside_a_migration_outlives_it() {
    let store = on_flash(options());
    put(&store, [7], 2);
    let part = store.part();
    let victims = {
        let state = part.read();
        let plan = Plan::of_table(&state.tables, FIRST, state.tables.first().number_of(&[7]));
        store.core().victims(&state, &plan, Victims::All)
    };
    assert_eq!(victims.len(), 1);
    delete(&store, 7);
    store.core().free_victims(&part, &victims, &HashSet::new());
    check(&store, without(7));
}

/// Nobody knows which key a record has that cannot be read, but for a few bits. It may be the one that is deleted.
fn a_delete_hides_what_cannot_be_read() {
    let store = Store::new(POOL, options());
    put(&store, [7], 1);
    let at = store.part().read().index.get(&[7][..]).expect("on the fast tier").at();
    (0..64).for_each(|byte| store.world.flip_bit("pool", at + byte, 3));
    let store = reopened(store, options());
    store.engine.get(&[7]).expect_err("it is damaged");
    let is_gone = |store: &Store| assert!(store.engine.get(&[7]).expect("it was deleted").is_none());
    delete(&store, 7);
    is_gone(&store);
    flush(&store);
    is_gone(&store);
    is_gone(&reopened(store, options()));
}

/// A version that a snapshot sees is kept, and so is what hides it from everybody else.
fn a_snapshot_keeps_what_hides_its_versions() {
    let store = on_flash(options());
    let snapshot = store.engine.snapshot().expect("open");
    delete(&store, 7);
    flush(&store);
    check(&store, without(7));
    check_at(&store, &snapshot, |_| 1);
    drop(snapshot);
    store.engine.compact().expect("room");
    assert_eq!(on_tables(&store), 0);
    check(&store, without(7));
}

/// A merge with one table of the next level forgets only what was deleted of its keys.
fn what_was_deleted_outside_of_a_merge_stays_so() {
    let store = in_second_level();
    (0..KEYS).step_by(10).for_each(|key| delete(&store, key));
    flush(&store);
    let levels = store.part().read().tables.clone();
    let (above, below) = (levels.first().tables()[0].clone(), levels.level(2).tables()[0].clone());
    let plan = Plan::down(&levels, &above, 2, false).part(&levels, below.smallest());
    let part = store.part();
    let migration = part.migration.lock();
    store.core().migrate(&part, &plan, Victims::None, false).expect("room");
    drop(migration);
    check(&store, |key| u8::from(key % 10 != 0));
}

/// What the first level says of a key hides what the second has.
fn a_delete_on_flash_hides_what_is_below() {
    let store = in_second_level();
    delete(&store, 7);
    flush(&store);
    assert_eq!(on_tables(&store), 1);
    check(&store, without(7));
}

/// A table that hides nothing any more is rewritten, though it overlaps none of the next level.
fn what_hides_nothing_is_not_moved_down() {
    let store = Store::new(POOL, Options { levels: Some(2), ..options() });
    put(&store, 0..10, 1);
    flush(&store);
    let snapshot = store.engine.snapshot().expect("open");
    delete(&store, 7);
    flush(&store);
    assert_eq!(on_tables(&store), 1);
    drop(snapshot);
    while store.core().descend(Down::Any).expect("room").is_some() {}
    assert_eq!(on_tables(&store), 0);
    check(&store, |key| u8::from(key < 10 && key != 7));
}

/// A value that was just read of a table, or that a merge has met, is not copied if it was removed meanwhile.
fn what_was_removed_is_not_promoted() {
    for by_range in [false, true] {
        let store = on_flash(options());
        let (part, then) = (store.part(), store.part().read().tables.clone());
        let table = then.first().find(&[7]).expect("a table").clone();
        let whole = table.table(Cause::Foreground).expect("whole");
        let found = whole.get(&[7], u64::MAX, Cause::Foreground).expect("whole").expect("there");
        if by_range {
            remove(&store, 7..8)
        } else {
            delete(&store, 7)
        }
        let value = found.value.expect("a value").to_vec();
        let promotion = Promotion { key: vec![7], seqno: found.seqno, value, level: FIRST };
        store.core().promote(&part, promotion, Some((&then, &table)));
        check(&store, without(7));
    }
}

/// A record that moves to another slot says what it said before.
fn what_says_so_can_move() {
    let store = on_flash(options());
    delete(&store, 7);
    let at = store.part().read().index.get(&[7][..]).expect("on the fast tier").at();
    assert!(store.core().move_record(at));
    check(&store, without(7));
    check(&reopened(store, options()), without(7));
}

/// A removed range hides what is older than it, and no more, until tables have been rewritten.
fn a_removed_range_hides_what_is_older() {
    let store = on_flash(Options { promotion: When::ByMigration, ..options() });
    // Some are cached.
    check(&store, |_| 1);
    put(&store, [10], 2);
    let snapshot = store.engine.snapshot().expect("open");
    remove(&store, 5..20);
    put(&store, [12], 3);
    let before = |key| if key == 10 { 2 } else { 1 };
    let after = |key| if key == 12 { 3 } else { outside(5..20)(key) };
    for _ in 0..2 {
        check(&store, after);
        check_at(&store, &snapshot, before);
        flush(&store);
    }
    drop(snapshot);
    store.engine.compact().expect("room");
    assert!(store.part().read().ranges.is_empty());
    check(&store, after);
    check(&reopened(store, options()), after);
}

/// Slots of what a range removed are freed by the next write, or by the next open.
fn an_open_removes_what_was_removed() {
    let store = Store::new(POOL, options());
    put(&store, 0..KEYS, 1);
    remove(&store, 5..20);
    check(&reopened(store, options()), outside(5..20));
}

/// A range is forgotten only when what it removed of the fast tier cannot come back.
fn a_cleaning_frees_what_was_removed_first() {
    let store = Store::new(POOL, options());
    put(&store, 0..KEYS, 1);
    remove(&store, 5..20);
    store.core().clean_ranges(&|| true).expect("room");
    assert!(store.part().read().ranges.is_empty());
    check(&reopened(store, options()), outside(5..20));
}

/// What is left of a removed range in a table that cannot be rewritten stays hidden.
fn a_range_is_kept_for_tables_that_are_left() {
    let store = on_flash(options());
    store.part().read().tables.tables().for_each(|table| table.damaged.store(true, Relaxed));
    remove(&store, 5..20);
    store.core().clean_ranges(&|| true).expect("room");
    check(&store, outside(5..20));
    check(&reopened(store, options()), outside(5..20));
}

/// The same, where other partitions have nothing left of it.
fn a_range_is_kept_for_other_partitions() {
    let options = || Options { partitions: 2, ..options() };
    let store = reopened(on_flash(options()), options());
    let parts = store.core().router.read().parts.clone();
    assert!(parts.len() == 2 && parts.iter().all(|part| part.read().tables.tables().count() > 0));
    parts[1].read().tables.tables().for_each(|table| table.damaged.store(true, Relaxed));
    remove(&store, 0..KEYS);
    store.core().clean_ranges(&|| true).expect("room");
    assert!(parts[0].read().ranges.is_empty());
    check(&store, |_| 0);
    check(&reopened(store, options()), |_| 0);
}

/// A division takes the removed ranges along.
fn a_range_outlives_a_division() {
    let store = on_flash(Options { partitions: 2, ..options() });
    assert_eq!(store.core().router.read().parts.len(), 1);
    // Tables keep what it sees.
    let snapshot = store.engine.snapshot().expect("open");
    remove(&store, 5..20);
    put(&store, KEYS..KEYS + 20, 1);
    store.core().divide_if_due();
    assert_eq!(store.core().router.read().parts.len(), 2);
    (KEYS..KEYS + 20).for_each(|key| delete(&store, key));
    check(&store, outside(5..20));
    check_at(&store, &snapshot, |_| 1);
}

/// A range that a later one covers is forgotten before what it removed is, unless a snapshot sees it and not the later one.
fn a_range_that_a_later_one_covers_is_forgotten() {
    let store = on_flash(options());
    put(&store, [10], 2);
    let before = store.engine.snapshot().expect("open");
    remove(&store, 5..20);
    let between = store.engine.snapshot().expect("open");
    let ranges_after = |removed: Range<u8>| {
        // Where there is nothing, nothing is removed.
        put(&store, [12], 3);
        remove(&store, removed);
        store.core().clean_ranges(&|| true).expect("room");
        store.part().read().ranges.len()
    };
    assert_eq!(ranges_after(5..21), 2, "one snapshot sees the first alone");
    for _ in 0..50 {
        assert_eq!(ranges_after(4..30), 2);
    }
    assert_eq!(ranges_after(4..29), 3, "it covers less than there is");
    for (snapshot, changed) in [(&before, 2), (&between, 0)] {
        let of = |key| if key == 10 { changed } else { 1 };
        let removed = if changed == 0 { 5..20 } else { 0..0 };
        check_at(&store, snapshot, |key| if removed.contains(&key) { 0 } else { of(key) });
    }
    check(&store, outside(4..30));
    drop(between);
    assert_eq!(ranges_after(4..30), 1);
    check_at(&store, &before, |key| if key == 10 { 2 } else { 1 });
    drop(before);
    check(&reopened(store, options()), outside(4..30));
}

/// A repair that goes by what it finds, without the engine, finds that keys were removed.
fn a_salvage_knows_what_was_removed() {
    let store = on_flash(options());
    delete(&store, 7);
    put(&store, 18..22, 2);
    remove(&store, 10..20);
    let Store { world, engine } = store;
    drop(engine);
    let mut found = Vec::new();
    let media = rig::media(&world, 1 << 20);
    let report = salvage(media, &mut |version| {
        found.push(version);
        Ok(())
    });
    report.expect("no faults");
    for key in 0..KEYS {
        let newest = found.iter().filter(|version| version.key == [key]).max_by_key(|version| version.seqno);
        let is_there = newest.is_some_and(|version| version.value.is_some());
        assert_eq!(is_there, key != 7 && !(10..20).contains(&key), "key {key}");
    }
}

#[test]
fn every_rule_about_tombstones_is_needed() {
    let tests: [(&str, fn()); 19] = [
        ("a delete", a_delete_hides_what_flash_has),
        ("a second delete", a_second_delete_writes_nothing),
        ("a delete while keys move", a_delete_beside_a_migration_is_kept),
        ("a delete while keys move, at its end", a_delete_beside_a_migration_outlives_it),
        ("a lost record", a_delete_hides_what_cannot_be_read),
        ("a snapshot", a_snapshot_keeps_what_hides_its_versions),
        ("outside of a merge", what_was_deleted_outside_of_a_merge_stays_so),
        ("on flash", a_delete_on_flash_hides_what_is_below),
        ("nothing to hide", what_hides_nothing_is_not_moved_down),
        ("a promotion", what_was_removed_is_not_promoted),
        ("another slot", what_says_so_can_move),
        ("a range", a_removed_range_hides_what_is_older),
        ("a range, and an open", an_open_removes_what_was_removed),
        ("a range, and what is freed first", a_cleaning_frees_what_was_removed_first),
        ("a range, and a table that is left", a_range_is_kept_for_tables_that_are_left),
        ("a range, and partitions", a_range_is_kept_for_other_partitions),
        ("a range, and a division", a_range_outlives_a_division),
        ("a range, and a later one", a_range_that_a_later_one_covers_is_forgotten),
        ("a salvage", a_salvage_knows_what_was_removed),
    ];
    rig::every_rule_is_needed("tombstone", 37, &tests);
}
