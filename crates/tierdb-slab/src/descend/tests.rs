//! Goal: flash that is full gives what nobody needs, and that alone is moved for it.
//! Method: small stores whose flash something else fills.

use super::*;
use crate::config::Options;
use crate::engine::SlabStore;
use crate::rig::{self, Store};
use std::ops::Range;
use tierdb_engine::{Durability, Engine};
use tierdb_sim::{SimDir, SimPool};

const POOL: u64 = 132 << 10;

fn put_all(store: &Store, version: u8) {
    for key in 0..40 {
        store.engine.put(&[key], &[version; 600], Durability::Grouped).expect("room on the fast tier");
    }
}

/// A store with one level of tables that have eight versions of each key, of which seven nobody needs any more.
fn with_replaced() -> Store {
    let store = Store::new(POOL, rig::options(POOL));
    let mut snapshots = Vec::new();
    for version in 1..=8 {
        put_all(&store, version);
        store.engine.flush().expect("room");
        snapshots.push(store.engine.snapshot().expect("open"));
    }
    store
}

fn check(store: &Store, version: u8) {
    for key in 0..40 {
        let value = store.engine.get(&[key]).expect("whole").expect("there");
        assert_eq!(&value[..], &[version; 600][..], "key {key}");
    }
    assert!(store.engine.verify().expect("open").is_clean());
}

#[test]
fn what_was_replaced_makes_room_when_flash_is_full() {
    let store = with_replaced();
    let dir = &store.core().flash.dirs()[0];
    put_all(&store, 9);
    // But for the reserve, something else has what is left.
    dir.add(dir.limit(Limit::Growth, store.core().flash.table_bytes) - dir.used());
    store.engine.flush().expect("most of what is there is not needed");
    check(&store, 9);
}

#[test]
fn a_compaction_takes_out_what_was_replaced() {
    let store = with_replaced();
    let dir = &store.core().flash.dirs()[0];
    let before = dir.used();
    store.engine.compact().expect("room");
    assert!(dir.used() < before / 2, "{} of {before} bytes", dir.used());
    check(&store, 8);
}

/// A store whose third level has version 1 of sixty keys, and the first, on a fast device, version 2 of every third of them from 20 on.
fn over_a_device() -> Store {
    let options = Options { levels: Some(3), ..rig::options(POOL) };
    let world = rig::world(POOL);
    let engine = SlabStore::create(rig::media(&world, 1 << 20), options.clone()).expect("an empty store");
    (0..60).for_each(|key| put(&engine, key, 1));
    engine.flush().expect("room");
    while engine.core().descend(Down::Any).expect("room").is_some() {}
    drop(engine);
    world.add_dir("beside");
    let media = rig::media_beside(&world, 1 << 20);
    let store = Store { engine: SlabStore::open(media, options).expect("whole"), world };
    (0..60).filter(|key| version_of(*key) == 2).for_each(|key| put(&store.engine, key, 2));
    store.engine.flush().expect("room");
    let levels = store.part().read().tables.clone();
    let tables = [1, 2, 3].map(|level| levels.level(level).tables().len());
    assert!(levels.first().tables().iter().all(|table| table.is_fast()));
    assert!(tables[0] > 0 && tables[1] == 0 && tables[2] > 2, "{tables:?}");
    store
}

/// The newest version of `key`.
fn version_of(key: u8) -> u8 {
    if key >= 20 && (key - 20).is_multiple_of(3) { 2 } else { 1 }
}

fn put(engine: &SlabStore<SimPool, SimDir>, key: u8, version: u8) {
    engine.put(&[key], &[version; 600], Durability::Grouped).expect("room");
}

/// Something else takes what flash has, but for `left` bytes of what may be filled up to `limit`.
fn fill_flash(store: &Store, limit: Limit, left: u64) {
    let dir = &store.core().flash.dirs()[0];
    dir.add(dir.limit(limit, store.core().flash.table_bytes) - dir.used() - left);
}

/// Keys that are removed: some of which the third level alone has versions, and some of which the first has a few, too.
const REMOVED: [Range<u8>; 2] = [0..10, 45..55];

