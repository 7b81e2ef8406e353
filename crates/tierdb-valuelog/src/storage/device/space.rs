//! The chunks of a device that nobody uses: who gets one, how the file grows, and when what was given up is free.

use super::{Device, is_full};
use crate::storage::chunk::State;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tierdb_base::{Error, Result, TierRole};
use tierdb_device::{BlockFile, Cause, Dir};
use tierdb_pmem::Pool;

/// Chunks by which the file grows at least, where the file system has so many.
const GROWTH: u64 = 64;

/// After so long a file system that refused to grow the file is asked again before chunks are short.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Chunks that nobody uses.
#[derive(Default)]
pub(super) struct Space {
    /// Free ones inside the file; of those that still have their space, the last is given out first.
    pub(super) free: Vec<u32>,
    /// How many of them, the first ones, are not to be counted on, since they have given their space back: each [is a hole](super::Chunk::is_hole).
    pub(super) discarded: usize,
    /// How many have come back with their space.
    pub(super) returned: u64,
    /// When the file system refused to grow the file, if it did the last time.
    pub(super) refused: Option<Instant>,
}

impl Space {
    /// Free ones that have their space.
    fn whole(&self) -> u64 {
        (self.free.len() - self.discarded) as u64
    }

    /// Takes out a free one: one that has its space, unless no more than `kept` of those are left.
    pub(super) fn take(&mut self, kept: u64) -> Option<u32> {
        if self.discarded > 0 && self.whole() <= kept {
            self.discarded -= 1;
            return Some(self.free.remove(self.discarded));
        }
        self.free.pop()
    }

    /// Puts one back, which is given out before those that are there already; if it is a hole, among those.
    pub(super) fn put(&mut self, number: u32, is_hole: bool) {
        if is_hole {
            self.put_last(&[number], &[]);
        } else {
            self.free.push(number);
        }
    }

    /// Puts holes back, and others, which are given out after those that are there already and have their space.
    pub(super) fn put_last(&mut self, holes: &[u32], others: &[u32]) {
        let at = self.discarded;
        self.discarded += holes.len();
        self.free.splice(at..at, holes.iter().chain(others).copied());
    }
}

