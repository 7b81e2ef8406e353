//! Goal: what is read in the write buffer, by key or by a scan of some hundred, or takes the place of a cached value, is not read from flash afterwards; and a key
//! that is only written is not cached for ever.
//! Method: some hundred keys whose values fit the cache, in a store whose cache has no second level; after each flush every value that was in the
//! write buffer is on flash, and how many reads go there is counted.

use crate::figure;
use crate::rig::Sizes;
use std::ops::Bound;
use tierdb_engine::conformance::harm::{LogPlace, Rig};
use tierdb_engine::{Durability, Engine, KeyRange};
use tierdb_valuelog::Background;

const KEYS: u32 = 200;
/// More than any two blocks have of their values.
const TOGETHER: u64 = 22;

fn rig() -> Rig<Sizes> {
    // Its memory has the pool, too.
    let sizes = Sizes { background: Background::Inline, ..Sizes::roomy() };
    Rig::new(Sizes { memory: sizes.memory + sizes.pool, ..sizes }, Some(LogPlace::FastTier))
}

fn write_all(engine: &dyn Engine, version: u32) {
    for key in 0..KEYS {
        let value = [key, version].map(u32::to_le_bytes).as_flattened().repeat(40);
        engine.put(&key.to_be_bytes(), &value, Durability::Grouped).expect("room");
    }
}

/// Reads every `step`th key, and returns how many reads went to flash.
fn read(engine: &dyn Engine, version: u32, step: usize) -> u64 {
    let before = figure(engine, "flash_reads");
    for key in (0..KEYS).step_by(step) {
        let found = engine.get(&key.to_be_bytes()).expect("no faults").expect("it was written");
        assert_eq!(found[..8], *[key, version].map(u32::to_le_bytes).as_flattened());
    }
    figure(engine, "flash_reads") - before
}

#[test]
fn what_is_read_in_the_write_buffer_is_cached_as_it_leaves() {
    let rig = rig();
    let engine = &*rig.open(&rig.empty_world()).expect("a new store");
    let all = u64::from(KEYS);

    write_all(engine, 0);
    assert_eq!(read(engine, 0, 2), 0, "all are in the write buffer");
    engine.flush().expect("room");
    assert_eq!(figure(engine, "cached_by_reclaim"), all / 2, "those that were read");
    let reads = read(engine, 0, 1);
    assert!((all / 2 / TOGETHER..all / 4).contains(&reads), "{reads}: the others, some at once");

    write_all(engine, 1);
    engine.flush().expect("room");
    let cached = figure(engine, "cached_by_reclaim") - all / 2;
    assert!(cached > all * 4 / 5, "all were cached before: {cached}");
    assert!(read(engine, 1, 1) <= all - cached);

    for version in 2..80 {
        write_all(engine, version);
        engine.flush().expect("room");
    }
    let before = figure(engine, "cached_by_reclaim");
    write_all(engine, 80);
    engine.flush().expect("room");
    let cached = figure(engine, "cached_by_reclaim") - before;
    assert!(cached < all / 10, "{cached} of {all}, none of which was read for 80 writes");
    assert!(read(engine, 80, 1) >= all / TOGETHER);
}

/// Scans `count` of the keys from `first` on, of which there are 800 in the write buffer, and returns how many were cached as they left it.
fn cached_by_scan(engine: &dyn Engine, first: u32, count: usize) -> u64 {
    let before = figure(engine, "cached_by_reclaim");
    let keys = first..first + 800;
    for key in keys.clone() {
        engine.put(&key.to_be_bytes(), &[key as u8; 100], Durability::Grouped).expect("room");
    }
    let range = KeyRange {
        start: Bound::Included(keys.start.to_be_bytes().to_vec()),
        end: Bound::Excluded(keys.end.to_be_bytes().to_vec()),
    };
    let mut cursor = engine.cursor(range, None).expect("a cursor");
    for key in keys.take(count) {
        let (found, value) = cursor.next().expect("no faults").expect("it was written");
        assert_eq!((found, &value[..]), (key.to_be_bytes().to_vec(), &[key as u8; 100][..]));
    }
    drop(cursor);
    assert_eq!(figure(engine, "cached_by_reclaim"), before, "all are in the write buffer");
    engine.flush().expect("room");
    figure(engine, "cached_by_reclaim") - before
}

#[test]
fn what_a_scan_finds_in_the_write_buffer_is_cached_unless_the_scan_is_long() {
    let rig = rig();
    let engine = &*rig.open(&rig.empty_world()).expect("a new store");
    let few = cached_by_scan(engine, 0, 50);
    assert!((50..100).contains(&few), "{few}, and a window of them is looked for at a time");
    let flash_reads = figure(engine, "flash_reads");
    assert_eq!(engine.get(&49u32.to_be_bytes()).expect("no faults").as_deref(), Some(&[49; 100][..]));
    assert_eq!(figure(engine, "flash_reads"), flash_reads, "it is cached");

    let some = cached_by_scan(engine, 1000, 800);
    assert!((256..400).contains(&some), "{some} of 800: the first ones");
}

/// What is read of flash has neighbours. A cache that has room takes all that are live, a full one takes what was asked for.
#[test]
fn what_is_read_with_a_value_is_cached_while_there_is_room() {
    let reads_beside = |others: u32| {
        let rig = rig();
        let engine = &*rig.open(&rig.empty_world()).expect("a new store");
        for key in KEYS..KEYS + others {
            engine.put(&key.to_be_bytes(), &[1; 2000], Durability::Grouped).expect("room");
        }
        engine.flush().expect("room");
        (KEYS..KEYS + others).for_each(|key| _ = engine.get(&key.to_be_bytes()).expect("whole"));

        for key in 0..KEYS {
            engine.put(&key.to_be_bytes(), &[key as u8; 100], Durability::Grouped).expect("room");
        }
        engine.flush().expect("room");
        let before = figure(engine, "flash_reads");
        let deleted = |key: u32| key.is_multiple_of(10);
        let remove = |key: u32| engine.delete(&key.to_be_bytes(), Durability::Grouped).expect("room");
        (0..KEYS).filter(|key| deleted(*key)).for_each(remove);
        for key in 0..KEYS {
            let found = engine.get(&key.to_be_bytes()).expect("no faults");
            assert_eq!(found.as_deref(), (!deleted(key)).then_some(&[key as u8; 100][..]), "{key}");
        }
        figure(engine, "flash_reads") - before
    };
    let few = reads_beside(0);
    assert!((6..20).contains(&few), "{few} reads of 180 records, of which a block has 25");
    let all = reads_beside(9000);
    assert!(all > 150, "{all} reads of 180 records, with a cache that is full");
}
