//! Goal: removing what range tombstones hide comes to an end, whatever snapshots open meanwhile.
//! Method: two ranges are deleted one after the other, with a snapshot in between that opens while tables are cleaned of the
//! first; as long as it is open the second cannot be cleaned away, and nothing may try to again and again.

use crate::rig::Sizes;
use std::ops::Bound;
use std::time::{Duration, Instant};
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Durability, Engine, KeyRange};

const KEYS: u32 = 1200;
const ROUNDS: u32 = 40;
/// By how much longer the snapshot waits in each round after the first range was removed: it is to open while tables are cleaned.
const LATER: Duration = Duration::from_micros(100);
/// How long tables may be rewritten until it counts as without end.
const PATIENCE: Duration = Duration::from_secs(20);

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn tables_written(engine: &dyn Engine) -> u64 {
    let flash = engine.stats().tiers.pop().expect("flash is the last");
    flash.io.iter().map(|(_, io)| io.writes).sum()
}

fn remove(engine: &dyn Engine, from: u32, to: u32) {
    let range = KeyRange { start: Bound::Included(key(from)), end: Bound::Excluded(key(to)) };
    engine.delete_range(&range, Durability::Grouped).expect("room");
}

/// Bounds may be of any length. A range tombstone that kept them whole would take all the room there is, or more.
#[test]
fn bounds_longer_than_any_key_take_the_room_of_one() {
    let rig = Rig::new(Sizes::tiny(), None);
    let world = rig.empty_world();
    let engine = rig.open(&world).expect("opens");
    for key in [&b"a"[..], &[b'b'; 4096], b"c"] {
        engine.put(key, b"value", Durability::Durable).expect("room");
    }
    engine.flush().expect("room");
    let range = KeyRange {
        start: Bound::Included(vec![b'b'; 1 << 20]),
        end: Bound::Excluded([vec![b'c'], vec![0; 1 << 20]].concat()),
    };
    assert_eq!(engine.delete_range(&range, Durability::Durable).expect("room"), 1);
    let killed = rig.open(&world.capture().nothing()).expect("opens");
    for engine in [engine, killed] {
        let has = |key: &[u8]| engine.get(key).expect("whole").is_some();
        assert!(has(b"a") && has(&[b'b'; 4096]) && !has(b"c"));
        assert!(engine.verify().expect("open").is_clean());
    }
}

#[test]
fn cleaning_ends_while_a_snapshot_is_open() {
    let sizes = Sizes { table: 16 << 10, ..Sizes::roomy() };
    for round in 0..ROUNDS {
        let rig = Rig::new(sizes.clone(), None);
        let engine: &dyn Engine = &*rig.open(&rig.empty_world()).expect("opens");
        for number in 0..KEYS {
            engine.put(&key(number), &[number as u8; 1024], Durability::Grouped).expect("room");
        }
        engine.flush().expect("room");
        remove(engine, 0, KEYS / 2);
        let removed = Instant::now();
        while removed.elapsed() < LATER * round {
            std::hint::spin_loop();
        }
        let snapshot = engine.snapshot().expect("open");
        remove(engine, KEYS / 2, KEYS);
        let start = Instant::now();
        let mut before = u64::MAX;
        while before != tables_written(engine) {
            assert!(start.elapsed() < PATIENCE, "round {round}: tables are rewritten without end");
            before = tables_written(engine);
            std::thread::sleep(Duration::from_millis(20));
        }
        let seen = engine.get_at(&key(KEYS - 1), &snapshot).expect("whole");
        assert_eq!(seen.as_deref(), Some(&[(KEYS - 1) as u8; 1024][..]), "round {round}");
        drop(snapshot);
        engine.compact().expect("room");
        assert!(engine.cursor(KeyRange::all(), None).expect("open").next().expect("whole").is_none());
        assert!(engine.verify().expect("open").is_clean());
    }
}
