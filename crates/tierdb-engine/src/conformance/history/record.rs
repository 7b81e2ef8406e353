//! Histories recorded from an engine under threads.

use super::{ABSENT, Call, Effect, check};
use crate::batch::WriteBatch;
use crate::conformance::values::{tag_of, value};
use crate::conformance::{Checked, Failure, Harness, Limits, Unexpected, fail, guarded, open_empty};
use crate::engine::{Durability, Engine, KeyRange, Snapshot};
use fastrand::Rng;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tierdb_base::ErrorKind;
use tierdb_base::Result;

/// Records one history for each seed, of `threads` threads with `ops` operations each on a few keys, and
/// checks that it is linearizable. Flush, compact and sync run now and then beside it.
///
/// A get, a put, a delete and a batch are each one call; what is read by a snapshot or a cursor is one call
/// that lasts as long as `snapshot` or `cursor` took; `multi_get` is one call per key. Range deletes are left
/// out, since against writers that add keys they are not one call. All values are different, and checked
/// byte by byte.
///
/// # Errors
/// The calls that no order explains, or the error of a call.
pub fn linearizable(harness: &mut dyn Harness, threads: usize, ops: usize, seeds: Range<u64>) -> Checked {
    let limits = harness.limits();
    let engine = open_empty(harness)?;
    for seed in seeds {
        let calls = record(&*engine, limits, threads, ops, seed);
        let checked = calls.and_then(|calls| check(&calls));
        checked.map_err(|failure| failure.during(format!("{}, seed {seed}", harness.describe())))?;
    }
    Ok(())
}

struct Session<'e> {
    engine: &'e dyn Engine,
    limits: Limits,
    seed: u64,
    keys: Vec<Vec<u8>>,
    clock: AtomicU64,
    ended: AtomicBool,
    start: Barrier,
}

fn record(engine: &dyn Engine, limits: Limits, threads: usize, ops: usize, seed: u64) -> Checked<Vec<Call>> {
    let count = 1 + seed as usize % 6;
    let session = &Session {
        engine,
        limits,
        seed,
        // Keys of its own for each history, so that none is there at first.
        keys: (0..count)
            .map(|i| format!("history{seed:016x}-{}{i}", "k".repeat(i * 9)).into_bytes())
            .collect(),
        clock: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        start: Barrier::new(threads),
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|id| {
                scope.spawn(move || {
                    let mut worker = Worker::new(session, id);
                    session.start.wait();
                    guarded(|| worker.run(ops)).map(|()| worker.calls)
                })
            })
            .collect();
        let stirrer = scope.spawn(|| guarded(|| session.stir()));
        let panicked = |_| Err(Failure::new("a thread panicked"));
        let calls: Vec<_> =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect();
        session.ended.store(true, Ordering::Relaxed);
        stirrer.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")))?;
        Ok(calls.into_iter().collect::<Checked<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

impl Session<'_> {
    /// A stamp. Sequentially consistent, so that the stamps agree with what threads saw of one another.
    fn stamp(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether a write took effect; one that is refused for lack of space did not.
    fn took_effect(&self, result: Result<()>) -> Checked<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(error) if self.limits.may_fill && error.kind() == ErrorKind::NoSpace => Ok(false),
            Err(error) => fail!("unexpected error: {error}"),
        }
    }

    fn stir(&self) -> Checked {
        while !self.ended.load(Ordering::Relaxed) {
            self.took_effect(self.engine.flush())?;
            self.took_effect(self.engine.compact())?;
            self.took_effect(self.engine.sync())?;
            thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    }
}

struct Worker<'s> {
    session: &'s Session<'s>,
    id: u64,
    rng: Rng,
    /// Values written so far, to make the next one different.
    written: u64,
    calls: Vec<Call>,
    /// A snapshot to be read in a while, and when it was taken.
    held: Option<(Snapshot, u64, u64)>,
}

impl<'s> Worker<'s> {
    fn new(session: &'s Session<'s>, id: usize) -> Self {
        let rng = Rng::with_seed(session.seed.wrapping_mul(1000) + id as u64);
        Worker { session, id: id as u64 + 1, rng, written: 0, calls: Vec::new(), held: None }
    }

    fn run(&mut self, ops: usize) -> Checked {
        for _ in 0..ops {
            match self.rng.u8(..100) {
                0..35 => self.get()?,
                35..65 => self.put()?,
                65..72 => self.delete()?,
                72..82 => self.batch()?,
                82..87 => self.multi_get()?,
                87..92 => self.scan()?,
                _ => self.snapshot()?,
            }
        }
        self.read_held()
    }

    fn key(&mut self) -> usize {
        self.rng.usize(..self.session.keys.len())
    }

    /// A value that nobody else writes, as bytes and by its number.
    fn value(&mut self) -> (Vec<u8>, u64) {
        self.written += 1;
        let tag = self.id << 32 | self.written;
        let len = match self.rng.u8(..32) {
            0 => 4096,
            1 => 140_000,
            _ => self.rng.usize(8..200),
        };
        (value(tag, self.session.limits.value_len(len).max(8)), tag)
    }

