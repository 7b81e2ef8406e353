//! The engine as its callers see it.

use crate::config::Options;
use crate::core::Core;
use crate::cursor::StoreCursor;
use crate::partition::RangeTombstone;
use crate::rate::Waiting;
use crate::recover;
use crate::work;
use std::sync::Arc;
use tierdb_base::{Result, check_key};
use tierdb_device::Dir;
use tierdb_engine::{
    Cursor, Durability, Engine, KeyRange, Media, Snapshot, Stats, Threads, Timed, Value, VerifyReport,
    WriteBatch,
};
use tierdb_pmem::Pool;

/// A store of the slab engine.
pub struct SlabStore<P: Pool, D: Dir> {
    core: Arc<Core<P, D>>,
    threads: Threads,
}

impl<P: Pool, D: Dir> SlabStore<P, D> {
    /// Makes an empty store on `media`.
    ///
    /// # Errors
    /// `Invalid` if the media are too small for `options`, or hold a store; the failures of media.
    pub fn create(media: Media<P, D>, options: Options) -> Result<Self> {
        Self::start(recover::create(media, options)?)
    }

    /// Opens the store on `media`, after a close or a crash. Cost: a scan of the slabs in use on the fast tier, in
    /// parallel; of flash, the index and the filter of each table.
    ///
    /// # Errors
    /// `Corrupt` if the header, a record that names a table or a removed range, or a table's index is damaged.
    pub fn open(media: Media<P, D>, options: Options) -> Result<Self> {
        Self::start(recover::open(media, options)?)
    }

    /// Whether `pool` holds a store: if not, its creation did not finish.
    pub fn is_created(pool: &P) -> bool {
        crate::layout::Layout::is_formatted(pool)
    }

    fn start(core: Core<P, D>) -> Result<Self> {
        core.settle_memory();
        let core = Arc::new(core);
        let threads = work::start(&core)?;
        Ok(SlabStore { core, threads })
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core<P, D> {
        &self.core
    }

    fn stop_threads(&self) {
        self.core.work.stop();
        self.threads.join();
    }

    fn check_own(&self, snapshot: &Snapshot) -> Result<()> {
        snapshot.check_own(|pin: &Pin<P, D>| Arc::ptr_eq(&pin.core, &self.core))
    }

    fn take_snapshot(&self) -> Snapshot {
        let seqno = self.core.snapshots.open(|note| self.core.clock.take_snapshot_and(note));
        Snapshot::new(seqno, Arc::new(Pin { core: self.core.clone(), seqno }))
    }

    fn timed<T>(&self, which: Timed, work: impl FnOnce() -> T) -> T {
        self.core.latencies.measure(which, work)
    }
}

impl<P: Pool, D: Dir> Drop for SlabStore<P, D> {
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
        if !core.snapshots.close(self.seqno, || core.clock.release_snapshot()) {
            return;
        }
        let router = core.router.read();
        let open = core.snapshots.list();
        for part in &router.parts {
            if !part.read().old.concerns(self.seqno, open.is_empty()) {
                continue;
            }
            let mut state = part.write();
            // Under the lock, so that a version that a later snapshot sees is not taken for an unneeded one.
            state.prune_old(&core.heap, self.seqno, &core.snapshots.list());
        }
        // Ranges that this one saw, and no other one that is open.
        let freed = |range: &Arc<RangeTombstone>| {
            range.seqno > self.seqno && open.first().is_none_or(|oldest| range.seqno <= *oldest)
        };
        if router.parts.iter().any(|part| part.read().ranges.iter().any(freed)) {
            core.work.want_cleaning();
        }
    }
}

impl<P: Pool, D: Dir> Engine for SlabStore<P, D> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        check_key(key)?;
        self.core.gate.check_open()?;
        self.core.counters.gets.add(1);
        self.timed(Timed::Get, || self.core.get(key))
    }

    fn get_at(&self, key: &[u8], snapshot: &Snapshot) -> Result<Option<Value>> {
        check_key(key)?;
        self.core.gate.check_open()?;
        self.check_own(snapshot)?;
        self.core.counters.gets.add(1);
        self.core.get_as_of(key, snapshot.seqno())
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        if let Err(error) = self.core.gate.check_open() {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        self.core.counters.gets.add(keys.len() as u64);
        // A key that is refused is refused by itself: no table has one like it.
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
        let _changing = self.core.gate.change()?;
        let keys = StoreCursor::count(&self.core, range.clone(), self.take_snapshot())?;
        if keys > 0 {
            self.core.counters.deletes.add(1);
            self.core.remove_range(range, durability)?;
        } else {
            self.core.acknowledge(self.core.heap.pool.lsn(), durability)?;
        }
        Ok(keys)
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
        self.core.heap.pool.wait(self.core.heap.pool.lsn())
    }

    fn flush(&self) -> Result<()> {
        let _changing = self.core.gate.change()?;
        let _waiting = Waiting::new(&self.core.work.asked);
        self.core.demote_all()?;
        self.sync()
    }

    fn compact(&self) -> Result<()> {
        let _changing = self.core.gate.change()?;
        let _waiting = Waiting::new(&self.core.work.asked);
        self.core.forget_unreadable();
        self.core.clean_ranges(&|| true)?;
        self.core.drop_replaced()?;
        self.core.join_tables()?;
        self.core.drain_retired();
        self.core.tidy_slabs();
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
            self.core.drain_retired();
            self.core.heap.pool.close()
        })
    }
}
