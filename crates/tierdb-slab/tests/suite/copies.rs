//! Goal: copies of what flash has come and go, and nobody notices: neither flash, which is not written for them, nor a reader, nor a crash.
//! Method: a store without an object cache, of which flash holds six times as much as the fast tier; reads and writes skewed to some keys.

use crate::rig::Sizes;
use std::time::{Duration, Instant};
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Durability, Engine, KeyRange, WriteBatch};
use tierdb_sim::World;

const KEYS: usize = 600;
const VALUE: usize = 900;
const POOL: u64 = 132 << 10;

fn rig() -> Rig<Sizes> {
    Rig::new(Sizes { memory: 1 << 10, flash: vec![8 << 20], ..Sizes::tiny() }, None)
}

fn key(number: usize) -> Vec<u8> {
    format!("key{:03}", number * 7 % KEYS).into_bytes()
}

fn figure(engine: &dyn Engine, name: &str) -> u64 {
    engine.stats().figure(name).unwrap_or_else(|| panic!("no figure {name}"))
}

/// A store whose keys are all on flash, with value 0 each.
fn loaded() -> (World, Box<dyn Engine>) {
    fastrand::seed(3);
    let world = rig().empty_world();
    let engine = rig().open(&world).expect("opens");
    for number in 0..KEYS {
        engine.put(&key(number), &[0; VALUE], Durability::Durable).expect("room");
    }
    engine.flush().expect("room");
    (world, engine)
}

/// Reads `key` until it is copied: of what is just as popular as it must be, some is, by chance.
fn read_until_copied(engine: &dyn Engine, key: &[u8]) {
    let is_copied = |_: &usize| {
        engine.get(key).expect("whole").expect("there");
        figure(engine, "copies_fast") == 1
    };
    (0..2000).find(is_copied).expect("it is copied some time");
}

/// Mostly one of the first `hot` keys.
fn pick(rng: &mut fastrand::Rng, hot: usize) -> usize {
    if rng.u8(..4) == 0 { rng.usize(..KEYS) } else { rng.usize(..hot) }
}

fn check(engine: &dyn Engine, wanted: &[u8]) {
    for (number, byte) in wanted.iter().enumerate() {
        let value = engine.get(&key(number)).expect("whole").expect("there");
        assert_eq!(&value[..], &[*byte; VALUE][..], "key {number}");
    }
    let mut cursor = engine.cursor(KeyRange::all(), None).expect("open");
    let mut keys = 0;
    while cursor.next().expect("whole").is_some() {
        keys += 1;
    }
    assert_eq!(keys, KEYS);
    assert!(engine.verify().expect("open").is_clean());
}

#[test]
fn reads_bring_copies_and_drop_them_and_write_nothing_to_flash() {
    let (world, engine) = loaded();
    let engine = &*engine;
    let mut rng = fastrand::Rng::with_seed(4);
    let written = figure(engine, "table_bytes_written");
    // What is popular changes twice. What was is dropped in the background, which may take its time.
    for hot in [0, 200, 400] {
        let promoted = figure(engine, "promoted_keys") + 40;
        let given_up = Instant::now() + Duration::from_secs(60);
        let mut turns = 0;
        while turns < 3 || figure(engine, "promoted_keys") < promoted {
            assert!(Instant::now() < given_up, "40 of 60 that are popular from {hot} on");
            turns += 1;
            for _ in 0..1000 {
                let number = (hot + pick(&mut rng, 60)) % KEYS;
                engine.get(&key(number)).expect("whole").expect("there");
            }
        }
    }
    assert!(figure(engine, "dropped_copies") >= 40);
    assert_eq!(figure(engine, "table_bytes_written"), written);
    assert_eq!(figure(engine, "copies_fast"), figure(engine, "keys_fast"));
    check(engine, &[0; KEYS]);
    let killed = rig().open(&world.capture().nothing()).expect("opens");
    check(&*killed, &[0; KEYS]);
}

