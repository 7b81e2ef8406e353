//! Goal: snapshots keep what they see, and nothing else, however long some snapshot is open: neither values that were
//! written and replaced since, nor keys that were deleted before.
//! Method: stores that are too small for anything more, and random operations beside a map for each snapshot.

use crate::figure;
use crate::rig::Sizes;
use std::collections::BTreeMap;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Cursor, Durability, Engine, KeyRange, Snapshot, WriteBatch};
use tierdb_valuelog::Background;

fn open(sizes: Sizes) -> Box<dyn Engine> {
    let rig = Rig::new(sizes, None);
    rig.open(&rig.empty_world()).expect("a new store")
}

fn get_at(engine: &dyn Engine, key: &[u8], snapshot: &Snapshot) -> Option<Vec<u8>> {
    engine.get_at(key, snapshot).expect("whole").map(|value| value.to_vec())
}

fn memory(engine: &dyn Engine, name: &str) -> u64 {
    engine.stats().memory.into_iter().find(|(part, _)| *part == name).expect("it is counted").1
}

#[test]
fn values_that_no_snapshot_sees_take_no_space() {
    let engine = &*open(Sizes::tiny());
    let write = |byte: u8| {
        engine.put(b"key", &[byte; 900], Durability::Durable).expect("256 KiB have room for a few values");
        let mut batch = WriteBatch::new();
        batch.put(b"batched", [byte; 900]).expect("a small batch");
        engine.write(&batch, Durability::Durable).expect("256 KiB have room for a few values");
    };
    write(1);
    let first = engine.snapshot().expect("open");
    let at_first = memory(engine, "snapshot versions");
    for round in 0..600 {
        // Snapshots that are opened after the first, and closed before it.
        let snapshot = (round % 2 == 0).then(|| engine.snapshot().expect("open"));
        (2..5).for_each(write);
        if let Some(snapshot) = snapshot {
            let seen = if round == 0 { 1 } else { 4 };
            assert_eq!(get_at(engine, b"key", &snapshot), Some(vec![seen; 900]));
        }
    }
    for key in [&b"key"[..], b"batched"] {
        assert_eq!(get_at(engine, key, &first), Some(vec![1; 900]));
    }
    let kept = memory(engine, "snapshot versions") - at_first;
    assert!(kept < 1024, "{kept} bytes for two values");
}

/// There is always a snapshot open, and none for long.
#[test]
fn deleted_keys_leave_while_newer_snapshots_are_open() {
    let engine = &*open(Sizes { flash: vec![1 << 20], ..Sizes::tiny() });
    let key = |number: u32| format!("{number:0>60}").into_bytes();
    let mut open = engine.snapshot().expect("open");
    for first in (0..30_000).step_by(100) {
        for number in first..first + 100 {
            engine.put(&key(number), b"value", Durability::Durable).expect("256 KiB have room for 200 keys");
        }
        let next = engine.snapshot().expect("open");
        for number in first..first + 100 {
            engine.delete(&key(number), Durability::Durable).expect("deletes need no room");
        }
        assert!(get_at(engine, &key(first), &open).is_none());
        assert_eq!(get_at(engine, &key(first), &next).as_deref(), Some(&b"value"[..]));
        open = next;
    }
    drop(open);
    assert_eq!(engine.stats().keys, 0);
    assert!(engine.verify().expect("verifies").is_clean());
}