    fn durability(&mut self) -> Durability {
        if self.rng.bool() { Durability::Durable } else { Durability::Grouped }
    }

    fn wrote(&mut self, called: u64, pairs: Vec<(usize, u64)>, result: Result<()>) -> Checked {
        let returned = self.session.stamp();
        if self.session.took_effect(result)? {
            self.calls.push(Call { called, returned, effect: Effect::Write(pairs) });
        }
        Ok(())
    }

    fn get(&mut self) -> Checked {
        let key = self.key();
        let called = self.session.stamp();
        let found = self.session.engine.get(&self.session.keys[key]);
        let returned = self.session.stamp();
        let value = number(found.during(|| "get".into())?.as_deref())?;
        self.calls.push(Call { called, returned, effect: Effect::Read(vec![(key, value)]) });
        Ok(())
    }

    fn multi_get(&mut self) -> Checked {
        let session = self.session;
        let keys: Vec<&[u8]> = session.keys.iter().map(Vec::as_slice).collect();
        let called = session.stamp();
        let found = session.engine.multi_get(&keys);
        let returned = session.stamp();
        for (key, found) in found.into_iter().enumerate() {
            let value = number(found.during(|| "multi_get".into())?.as_deref())?;
            self.calls.push(Call { called, returned, effect: Effect::Read(vec![(key, value)]) });
        }
        Ok(())
    }

    fn put(&mut self) -> Checked {
        let (key, (value, tag), durability) = (self.key(), self.value(), self.durability());
        let called = self.session.stamp();
        let result = self.session.engine.put(&self.session.keys[key], &value, durability);
        self.wrote(called, vec![(key, tag)], result)
    }

    fn delete(&mut self) -> Checked {
        let (key, durability) = (self.key(), self.durability());
        let called = self.session.stamp();
        let result = self.session.engine.delete(&self.session.keys[key], durability);
        self.wrote(called, vec![(key, ABSENT)], result)
    }

    fn batch(&mut self) -> Checked {
        let mut keys: Vec<usize> = (0..self.session.keys.len()).collect();
        self.rng.shuffle(&mut keys);
        keys.truncate(self.rng.usize(1..=keys.len()));
        let mut batch = WriteBatch::new();
        let mut pairs = Vec::new();
        for key in keys {
            let name = self.session.keys[key].as_slice();
            let (added, number) = if self.rng.u8(..4) == 0 {
                (batch.delete(name), ABSENT)
            } else {
                let (value, tag) = self.value();
                (batch.put(name, value), tag)
            };
            added.during(|| "build the batch".into())?;
            pairs.push((key, number));
        }
        let durability = self.durability();
        let called = self.session.stamp();
        let result = self.session.engine.write(&batch, durability);
        self.wrote(called, pairs, result)
    }

    fn scan(&mut self) -> Checked {
        let session = self.session;
        let prefix = format!("history{:016x}-", session.seed);
        let called = session.stamp();
        let cursor = session.engine.cursor(KeyRange::prefix(prefix.as_bytes()), None);
        let returned = session.stamp();
        let mut cursor = cursor.during(|| "cursor".into())?;
        let mut pairs: Vec<(usize, u64)> = (0..session.keys.len()).map(|key| (key, ABSENT)).collect();
        let forward = self.rng.bool();
        while let Some((found, value)) =
            if forward { cursor.next() } else { cursor.prev() }.during(|| "scan".into())?
        {
            let Some(key) = session.keys.iter().position(|key| *key == found) else {
                fail!("a scan gives a key that was never written")
            };
            pairs[key].1 = number(Some(&value))?;
        }
        self.calls.push(Call { called, returned, effect: Effect::Read(pairs) });
        Ok(())
    }

    /// Reads the snapshot that was taken some operations ago, and takes another.
    fn snapshot(&mut self) -> Checked {
        self.read_held()?;
        let called = self.session.stamp();
        let snapshot = self.session.engine.snapshot();
        let returned = self.session.stamp();
        self.held = Some((snapshot.during(|| "snapshot".into())?, called, returned));
        if self.rng.bool() { self.read_held() } else { Ok(()) }
    }

    fn read_held(&mut self) -> Checked {
        let Some((snapshot, called, returned)) = self.held.take() else { return Ok(()) };
        let mut pairs = Vec::new();
        for (key, name) in self.session.keys.iter().enumerate() {
            let found = self.session.engine.get_at(name, &snapshot).during(|| "get_at".into())?;
            pairs.push((key, number(found.as_deref())?));
        }
        self.calls.push(Call { called, returned, effect: Effect::Read(pairs) });
        Ok(())
    }
}

fn number(value: Option<&[u8]>) -> Checked<u64> {
    value.map_or(Ok(ABSENT), tag_of)
}
