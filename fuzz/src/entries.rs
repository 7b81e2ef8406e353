//! What is written to the stores of both engines, and how it is used again.

use std::ops::Bound;
use std::sync::{Arc, Mutex};
use tierdb_base::{FailureLatch, Result};
use tierdb_device::Meter;
use tierdb_engine::{Durability, Engine, KeyRange, Media, TierDir, WriteBatch};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::{SimDir, World};

/// Seeds the checksums of every store here.
pub const SEED: u64 = 0x7469_6572;
/// Most states of one store: an input names one with a byte.
const STATES: usize = 48;

/// What a store is given: a pool, and so many bytes of flash in the directory `flash` of a world.
pub fn media<P: Pool>(pool: P, latch: FailureLatch, world: &World, flash: u64) -> Media<P, SimDir> {
    Media {
        pool: pool.into(),
        fast_meter: Meter::new(),
        fast_dirs: Vec::new(),
        flash: vec![TierDir {
            dir: world.dir("flash"),
            capacity: flash,
            meter: Meter::new(),
            emulation: None,
        }],
        seed: SEED,
        latch,
        mode: "simulated".into(),
    }
}

/// Creates a logged pool in the directory `fast` of a world.
pub fn create_pool(world: &World, options: LoggedOptions, latch: FailureLatch) -> LoggedPool<SimDir> {
    LoggedPool::create(world.dir("fast"), options, SEED, latch, Meter::new(), None)
        .expect("a pool is created")
}

/// Opens it.
pub fn open_pool(world: &World, options: LoggedOptions, latch: FailureLatch) -> Result<LoggedPool<SimDir>> {
    LoggedPool::open(world.dir("fast"), options, SEED, latch, Meter::new(), None)
}

fn key(number: usize) -> Vec<u8> {
    match number % 8 {
        3 => format!("long{number:03}-{}", "k".repeat(280)).into_bytes(),
        5 | 6 => format!("{}-{number:03}", "wide".repeat(45)).into_bytes(),
        7 => format!("m{number:03}-{}", "m".repeat(240)).into_bytes(),
        _ => format!("key{number:03}").into_bytes(),
    }
}

fn value(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number) as u8).collect()
}

/// Fills a store: keys of every sort, short and long values, on the fast tier, on flash and in parts, deletes, removed
/// ranges and batches. `at_once` is given what changes several keys at once.
pub fn fill(engine: &dyn Engine, at_once: impl FnOnce(&mut dyn FnMut())) {
    let put = |number: usize, len: usize| {
        engine
            .put(&key(number), &value(number, len), Durability::Durable)
            .expect("a whole store takes a put");
    };
    for number in 0..40 {
        put(number, [0, 3000, 700, 40, 120, 200][number % 6]);
    }
    put(100, 19_000);
    engine.flush().expect("room on flash");
    for number in [1, 4, 11, 14, 29] {
        engine.delete(&key(number), Durability::Durable).expect("a whole store takes a delete");
    }
    put(100, 18_000);
    for number in (0..40).step_by(3) {
        put(number, 90);
    }
    let mut batch = WriteBatch::new();
    for number in [2, 7, 13, 62] {
        batch.put(key(number), value(number, 50)).expect("a small batch");
    }
    batch.delete(key(16)).expect("a small batch");
    at_once(&mut || {
        engine.write(&batch, Durability::Durable).expect("a whole store takes a batch");
        let range = KeyRange { start: Bound::Included(key(32)), end: Bound::Included(key(34)) };
        engine.delete_range(&range, Durability::Durable).expect("a whole store takes the removal of a range");
    });
}

/// Fills the store of `engine`, and returns it as it was at the events while several keys changed at once.
pub fn fill_and_watch(world: &World, engine: &dyn Engine) -> Vec<World> {
    let during = Arc::new(Mutex::new(Vec::new()));
    fill(engine, |write| {
        let seen = during.clone();
        world.on_event(Some(Arc::new(move |world, _| seen.lock().expect("one thread").push(world.copy()))));
        write();
        world.on_event(None);
    });
    let worlds = std::mem::take(&mut *during.lock().expect("one thread"));
    let every = worlds.len().div_ceil(STATES).max(1);
    worlds.into_iter().step_by(every).collect()
}

/// The most entries that a store of this size could hold: a scan that gives more does not end.
const MOST: usize = 10_000;

/// Reads all there is, in every way.
fn read(engine: &dyn Engine) {
    for number in (0..64).chain([100]) {
        let _ = engine.get(&key(number));
    }
    let _ = engine.verify();
    for reverse in [false, true] {
        let Ok(mut cursor) = engine.cursor(KeyRange::all(), None) else { continue };
        let mut count = 0;
        while let Ok(Some(_)) = if reverse { cursor.prev() } else { cursor.next() } {
            count += 1;
            assert!(count < MOST, "the scan does not end");
        }
    }
}

/// Writes over some of it, and has the engine move the rest.
fn change(engine: &dyn Engine) {
    for number in (0..70).step_by(7) {
        let _ = engine.put(&key(number), &value(number, 300), Durability::Durable);
    }
    let _ = engine.delete(&key(100), Durability::Durable);
    let _ = engine.flush();
    let _ = engine.compact();
}

/// Reads all of a store that opens, writes to it, closes it, and reads what another open finds.
pub fn open_and_use<E: Engine>(open: impl Fn() -> Result<E>) {
    for write in [true, false] {
        let Ok(engine) = open() else { return };
        read(&engine);
        if write {
            change(&engine);
            let _ = engine.close();
        }
    }
}