/// Keys that were put and deleted since are of no interest to a snapshot, however old it is.
#[test]
fn keys_that_no_snapshot_sees_leave_at_once() {
    let engine = &*open(Sizes { flash: vec![1 << 20], ..Sizes::tiny() });
    let key = |number: u32| format!("{number:0>60}").into_bytes();
    engine.put(b"key", b"value", Durability::Durable).expect("room");
    let snapshot = engine.snapshot().expect("open");
    for number in 0..20_000 {
        engine.put(&key(number), b"value", Durability::Durable).expect("256 KiB have room for one key");
        engine.delete(&key(number), Durability::Durable).expect("deletes need no room");
    }
    let mut cursor = engine.cursor(KeyRange::all(), Some(&snapshot)).expect("open");
    let (found, value) = cursor.next().expect("whole").expect("one key is there");
    assert_eq!((&found[..], &value[..]), (&b"key"[..], &b"value"[..]));
    assert!(cursor.next().expect("whole").is_none());
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A cursor, and what it is to find yet.
struct Walk<'e> {
    cursor: Box<dyn Cursor + 'e>,
    left: Vec<(Vec<u8>, Vec<u8>)>,
    reverse: bool,
}

impl Walk<'_> {
    /// `false` at the end.
    fn step(&mut self) -> bool {
        let found = if self.reverse { self.cursor.prev() } else { self.cursor.next() }.expect("whole");
        let wanted = self.left.pop();
        let found = found.map(|(key, value)| (key, value.to_vec()));
        assert!(found == wanted, "{:?}, wanted {:?}", found.map(|f| f.0), wanted.map(|w| w.0));
        found.is_some()
    }
}

fn value(rng: &mut fastrand::Rng, number: u32) -> Vec<u8> {
    // Some go straight to flash, and some are kept in parts.
    let len = match rng.u32(..20) {
        0 => rng.usize(9000..20_000),
        1 | 2 => rng.usize(4000..8000),
        _ => rng.usize(8..600),
    };
    let mut value = number.to_le_bytes().to_vec();
    value.resize(len, number as u8);
    value
}

/// Few keys of many, so that entries go from one key to another while cursors hold them.
fn random_operations(seed: u64) {
    let sizes = Sizes { flash: vec![4 << 20], pool: 512 << 10, ..Sizes::tiny() };
    let rig = Rig::new(sizes, None);
    let world = rig.empty_world();
    let store = rig.open(&world).expect("a new store");
    let engine = &*store;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = Model::new();
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    let mut walks: Vec<Walk<'_>> = Vec::new();
    let key = |rng: &mut fastrand::Rng| format!("key{:04}", rng.u32(..300)).into_bytes();
    for number in 0..12_000 {
        match rng.u32(..100) {
            0..30 => {
                let (key, value) = (key(&mut rng), value(&mut rng, number));
                engine.put(&key, &value, Durability::Durable).expect("room");
                model.insert(key, value);
            }
            30..60 => {
                // Mostly one that is there.
                let from = key(&mut rng);
                let key = model.range(from.clone()..).next().map_or(from, |(key, _)| key.clone());
                engine.delete(&key, Durability::Durable).expect("deletes need no room");
                model.remove(&key);
            }
            60..66 => {
                let mut batch = WriteBatch::new();
                for _ in 0..rng.u32(1..6) {
                    let key = key(&mut rng);
                    if rng.bool() {
                        let value = value(&mut rng, number);
                        batch.put(key.clone(), value.clone()).expect("a small batch");
                        model.insert(key, value);
                    } else {
                        batch.delete(key.clone()).expect("a small batch");
                        model.remove(&key);
                    }
                }
                engine.write(&batch, Durability::Durable).expect("room");
            }
            66..70 if snapshots.len() < 5 => {
                snapshots.push((engine.snapshot().expect("open"), model.clone()));
            }
            70..74 if !snapshots.is_empty() => {
                snapshots.swap_remove(rng.usize(..snapshots.len()));
            }
            74..77 if walks.len() < 3 => {
                let older =
                    (!snapshots.is_empty() && rng.bool()).then(|| &snapshots[rng.usize(..snapshots.len())]);
                let cursor =
                    engine.cursor(KeyRange::all(), older.map(|(snapshot, _)| snapshot)).expect("open");
                let mut left: Vec<_> = older.map_or(&model, |(_, then)| then).clone().into_iter().collect();
                let reverse = rng.bool();
                if !reverse {
                    left.reverse();
                }
                walks.push(Walk { cursor, left, reverse });
            }
            77..90 if !walks.is_empty() => {
                let at = rng.usize(..walks.len());
                if !(0..rng.u32(1..8)).all(|_| walks[at].step()) {
                    walks.swap_remove(at);
                }
            }
            90 => engine.flush().expect("room"),
            91 if number % 8 == 0 => engine.compact().expect("room"),
            _ => {
                let key = key(&mut rng);
                let now = engine.get(&key).expect("whole").map(|value| value.to_vec());
                assert!(now == model.get(&key).cloned(), "{key:?} now, operation {number}");
                for (snapshot, then) in &snapshots {
                    let found = get_at(engine, &key, snapshot);
                    assert!(
                        found == then.get(&key).cloned(),
                        "{key:?} at {}, operation {number}",
                        snapshot.seqno()
                    );
                }
            }
        }
    }
    walks.into_iter().for_each(|mut walk| while walk.step() {});
    for (snapshot, then) in snapshots {
        let cursor = engine.cursor(KeyRange::all(), Some(&snapshot)).expect("open");
        let left = then.into_iter().rev().collect();
        let mut walk = Walk { cursor, left, reverse: false };
        while walk.step() {}
    }
    assert!(engine.verify().expect("verifies").is_clean());
    assert_eq!(engine.stats().keys, model.len() as u64);
    engine.close().expect("closes");
    drop(store);
    let engine = rig.open(&world).expect("opens");
    assert_eq!(figure(&*engine, "opened_from_image"), 1, "nothing was left of the snapshots");
    let cursor = engine.cursor(KeyRange::all(), None).expect("open");
    let mut walk = Walk { cursor, left: model.into_iter().rev().collect(), reverse: false };
    while walk.step() {}
}

