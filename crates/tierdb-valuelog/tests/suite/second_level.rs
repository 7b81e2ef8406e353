//! Goal: what the value cache gives up is read from the fast tier instead of flash, and is never another value than the
//! newest, however records are replaced, moved and collected meanwhile.
//! Method: random operations on a store whose values do not fit its memory, beside a map. The same on a pool that is
//! DRAM already, which has no second level. And a read that a close overtakes, which writes nothing to a pool that may be another's by then.

use crate::figure;
use crate::rig::Sizes;
use std::collections::BTreeMap;
use std::time::Duration;
use tierdb_engine::Durability;
use tierdb_engine::conformance::harm::{LogPlace, Rig};
use tierdb_sim::{FaultKind, FaultPlan, Ops};
use tierdb_valuelog::Background;

const KEYS: u64 = 1200;
const OPERATIONS: u64 = 30_000;

fn value(key: u64, version: u64) -> Vec<u8> {
    let len = 40 + (key * 7 + version * 13) % 2500;
    let mut value = format!("{key}.{version}.").into_bytes();
    value.resize(len as usize, version as u8);
    value
}

/// Runs the operations, and returns how many reads the second level served, and how many flash.
fn run(log: Option<LogPlace>) -> (u64, u64) {
    let sizes = Sizes { memory: 1 << 20, pool: 2 << 20, flash: vec![6 << 20], ..Sizes::tiny() };
    let sizes = Sizes { ring: 64 << 10, chunk: 64 << 10, background: Background::Inline, ..sizes };
    let rig = Rig::new(sizes, log);
    let engine = rig.open(&rig.empty_world()).expect("a new store");
    let mut rng = fastrand::Rng::with_seed(5);
    let mut model = BTreeMap::<u64, u64>::new();
    for version in 0..OPERATIONS {
        // Small numbers more often.
        let key = rng.u64(..KEYS).min(rng.u64(..KEYS));
        let name = format!("key{key:05}");
        match rng.u32(..100) {
            0..12 => {
                engine.put(name.as_bytes(), &value(key, version), Durability::Durable).expect("room");
                model.insert(key, version);
            }
            12 => {
                engine.delete(name.as_bytes(), Durability::Durable).expect("room");
                model.remove(&key);
            }
            13 if version % 64 == 0 => engine.compact().expect("room"),
            13..20 => engine.flush().expect("room"),
            _ => {
                let found = engine.get(name.as_bytes()).expect("no faults");
                let wanted = model.get(&key).map(|version| value(key, *version));
                assert!(found.as_deref() == wanted.as_deref(), "{name}, operation {version}");
            }
        }
    }
    assert!(figure(&*engine, "collected_records") > 0, "records move");
    (figure(&*engine, "second_level_hits"), figure(&*engine, "flash_reads"))
}

#[test]
fn what_the_cache_gives_up_is_read_from_the_fast_tier() {
    let (kept, read) = run(None);
    assert!(kept > 1000, "{kept} reads from the second level, {read} from flash");
    let (none, all) = run(Some(LogPlace::FastTier));
    assert!(none == 0 && all > read + kept / 2, "{all} reads from flash, and {none}, without a second level");
}

/// What leaves the write buffer is read from the fast tier as long as that has room, also when it was moved on flash, and makes room when it is replaced.
#[test]
fn small_values_stay_on_the_fast_tier_while_it_has_room() {
    const SMALL: u64 = 20_000;
    let sizes = Sizes { memory: 1 << 20, pool: 5 << 20, flash: vec![64 << 20], ..Sizes::roomy() };
    let rig = Rig::new(Sizes { background: Background::Inline, ..sizes }, None);
    let engine = &*rig.open(&rig.empty_world()).expect("a new store");
    let name = |number: u64| format!("a key of some length, number {number:06}");
    let put = |number: u64, version: u64| {
        let value = format!("{version} of {number}");
        engine.put(name(number).as_bytes(), value.as_bytes(), Durability::Grouped).expect("room");
    };
    (0..SMALL).for_each(|number| put(number, 0));
    // Each of them takes the place of another one's copy many times over.
    for version in 1..40 {
        (0..SMALL / 10).for_each(|number| put(number * 10, version));
        engine.flush().expect("room");
    }
    engine.compact().expect("room");
    assert!(figure(engine, "collected_records") > SMALL / 2, "records move");
    for number in 0..SMALL {
        let version = if number % 10 == 0 { 39 } else { 0 };
        let found = engine.get(name(number).as_bytes()).expect("no faults").expect("it was put");
        assert_eq!(*found, *format!("{version} of {number}").as_bytes());
    }
    let (kept, read) = (figure(engine, "second_level_hits"), figure(engine, "flash_reads"));
    assert!(kept > SMALL * 3 / 4 && read < SMALL / 200, "{kept} and {read} reads of {SMALL}");
}

/// A read of flash ends after the store was closed.
#[test]
fn a_read_that_ends_after_the_close_writes_nothing() {
    let sizes = Sizes { memory: 1 << 20, pool: 2 << 20, flash: vec![6 << 20], ..Sizes::tiny() };
    let rig = Rig::new(Sizes { background: Background::Inline, ..sizes }, None);
    let world = rig.empty_world();
    let pool = || world.peek("pool", 0, 2 << 20);
    for closes in [false, true] {
        let engine = rig.open(&world).expect("a store");
        engine.put(b"key", &value(1, 1), Durability::Durable).expect("room");
        engine.flush().expect("room");
        // What the write buffer gave up is in the second level now, of which an open has nothing.
        drop(engine);
        let engine = rig.open(&world).expect("it opens");
        let stall = FaultKind::Stall(Duration::from_millis(200));
        world.inject(FaultPlan::nth(1, stall).on(Ops::READ).in_dir("flash0"));
        let mut before = pool();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| engine.get(b"key"));
            while world.faults().hit == 0 {
                std::thread::yield_now();
            }
            if closes {
                engine.close().expect("it closes");
                before = pool();
            }
            let found = reader.join().expect("it ends").expect("whole");
            assert_eq!(found.as_deref(), Some(&value(1, 1)[..]));
            assert_eq!(pool() == before, closes, "closed: {closes}");
        });
    }
}
