//! The engine as its callers see it.

use crate::config::Options;
use crate::core::Core;
use crate::cursor::StoreCursor;
use crate::moving::Reclaim;
use crate::recover;
use crate::work;
use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{Error, Result, check_key};
use tierdb_device::Dir;
use tierdb_engine::{
    Cursor, Durability, Engine, KeyRange, Media, Snapshot, Stats, Threads, Timed, Value, VerifyReport,
    WriteBatch,
};
use tierdb_pmem::Pool;

/// Keys that one batch of [`Engine::delete_range`] removes at the most, if they are not too long for one batch before.
const DELETE_BATCH: usize = 1 << 20;

/// A store of the valuelog engine.
pub struct ValueLog<P: Pool, D: Dir> {
    core: Arc<Core<P, D>>,
    threads: Threads,
}

impl<P: Pool, D: Dir> ValueLog<P, D> {
    /// Makes an empty store on `media`.
    ///
    /// # Errors
    /// `Invalid` if the media are too small for `options`, or hold a store; the failures of media.
    pub fn create(media: Media<P, D>, options: Options) -> Result<Self> {
        Self::start(recover::create(media, options)?)
    }

    /// Opens the store on `media`, after a close or a crash. Cost after a crash: a walk over the index and the HSIT on
    /// the fast tier, in parallel; flash is not read, but for the heads of values kept in parts. After a close: both
    /// are read from end to end and compared with a sum, which takes about a tenth of that.
    ///
    /// # Errors
    /// `Corrupt` if the index, the HSIT or a batch's redo record is damaged: see [`crate::salvage`].
    pub fn open(media: Media<P, D>, options: Options) -> Result<Self> {
        Self::start(recover::open(media, options)?)
    }

    /// Whether `pool` holds a store: if not, its creation did not finish.
    pub fn is_created(pool: &P) -> bool {
        crate::layout::Layout::is_formatted(pool)
    }

    fn start(core: Core<P, D>) -> Result<Self> {
        let core = Arc::new(core);
        let threads = work::start(&core)?;
        Ok(ValueLog { core, threads })
    }

    fn stop_threads(&self) {
        self.core.work.stop();
        self.threads.join();
    }
}

impl<P: Pool, D: Dir> Drop for ValueLog<P, D> {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// Releases a snapshot when its last clone is dropped.
struct Pin<P: Pool, D: Dir> {
    core: Arc<Core<P, D>>,
    seqno: u64,
}

impl<P: Pool, D: Dir> Drop for Pin<P, D> {
    fn drop(&mut self) {
        let core = &self.core;
        let _changing = core.gate.change_anyway();
        core.close_snapshot(self.seqno);
        if core.gate.check_open().is_ok() {
            core.purge_deleted();
        }
    }
}

impl<P: Pool, D: Dir> ValueLog<P, D> {
    fn check_own(&self, snapshot: &Snapshot) -> Result<()> {
        snapshot.check_own(|pin: &Pin<P, D>| Arc::ptr_eq(&pin.core, &self.core))
    }

    fn take_snapshot(&self) -> Snapshot {
        let seqno = self.core.open_snapshot();
        Snapshot::new(seqno, Arc::new(Pin { core: self.core.clone(), seqno }))
    }

    /// Removes the keys of `batch`, at once if there is room to list them all.
    fn remove_all(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        match self.core.write(batch, durability) {
            Err(Error::NoSpace { .. }) if batch.len() > 1 => {
                let (first, second) = batch.ops().split_at(batch.len() / 2);
                for half in [first, second] {
                    let mut part = WriteBatch::new();
                    half.iter().try_for_each(|op| part.delete(op.key()).map(drop))?;
                    self.remove_all(&part, durability)?;
                }
                Ok(())
            }
            done => done,
        }
    }

