//! Goal: ranges that are scanned come to lie together, so that a scan reads them with few reads; and they do so in
//! about the space that they need.
//! Method: a store whose keys were written in random order and do not fit the cache is scanned from end to end a few
//! times, a short range at a time.

use crate::figure;
use crate::rig::Sizes;
use std::ops::Bound;
use tierdb_engine::conformance::harm::{LogPlace, Rig};
use tierdb_engine::{Durability, Engine, KeyRange};

const KEYS: u32 = 8000;
const RANGE: u32 = 40;

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 900]
}

/// Scans the first `keys` keys, a range after another, and returns the reads of flash that it took.
fn scan(engine: &dyn Engine, keys: u32, reverse: bool) -> u64 {
    let reads = || {
        let flash = engine.stats().tiers.pop().expect("flash is the last");
        flash.io.iter().map(|(_, io)| io.reads).sum::<u64>()
    };
    let before = reads();
    for first in (0..keys).step_by(RANGE as usize) {
        let range = KeyRange { start: Bound::Included(key(first)), end: Bound::Excluded(key(first + RANGE)) };
        let mut cursor = engine.cursor(range, None).expect("open");
        let mut numbers: Vec<u32> = (first..first + RANGE).collect();
        if reverse {
            numbers.reverse();
        }
        for number in numbers {
            let found = if reverse { cursor.prev() } else { cursor.next() };
            let (found, bytes) = found.expect("no faults").expect("the key is there");
            assert_eq!((found, &bytes[..]), (key(number), &value(number)[..]));
        }
        drop(cursor);
        // The store has no threads: this brings the cache up to date, and rewrites what it gives up.
        engine.flush().expect("no faults");
    }
    reads() - before
}

#[test]
fn ranges_that_are_scanned_come_to_lie_together() {
    let sizes = Sizes { flash: vec![64 << 20], memory: 9 << 20, pool: 4 << 20, ..Sizes::roomy() };
    let sizes = Sizes { background: tierdb_valuelog::Background::Inline, ..sizes };
    let rig = Rig::new(sizes, Some(LogPlace::FastTier));
    let engine = rig.open(&rig.empty_world()).expect("a new store");
    let mut numbers: Vec<u32> = (0..KEYS).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut numbers);
    for number in numbers {
        engine.put(&key(number), &value(number), Durability::Durable).expect("room");
    }
    engine.flush().expect("room");
    let used = |engine: &dyn Engine| engine.stats().tiers.pop().expect("flash is the last").used;
    let at_first = used(&*engine);
    let scattered = scan(&*engine, KEYS, false);
    assert!(scattered > u64::from(KEYS) * 3 / 4, "{scattered} reads when it lies scattered");
    let reads: Vec<u64> = (1..5).map(|round| scan(&*engine, KEYS, round % 2 == 0)).collect();
    assert!(reads[3] * 8 < scattered, "{scattered} reads when it lies scattered, then {reads:?}");
    let rewritten = figure(&*engine, "rewritten_ranges");
    assert!(rewritten > u64::from(KEYS / RANGE) / 2, "{rewritten} ranges");
    assert!(used(&*engine) < 3 * at_first, "{at_first} bytes of flash at first, then {}", used(&*engine));
}

#[test]
fn what_is_scanned_again_is_cached() {
    let sizes = Sizes { background: tierdb_valuelog::Background::Inline, memory: 16 << 20, ..Sizes::roomy() };
    let rig = Rig::new(sizes, Some(LogPlace::FastTier));
    let engine = &*rig.open(&rig.empty_world()).expect("a new store");
    const SOME: u32 = 20 * RANGE;
    for number in 0..SOME {
        engine.put(&key(number), &value(number), Durability::Grouped).expect("room");
    }
    engine.flush().expect("room");
    let ranges = u64::from(SOME / RANGE);
    let [first, second, third] = [(); 3].map(|()| scan(engine, SOME, false));
    assert!(first >= ranges && second >= ranges, "{first} and {second} reads: one pass fills no cache");
    assert!(third <= ranges / 4, "{third} reads of what was read twice before");
}
