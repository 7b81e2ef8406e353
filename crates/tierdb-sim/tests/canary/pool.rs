//! Index words and an append log in a pool, with atomic batches by a redo record.
//!
//! A slot's word is the offset of its record. A batch writes its records and a redo record, publishes
//! the redo record's offset in the commit word, then the slots, then clears the commit word. Recovery
//! redoes the batch that the commit word names.

use super::{Explored, Known};
use tierdb_base::{checksum, matches};
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::{Options, Oracle, explore, explore_recovery};
use tierdb_sim::{SimPool, World};

const LEN: u64 = 1 << 16;
const SLOTS: usize = 4;
const COMMIT: u64 = 1024;
const LOG: u64 = 4096;
/// Checksum, slot, value, and bytes made from the value: three lines.
pub const RECORD: usize = 192;

fn slot_at(slot: usize) -> u64 {
    slot as u64 * 64
}

fn word(bytes: &[u8], i: usize) -> u64 {
    u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("8 bytes"))
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(RECORD - 8, bytes[8] ^ 0x5a);
    let sum = checksum(0, &bytes);
    [sum.to_le_bytes().as_slice(), &bytes].concat()
}

fn record(slot: usize, value: u64) -> Vec<u8> {
    sealed([slot as u64, value].iter().flat_map(|word| word.to_le_bytes()).collect())
}

struct Store {
    pool: SimPool,
    tail: u64,
}

impl Store {
    fn read(pool: &SimPool, at: u64) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; RECORD];
        if !(LOG..=LEN - RECORD as u64).contains(&at) {
            return Err(format!("offset {at} is outside the log"));
        }
        pool.read(at, &mut bytes).map_err(|e| e.to_string())?;
        let whole = matches(word(&bytes, 0), checksum(0, &bytes[8..]));
        if whole { Ok(bytes) } else { Err(format!("the record at {at} is torn")) }
    }

    fn open(pool: SimPool) -> Result<Self, String> {
        let commit = pool.load(COMMIT);
        if commit != 0 {
            let redo = Self::read(&pool, commit)?;
            pool.publish(slot_at(word(&redo, 1) as usize), word(&redo, 2));
            pool.publish(slot_at(word(&redo, 3) as usize), word(&redo, 4));
            pool.fence();
            pool.publish(COMMIT, 0);
        }
        // The log is not reused, so its end need not be found: beyond the newest batch there is room.
        let used = (0..SLOTS).map(|slot| pool.load(slot_at(slot))).chain([commit]).max();
        let tail = used.unwrap_or(0).max(LOG - RECORD as u64) + 4 * RECORD as u64;
        Ok(Store { pool, tail })
    }

    fn values(&self) -> Result<[u64; SLOTS], String> {
        let mut values = [0; SLOTS];
        for (slot, value) in values.iter_mut().enumerate() {
            let at = self.pool.load(slot_at(slot));
            if at != 0 {
                let bytes = Self::read(&self.pool, at)?;
                if word(&bytes, 1) != slot as u64 {
                    return Err(format!("slot {slot} has the record of slot {}", word(&bytes, 1)));
                }
                *value = word(&bytes, 2);
            }
        }
        Ok(values)
    }

    fn append(&mut self, bytes: &[u8]) -> u64 {
        let at = self.tail;
        self.tail += RECORD as u64;
        self.pool.write(at, bytes);
        at
    }

    fn put(&mut self, slot: usize, value: u64) {
        let at = self.append(&record(slot, value));
        self.pool.flush(at, RECORD as u64);
        self.pool.fence();
        self.pool.publish(slot_at(slot), at);
        self.pool.fence();
    }

    /// A writer that does not wait, and a reader that makes durable what it has seen.
    fn put_and_read(&mut self, slot: usize, value: u64) {
        let at = self.append(&record(slot, value));
        self.pool.flush(at, RECORD as u64);
        self.pool.fence();
        self.pool.store(slot_at(slot), at);
        self.pool.persist_word(slot_at(slot)).expect("memory");
    }

    fn batch(&mut self, one: (usize, u64), other: (usize, u64)) {
        let first = self.append(&record(one.0, one.1));
        self.pool.flush(first, RECORD as u64);
        let second = self.append(&record(other.0, other.1));
        self.pool.flush(second, RECORD as u64);
        let redo = [one.0 as u64, first, other.0 as u64, second];
        let redo = self.append(&sealed(redo.iter().flat_map(|word| word.to_le_bytes()).collect()));
        self.pool.flush(redo, RECORD as u64);
        self.pool.fence();
        self.pool.publish(COMMIT, redo);
        self.pool.fence();
        self.pool.publish(slot_at(one.0), first);
        self.pool.publish(slot_at(other.0), second);
        self.pool.fence();
        // Certain before the next slot is published, by the fence before that.
        self.pool.publish(COMMIT, 0);
    }
}