    fn timed<T>(&self, which: Timed, work: impl FnOnce() -> T) -> T {
        self.core.latencies.measure(which, work)
    }
}

impl<P: Pool, D: Dir> Engine for ValueLog<P, D> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        check_key(key)?;
        self.core.gate.check_open()?;
        self.core.counters.gets.add(1);
        self.timed(Timed::Get, || self.core.get(key))
    }

    fn contains(&self, key: &[u8]) -> Result<bool> {
        check_key(key)?;
        self.core.gate.check_open()?;
        self.core.counters.gets.add(1);
        self.core.contains(key)
    }

    fn get_at(&self, key: &[u8], snapshot: &Snapshot) -> Result<Option<Value>> {
        check_key(key)?;
        self.core.gate.check_open()?;
        self.check_own(snapshot)?;
        self.core.counters.gets.add(1);
        self.core.get_at(key, snapshot.seqno())
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        if let Err(error) = self.core.gate.check_open() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        self.core.counters.gets.add(keys.len() as u64);
        // A key that is refused is refused by itself: the index has none like it.
        let found = self.core.multi_get(keys);
        keys.iter().zip(found).map(|(key, found)| check_key(key).and(found)).collect()
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.timed(Timed::Put, || self.core.put(key, value, durability))
    }

    fn delete(&self, key: &[u8], durability: Durability) -> Result<()> {
        self.timed(Timed::Delete, || self.core.delete(key, durability))
    }

    fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        self.timed(Timed::Batch, || self.core.write(batch, durability))
    }

    fn delete_range(&self, range: &KeyRange, durability: Durability) -> Result<u64> {
        self.core.gate.check_writable()?;
        let mut range = range.clone();
        let mut removed = 0;
        let mut batch = WriteBatch::new();
        loop {
            // One for each batch: what a snapshot has seen of those before would be kept to the end.
            let mut cursor = StoreCursor::new(&self.core, range.clone(), self.take_snapshot());
            let next = loop {
                let Some(key) = cursor.next_key()? else { break None };
                if batch.len() == DELETE_BATCH || batch.delete(key.clone()).is_err() {
                    break Some(key);
                }
            };
            drop(cursor);
            self.remove_all(&batch, durability)?;
            removed += batch.len() as u64;
            batch.clear();
            let Some(next) = next else { return Ok(removed) };
            range.start = Bound::Included(next);
        }
    }

    fn snapshot(&self) -> Result<Snapshot> {
        self.core.gate.check_open()?;
        Ok(self.take_snapshot())
    }

    fn cursor(&self, range: KeyRange, snapshot: Option<&Snapshot>) -> Result<Box<dyn Cursor + '_>> {
        self.core.gate.check_open()?;
        snapshot.map_or(Ok(()), |snapshot| self.check_own(snapshot))?;
        self.core.counters.cursors.add(1);
        let snapshot = snapshot.cloned().unwrap_or_else(|| self.take_snapshot());
        Ok(Box::new(StoreCursor::new(&self.core, range, snapshot)))
    }

    fn sync(&self) -> Result<()> {
        self.core.gate.check_writable()?;
        // Every write has fenced what it published before it returned.
        self.core.pool.wait(self.core.pool.lsn())
    }

    fn flush(&self) -> Result<()> {
        let _changing = self.core.gate.change()?;
        self.core.reclaim(Reclaim::All)?;
        if self.core.work.is_inline() {
            self.core.maintain_cache()?;
        }
        self.sync()
    }

    fn compact(&self) -> Result<()> {
        let _changing = self.core.gate.change()?;
        self.core.index.join_sparse();
        self.core.collect_all()?;
        self.core.discard_free()?;
        self.sync()
    }

    fn verify(&self) -> Result<VerifyReport> {
        self.core.gate.check_open()?;
        self.core.verify()
    }

    fn stats(&self) -> Stats {
        self.core.stats()
    }

    fn close(&self) -> Result<()> {
        self.core.gate.close(|| {
            self.stop_threads();
            // What had begun ends, and nothing begins.
            let _closing = self.core.gate.alone();
            // What was acknowledged as durable is on media; grouped writes may not be.
            self.core.gate.latch().check()?;
            let kept = self.core.upkeep().and_then(|()| self.core.leave_image());
            // It writes the log, which may have room where they found none.
            match self.core.pool.close() {
                // Nothing is lost by that.
                Err(Error::NoSpace { .. }) | Ok(()) if kept.is_err() => kept,
                closed => closed,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{open_on, small_log, store_without_checkpoints};
    use tierdb_base::{ErrorKind, FailureLatch};
    use tierdb_device::Meter;
    use tierdb_log::LoggedPool;
    use tierdb_sim::{FaultKind, FaultPlan, Ops, SimDir, World};

    /// A store that finds no room for the checkpoint it needs, with a grouped write.
    fn store_that_needs_a_checkpoint(world: &World) -> ValueLog<LoggedPool<SimDir>, SimDir> {
        let core = store_without_checkpoints(world, small_log(), |core| {
            core.put(b"key", &[7; 1000], Durability::Durable).expect("room");
            !core.pool.needs_checkpoint()
        });
        let engine = ValueLog::start(core).expect("it has no threads");
        engine.put(b"grouped", b"value", Durability::Grouped).expect("room");
        engine
    }

    #[test]
    fn a_close_without_room_for_a_checkpoint_writes_the_log() {
        let world = World::new();
        let engine = store_that_needs_a_checkpoint(&world);
        assert_eq!(engine.close().map_err(|error| error.kind()), Err(ErrorKind::NoSpace));
        let world = world.capture().nothing();
        let (dir, latch) = (world.dir("fast"), FailureLatch::new());
        let pool = LoggedPool::open(dir, small_log(), 1, latch, Meter::new(), None);
        let core = open_on(&world, pool.expect("a pool"), 256 << 10);
        assert_eq!(core.get(b"grouped").expect("whole").as_deref(), Some(&b"value"[..]));
    }

    /// Where there is no room, nothing is lost; that the log was not written tells of more.
    #[test]
    fn a_close_without_room_that_cannot_write_the_log_says_so() {
        let world = World::new();
        let engine = store_that_needs_a_checkpoint(&world);
        world.inject(FaultPlan::from_nth(1, FaultKind::Eio).on(Ops::WRITE).in_dir("fast"));
        assert_eq!(engine.close().map_err(|error| error.kind()), Err(ErrorKind::Io));
    }
}