/// Removes these keys; then the first level says so of as many more.
fn remove(store: &Store, keys: Range<u8>) {
    let (before, count) = (removed_in_first(store), keys.len() as u64);
    keys.for_each(|key| store.engine.delete(&[key], Durability::Grouped).expect("room"));
    store.engine.flush().expect("the device has room");
    assert_eq!(removed_in_first(store), before + count);
}

fn removed_in_first(store: &Store) -> u64 {
    tombstones(&store.part().read().tables, FIRST)
}

fn keys_of(store: &Store, level: Level) -> u64 {
    let levels = store.part().read().tables.clone();
    levels.level(level).tables().iter().map(|table| table.footer().keys).sum()
}

fn check_some_removed(store: &Store) {
    for key in 0..60 {
        let version = version_of(key);
        let is_there = REMOVED.iter().all(|keys| !keys.contains(&key));
        let value = store.engine.get(&[key]).expect("whole");
        assert_eq!(value.as_deref(), is_there.then_some(&[version; 600][..]), "key {key}");
    }
    assert!(store.engine.verify().expect("open").is_clean());
}

/// Sweeps until nothing is to be gained.
fn sweep_all(store: &Store, which: Down) -> u64 {
    let mut sweeps = 0;
    while store.core().descend(which).expect("room").is_some() {
        sweeps += 1;
        assert!(sweeps < 100, "it does not end");
    }
    sweeps
}

#[test]
fn where_flash_is_full_only_what_was_removed_leaves_the_device() {
    for (limit, left) in [(Limit::Growth, 0), (Limit::Shrink, 37 << 10)] {
        let store = over_a_device();
        fill_flash(&store, limit, left);
        REMOVED.into_iter().for_each(|keys| remove(&store, keys));
        let dir = &store.core().flash.dirs()[0];
        let (before, of_first) = (dir.used(), keys_of(&store, FIRST));
        assert!(sweep_all(&store, Down::Removed) > 0);
        // What nothing is below is not written to the level between.
        assert_eq!((removed_in_first(&store), keys_of(&store, 2)), (0, 0));
        assert_eq!(keys_of(&store, FIRST), of_first - 20);
        assert!(dir.used() < before, "{} of {before} bytes", dir.used());
        check_some_removed(&store);
        sweep_all(&store, Down::Any);
        // All that was replaced is gone, too.
        assert_eq!(keys_of(&store, FIRST) + keys_of(&store, 3), 40);
        assert_eq!(sweep_all(&store, Down::TooLarge), 0);
        check_some_removed(&store);
    }
}

#[test]
fn what_a_snapshot_sees_of_the_removed_stays_on_the_device_with_what_says_so() {
    let store = over_a_device();
    let [before, after] = REMOVED;
    remove(&store, before.clone());
    let snapshot = store.engine.snapshot().expect("open");
    fill_flash(&store, Limit::Growth, 0);
    remove(&store, after);
    let dir = &store.core().flash.dirs()[0];
    let (used, on_device) = (dir.used(), store.core().flash.fast_dirs()[0].used());
    assert!(sweep_all(&store, Down::Removed) > 0, "for what was removed before");
    assert_eq!(removed_in_first(&store), 10);
    assert!(dir.used() < used);
    assert!(store.core().flash.fast_dirs()[0].used() <= on_device, "nothing comes up");
    for key in 0..60 {
        let value = store.engine.get_at(&[key], &snapshot).expect("whole");
        let is_there = !before.contains(&key);
        assert_eq!(value.as_deref(), is_there.then_some(&[version_of(key); 600][..]), "key {key}");
    }
    drop(snapshot);
    check_some_removed(&store);
    sweep_all(&store, Down::Removed);
    assert_eq!(removed_in_first(&store), 0);
    check_some_removed(&store);
}

#[test]
fn every_rule_of_a_sweep_is_needed() {
    let tests: [(&str, fn()); 2] = [
        ("full", where_flash_is_full_only_what_was_removed_leaves_the_device),
        ("a snapshot", what_a_snapshot_sees_of_the_removed_stays_on_the_device_with_what_says_so),
    ];
    rig::every_rule_is_needed("sweep", 4, &tests);
}