fn script(world: &World, oracle: &Oracle<Known>) {
    let mut store = Store::open(world.pool("fast")).expect("a good store");
    for value in 1..=3 {
        let step = |known: &mut Known, writes: &[(usize, u64)]| known.in_flight = writes.to_vec();
        oracle.update(|known| step(known, &[(0, value)]));
        store.put(0, value);
        oracle.update(Known::acknowledge);
        oracle.update(|known| step(known, &[(1, value), (2, value)]));
        store.batch((1, value), (2, value));
        oracle.update(Known::acknowledge);
        oracle.update(|known| step(known, &[(2, 10 + value)]));
        store.put_and_read(2, 10 + value);
        oracle.update(Known::acknowledge);
    }
}

fn values(world: &World) -> Result<[u64; SLOTS], String> {
    Store::open(world.pool("fast"))?.values()
}

/// Explores the script from an empty pool, then from a pool whose last batch must be redone.
pub fn run(options: &Options) -> Explored {
    let world = World::new();
    world.add_pool("fast", LEN);
    let recover = |image: &World| Store::open(image.pool("fast")).map(drop);
    let check = |known: &Known, image: &World| known.check(values(image)?);
    let oracle = Oracle::new(Known::default());
    let mut run = explore(&world, options, &oracle, script, recover, check)?;

    let oracle = Oracle::new(Known { values: [7, 0, 7, 0], ..Known::default() });
    let options = Options { replay: None, ..options.clone() };
    run.add(&explore(&half_done(), &options, &oracle, script, recover, check)?);
    Ok(run)
}

/// A store that crashed when a batch was committed and none of its slots were published.
fn half_done() -> World {
    let world = World::new();
    let pool = world.add_pool("fast", LEN);
    for (at, bytes) in [
        (LOG, record(0, 7)),
        (LOG + RECORD as u64, record(2, 7)),
        (LOG + 2 * RECORD as u64, sealed([0, LOG, 2, LOG + RECORD as u64].map(u64::to_le_bytes).concat())),
    ] {
        pool.write(at, &bytes);
    }
    pool.store(COMMIT, LOG + 2 * RECORD as u64);
    world.copy()
}

/// Crashes the recovery that redoes the batch.
pub fn run_recovery(options: &Options) -> Explored {
    let known = Known { values: [7, 0, 7, 0], ..Known::default() };
    let recover = |image: &World| Store::open(image.pool("fast")).map(drop);
    explore_recovery(&half_done(), options, &known, recover, |known, image| known.check(values(image)?))
}

/// Flips every bit of the one record of a store: how many of them are an error on reading, and how
/// many give a wrong value.
pub fn bits_noticed() -> (u64, u64) {
    let world = World::new();
    let mut store = Store::open(world.add_pool("fast", LEN)).expect("an empty store");
    store.put(0, 5);
    let at = world.pool("fast").load(slot_at(0));
    let (mut noticed, mut wrong) = (0, 0);
    for bit in 0..RECORD as u64 * 8 {
        let image = world.copy();
        image.flip_bit("fast", at + bit / 8, (bit % 8) as u32);
        match values(&image) {
            Err(_) => noticed += 1,
            Ok(values) => wrong += u64::from(values != [5, 0, 0, 0]),
        }
    }
    (noticed, wrong)
}