#[test]
fn what_is_written_and_copied_is_as_it_was_written_last() {
    let (world, engine) = loaded();
    let engine = &*engine;
    let mut rng = fastrand::Rng::with_seed(5);
    let mut wanted = [0; KEYS];
    let met = ["cleaned_keys", "promoted_keys", "dropped_copies", "demoted_keys"];
    let all_met = || met.iter().all(|name| figure(engine, name) >= 20);
    let given_up = Instant::now() + Duration::from_secs(60);
    // All four are done in the background, which may take its time.
    for round in (0..).take_while(|round| *round < 6000 || !all_met()) {
        assert!(
            round < 6000 || Instant::now() < given_up,
            "{:?}",
            met.map(|name| (name, figure(engine, name)))
        );
        // In the end it is mostly reads, so what was written lately becomes old.
        let number = pick(&mut rng, 60);
        if rng.usize(..6000) > round % 6000 {
            wanted[number] = rng.u8(..);
            if round % 3 == 0 {
                let other = rng.usize(..KEYS);
                wanted[other] = wanted[number];
                let mut batch = WriteBatch::new();
                batch.put(key(number), [wanted[number]; VALUE]).expect("short");
                batch.put(key(other), [wanted[number]; VALUE]).expect("short");
                engine.write(&batch, Durability::Durable).expect("room");
            } else {
                engine.put(&key(number), &[wanted[number]; VALUE], Durability::Durable).expect("room");
            }
        } else {
            let value = engine.get(&key(number)).expect("whole").expect("there");
            assert_eq!(&value[..], &[wanted[number]; VALUE][..], "key {number}");
        }
    }
    let killed = rig().open(&world.capture().nothing()).expect("opens");
    check(&*killed, &wanted);
    check(engine, &wanted);
}

#[test]
fn a_snapshot_sees_what_was_copied_and_then_replaced() {
    let (_world, engine) = loaded();
    let popular = key(7);
    read_until_copied(&*engine, &popular);
    let snapshot = engine.snapshot().expect("open");
    engine.delete(&popular, Durability::Durable).expect("room");
    assert_eq!(engine.get(&popular).expect("whole"), None);
    engine.put(&popular, &[9; VALUE], Durability::Durable).expect("room");
    engine.flush().expect("room");
    for _ in 0..20 {
        let value = engine.get_at(&popular, &snapshot).expect("whole").expect("there");
        assert_eq!(&value[..], &[0; VALUE][..]);
        assert_eq!(&engine.get(&popular).expect("whole").expect("there")[..], &[9; VALUE][..]);
    }
}

/// A range tombstone that a snapshot needs stays as long as that is open. Meanwhile it concerns no key but its own.
#[test]
fn other_keys_are_copied_and_cached_while_a_removed_range_is_kept() {
    let (world, engine) = loaded();
    let snapshot = engine.snapshot().expect("open");
    let (removed, popular) = (b"key0", key(50));
    assert!(!popular.starts_with(removed) && key(0).starts_with(removed));
    engine.delete_range(&KeyRange::prefix(removed), Durability::Durable).expect("room");
    assert_eq!(engine.get(&key(0)).expect("whole"), None);
    read_until_copied(&*engine, &popular);
    assert_eq!(engine.get(&key(0)).expect("whole"), None);
    // With an object cache, which is asked before flash is.
    drop((snapshot, engine));
    let cached = Rig::new(Sizes { memory: 1 << 20, flash: vec![8 << 20], ..Sizes::tiny() }, None);
    let engine = cached.open(&world).expect("opens");
    let snapshot = engine.snapshot().expect("open");
    engine.delete_range(&KeyRange::prefix(b"key1"), Durability::Durable).expect("room");
    for _ in 0..5 {
        engine.get(&key(51)).expect("whole").expect("there");
    }
    assert!(figure(&*engine, "reads_cached") >= 1);
    drop(snapshot);
}

#[test]
fn flash_answers_for_a_damaged_copy() {
    let (world, mut engine) = loaded();
    let popular = key(7);
    read_until_copied(&*engine, &popular);
    let pool = world.peek("pool", 0, POOL as usize);
    let places = pool.windows(popular.len()).enumerate().filter(|(_, bytes)| *bytes == popular);
    for (at, _) in places {
        world.flip_bit("pool", at as u64 + 200, 3);
    }
    assert_eq!(engine.verify().expect("open").damage.len(), 1);
    assert_eq!(&engine.get(&popular).expect("flash has it").expect("there")[..], &[0; VALUE][..]);
    // Also when nothing says any more that it is a copy.
    drop(engine);
    engine = rig().open(&world).expect("opens");
    assert_eq!(&engine.get(&popular).expect("flash has it").expect("there")[..], &[0; VALUE][..]);
    let mut cursor = engine.cursor(KeyRange::prefix(&popular), None).expect("open");
    assert_eq!(cursor.next().expect("flash has it").map(|(key, _)| key), Some(popular.clone()));
    // Nobody has what was written after that.
    engine.put(&popular, &[9; VALUE], Durability::Durable).expect("room");
    let pool = world.peek("pool", 0, POOL as usize);
    for (at, _) in pool.windows(popular.len()).enumerate().filter(|(_, bytes)| *bytes == popular) {
        world.flip_bit("pool", at as u64 + 200, 3);
    }
    engine.get(&popular).expect_err("it is damaged");
}