impl<D: Dir> Device<D> {
    pub(super) fn space(&self) -> MutexGuard<'_, Space> {
        let mut space = self.space.lock();
        // Not held while chunks are locked: what is deferred adds to it, on any thread.
        let back = std::mem::take(&mut *self.back.lock());
        for number in back {
            let is_hole = self.is_hole(number);
            space.returned += u64::from(!is_hole);
            space.put(number, is_hole);
        }
        space
    }

    /// Whether chunk `number` takes no space.
    pub(super) fn is_hole(&self, number: u32) -> bool {
        self.with_chunk(number, |chunk| chunk.is_hole)
    }

    /// How many chunks have come back, with their space, when the readers of the moment in which they became free had gone.
    pub fn returned(&self) -> u64 {
        self.space().returned
    }

    /// Chunks in its file.
    pub fn chunks_in_file(&self) -> u32 {
        self.in_file.load(Ordering::Acquire)
    }

    /// Chunks that somebody uses.
    pub(super) fn used(&self, space: &Space) -> u64 {
        u64::from(self.chunks_in_file()) - space.free.len() as u64
    }

    pub(super) fn capacity_chunks(&self) -> u64 {
        self.capacity / self.chunk_bytes
    }

    /// Chunks that it may have: where the file system has refused more, those in its file.
    pub(super) fn chunks_in_reach(&self) -> u64 {
        let space = self.space();
        u64::from(self.chunks_in_file()) + self.growable(&space)
    }

    /// Chunks kept back for garbage collection.
    pub(super) fn reserve(&self) -> u64 {
        if self.capacity_chunks() >= 6 { 2 } else { 1 }
    }

    /// Chunks that could be given out: free ones and those the file can grow by.
    pub fn available(&self) -> u64 {
        let space = self.space();
        space.free.len() as u64 + self.growable(&space)
    }

    fn growable(&self, space: &Space) -> u64 {
        if space.refused.is_some() {
            0
        } else {
            self.capacity_chunks().saturating_sub(u64::from(self.chunks_in_file()))
        }
    }

    /// Whether a chunk will be free as soon as running operations have ended.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Chunks that are free, or will be when running operations have ended.
    pub fn free_soon(&self) -> u64 {
        self.available() + u64::from(self.waiting.load(Ordering::Acquire))
    }

    /// Chunks that are free, and where the file system is full, have their space.
    pub(super) fn counted_on(&self) -> u64 {
        if self.full.load(Ordering::Relaxed) { self.space().whole() } else { self.available() }
    }

    /// Chunks that can be given out for ordinary writes; where the file system is full, those that have their space.
    pub fn room(&self) -> u64 {
        self.counted_on().saturating_sub(self.reserve())
    }

    /// Whether a chunk that has its space is free, for collection at least.
    pub fn has_whole(&self) -> bool {
        self.space().whole() > 0
    }

    /// Whether a chunk can be given out for ordinary writes.
    pub fn has_space(&self) -> bool {
        self.room() > 0
    }

    /// Gives out a free chunk, in state `state`. `reserved` may take the last ones.
    ///
    /// # Errors
    /// `NoSpace`; the failure of growing the file or of making the pool's words durable.
    pub fn allocate<P: Pool>(&self, pool: &P, state: State, shortest: u64, reserved: bool) -> Result<u32> {
        let chunk = {
            let mut space = self.space();
            let kept = if reserved { 0 } else { self.reserve() };
            // What is kept back must be in the file: when it is needed, the file system may be full.
            while space.free.len() as u64 <= kept && self.growable(&space) > 0 {
                self.grow(&mut space)?;
            }
            if space.free.len() as u64 <= kept {
                // What the last write met says nothing of chunks that come back: who is given one finds out.
                if !reserved {
                    self.full.store(false, Ordering::Relaxed);
                }
                return Err(self.no_space(&space));
            }
            space.take(kept).ok_or_else(|| self.no_space(&space))?
        };
        // Whatever pointed into it must be gone from media before it is overwritten. Who released it had fenced
        // what no longer does; in a log that may not be written yet.
        if let Err(error) = pool.wait(pool.lsn()) {
            self.space().put(chunk, self.is_hole(chunk));
            return Err(error);
        }
        if !reserved {
            self.given_out.fetch_add(1, Ordering::Relaxed);
        }
        self.open_chunk(chunk, state, shortest);
        Ok(chunk)
    }

    pub(super) fn no_space(&self, space: &Space) -> Error {
        Error::NoSpace {
            tier: TierRole::Flash,
            place: self.name.to_string(),
            used: self.used(space) * self.chunk_bytes,
            capacity: self.capacity,
        }
    }

    fn grow(&self, space: &mut Space) -> Result<()> {
        let old = u64::from(self.chunks_in_file());
        let most = self.capacity_chunks().div_ceil(8).min(self.capacity_chunks().saturating_sub(old));
        let mut step = GROWTH.max(old / 8).min(most);
        self.latch.check()?;
        while let Err(error) = self.file.file().set_len((old + step) * self.chunk_bytes) {
            if !is_full(&error) {
                return Err(error);
            }
            if step > GROWTH {
                step = (step / 2).max(GROWTH);
            } else {
                // Live with what there is until something is freed.
                space.refused = Some(Instant::now());
                return Ok(());
            }
        }
        let new = old + step;
        // After a failed sync, one that succeeds would say nothing of the length.
        self.file.sync(Cause::Reclaim).map_err(|error| self.latch.set(error))?;
        self.in_file.store(new as u32, Ordering::Release);
        let cut_off = self.cut_off.lock();
        for number in (old as u32..new as u32).rev() {
            if cut_off.contains(&number) {
                self.with_chunk(number, |chunk| chunk.state = State::Quarantined);
            } else {
                space.free.push(number);
            }
        }
        Ok(())
    }

    /// Asks the file system again if it has refused to grow the file.
    ///
    /// # Errors
    /// Its failure, other than that it is still full.
    pub fn retry_growth(&self) -> Result<()> {
        let mut space = self.space();
        if space.refused.take().is_some() { self.grow(&mut space) } else { Ok(()) }
    }

    /// The same at `now`, if that was long ago: others may have given room back.
    ///
    /// # Errors
    /// As of [`Device::retry_growth`].
    pub fn retry_growth_in_time(&self, now: Instant) -> Result<()> {
        let since = self.space().refused.map(|refused| now.saturating_duration_since(refused));
        if since.is_some_and(|since| since >= ASK_AGAIN) { self.retry_growth() } else { Ok(()) }
    }

    pub(super) fn free_later(this: &Arc<Self>, number: u32, guard: &crossbeam_epoch::Guard) {
        let device = this.clone();
        device.waiting.fetch_add(1, Ordering::AcqRel);
        guard.defer(move || {
            device.back.lock().push(number);
            device.waiting.fetch_sub(1, Ordering::AcqRel);
        });
        // Others may wait for it, when this thread does nothing for long.
        guard.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::{ASK_AGAIN, GROWTH};
    use crate::core::tests::{store, store_of};
    use crate::moving::Reclaim;
    use crate::storage::State;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use tierdb_engine::Durability;
    use tierdb_sim::World;

    /// While the file grows nothing is given out, which may take long. Whoever reads, or gives up chunks, with latches held, goes on.
    #[test]
    fn reads_and_deletes_go_on_while_the_file_grows() {
        let core = store(&World::new());
        core.put(b"key", &[1; 40_000], Durability::Durable).expect("room");
        core.put(b"record", &[2; 900], Durability::Durable).expect("room");
        core.reclaim(Reclaim::All).expect("room");
        let device = &core.storage.devices()[0];
        let before = device.returned();
        let growing = device.space.lock();
        let (done, is_done) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(core.get(b"record").expect("no faults").is_some());
                core.delete(b"record", Durability::Durable).expect("deletes need no room");
                core.delete(b"key", Durability::Durable).expect("deletes need no room");
                while device.is_waiting() {
                    core.work.settle_epochs();
                }
                done.send(()).expect("somebody waits");
            });
            let goes_on = is_done.recv_timeout(Duration::from_secs(20));
            drop(growing);
            goes_on.expect("it waits for the file");
        });
        assert!(device.returned() > before);
    }

    #[test]
    fn a_file_grows_by_what_the_file_system_has() {
        const CHUNK: u64 = 16 << 10;
        const CAPACITY: u64 = 16 * GROWTH;
        let world = World::new();
        let core = store_of(&world, 2 * CAPACITY * CHUNK);
        let device = &core.storage.devices()[0];
        let take = || while device.allocate(&*core.pool, State::Part, CHUNK, true).is_ok() {};
        for least in [CAPACITY - GROWTH, CAPACITY] {
            world.dir("flash").set_capacity(Some((least + GROWTH) * CHUNK - 1));
            device.retry_growth().expect("no faults");
            take();
            let file = device.usage().file / CHUNK;
            assert!(file >= least && device.available() == 0, "{file} of {least} chunks");
        }
    }

    /// Chunks are not short because others have filled the file system, and once they have left the file grows as before.
    #[test]
    fn a_file_system_that_is_full_does_not_make_chunks_short_for_good() {
        const CHUNK: u64 = 16 << 10;
        let world = World::new();
        let core = store_of(&world, 100 * GROWTH * CHUNK);
        let device = &core.storage.devices()[0];
        let all = |allocated: &mut Vec<u32>| {
            allocated
                .extend(std::iter::from_fn(|| device.allocate(&*core.pool, State::Part, CHUNK, true).ok()));
        };
        world.dir("flash").set_capacity(Some(3 * GROWTH * CHUNK));
        let mut allocated = Vec::new();
        all(&mut allocated);
        assert!(device.is_short(10));
        for number in allocated.split_off(allocated.len() * 4 / 5) {
            device.with_chunk(number, |chunk| chunk.state = State::Free);
            device.space().put(number, false);
        }
        assert!(!device.is_short(10) && device.is_short(50), "a fifth of what it can have is free");
        world.dir("flash").set_capacity(None);
        let refused = device.space().refused.expect("it was refused");
        device.retry_growth_in_time(refused + ASK_AGAIN - Duration::from_millis(1)).expect("no faults");
        assert!(device.space().refused.is_some());
        device.retry_growth_in_time(refused + ASK_AGAIN).expect("no faults");
        assert!(!device.is_short(50));
    }
}