#[test]
fn snapshots_and_cursors_see_what_was_there() {
    (0..4).for_each(random_operations);
}

/// Writers overwrite, delete and put again while snapshots come and go: what one has seen once it sees to the end, and the
/// keys that are written together it sees together.
#[test]
fn snapshots_hold_still_while_others_write() {
    const PAIRS: u32 = 8;
    let sizes =
        Sizes { flash: vec![8 << 20], pool: 1 << 20, background: Background::Threads, ..Sizes::tiny() };
    let engine = &*open(sizes);
    let key = |side: &str, pair: u32| format!("{side}{pair}").into_bytes();
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(u64::from(writer));
                for _ in 0..10_000 {
                    let pair = rng.u32(..PAIRS / 2) * 2 + writer;
                    let mut batch = WriteBatch::new();
                    let deleted = rng.u32(..3) == 0;
                    let value = rng.u64(..).to_le_bytes().repeat(20);
                    for side in ["left", "right"] {
                        let key = key(side, pair);
                        let added = if deleted { batch.delete(key) } else { batch.put(key, value.clone()) };
                        added.expect("a small batch");
                    }
                    engine.write(&batch, Durability::Grouped).expect("room");
                }
            })
        });
        let mut snapshots = std::collections::VecDeque::new();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let snapshot = engine.snapshot().expect("open");
            let seen: Vec<_> = (0..PAIRS).map(|pair| get_at(engine, &key("left", pair), &snapshot)).collect();
            snapshots.push_back((snapshot, seen));
            for (snapshot, seen) in &snapshots {
                for (pair, seen) in (0..).zip(seen) {
                    let both = ["left", "right"].map(|side| get_at(engine, &key(side, pair), snapshot));
                    assert!(both.iter().all(|now| now == seen), "pair {pair} at {}", snapshot.seqno());
                }
            }
            if snapshots.len() > 3 {
                snapshots.pop_front();
            }
        }
    });
    assert!(engine.verify().expect("verifies").is_clean());
    assert!(memory(engine, "snapshot versions") < 64 << 10);
}
