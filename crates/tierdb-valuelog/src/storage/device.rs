//! One flash directory: its file, its chunks, and who may have one.

mod discard;
mod garbage;
mod reads;

pub use garbage::Victim;
use reads::Spare;
pub use reads::{Found, Record, is_beside, read_records};

use crate::image::Words;
use crate::record::HEADER;
use crate::storage::chunk::{Chunk, State};
use crate::word::{MAX_ADDRESS, Word};
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tierdb_base::{Error, FailureLatch, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Dir, Meter, Metered, OpenMode};
use tierdb_engine::FlashTier;
use tierdb_pmem::Pool;
use tierdb_sync::Table;

const FILE: &str = "values";
/// Chunks by which the file grows at least, where the file system has so many.
const GROWTH: u64 = 64;

/// A flash directory of a store.
pub struct Device<D: Dir> {
    file: Metered<D::File>,
    name: Arc<str>,
    number: u8,
    chunk_bytes: u64,
    capacity: u64,
    meter: Meter,
    medium: String,
    chunks: Table<Mutex<Chunk>>,
    /// How often each chunk was made ready to be filled.
    fillings: Table<AtomicU32>,
    /// Locked through [`Device::space`].
    space: Mutex<Space>,
    /// Free ones that have come back, and are not in `space` yet: that is held while the file grows, and whoever lets them go must
    /// not wait for that.
    back: Mutex<Vec<u32>>,
    spare: Arc<Spare>,
    /// Chunks that become free when the operations that run now have ended, or whose space just goes back.
    waiting: AtomicU32,
    /// Bytes of garbage in all chunks: every write that replaces something changes it, and everything else here is read by all.
    garbage: CachePadded<AtomicU64>,
    /// Chunks given out since collection has last asked, but for those that it has itself.
    given_out: AtomicU64,
    /// Whether collection has left out any chunk that it could not read.
    left_out: AtomicBool,
    latch: FailureLatch,
    /// Whether the file system had no room for the last write, although the file's length says it has.
    full: AtomicBool,
    /// Writes that have been started and not finished.
    pub writes_in_flight: AtomicU32,
}

/// Chunks that nobody uses.
#[derive(Default)]
struct Space {
    /// Free ones inside the file; of those that still have their space, the last is given out first.
    free: Vec<u32>,
    /// How many of them, the first ones, have given their space back to the file system.
    discarded: usize,
    /// How many have come back.
    returned: u64,
    /// Chunks that the file has.
    end: u32,
    /// Whether the file system refused to grow the file the last time.
    refused: bool,
}

impl Space {
    /// Chunks that somebody uses.
    fn used(&self) -> u64 {
        u64::from(self.end) - self.free.len() as u64
    }

    /// Takes out a free one: one that has its space, unless no more than `kept` of those are left.
    fn take(&mut self, kept: u64) -> Option<u32> {
        let whole = self.free.len() - self.discarded;
        if self.discarded > 0 && whole as u64 <= kept {
            self.discarded -= 1;
            return Some(self.free.remove(self.discarded));
        }
        self.free.pop()
    }
}

/// How a device's space is used, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The file's length.
    pub file: u64,
    /// Chunks in use.
    pub used: u64,
    /// Live records, by length class.
    pub live: u64,
    /// Parts of long values.
    pub parts: u64,
    /// Chunks kept because of damage, or since collection could not read them.
    pub quarantined: u64,
}

impl<D: Dir> Device<D> {
    /// Opens, or creates, the directory's file. Chunks are all free until [`Device::claim`]ed.
    pub fn open(
        tier: FlashTier<D>,
        number: u8,
        chunk_bytes: u64,
        latch: FailureLatch,
        create: bool,
    ) -> Result<Self> {
        let medium = match &tier.emulation {
            Some(emulation) => format!("block device, EMULATED {}", emulation.name),
            None => "block device".into(),
        };
        let exists = tier.dir.list()?.iter().any(|name| name == FILE);
        let file = match (exists, create) {
            (true, false) => tier.dir.open(FILE, OpenMode::Existing)?,
            (_, true) => Self::create_file(&tier.dir, exists)?,
            (false, false) => {
                return Err(Error::corrupt(
                    TierRole::Flash,
                    "the file of values is missing",
                    Location::new(format!("{}/{FILE}", tier.dir.name()), 0),
                ));
            }
        };
        let end = (file.len()?.min(MAX_ADDRESS) / chunk_bytes).min(u64::from(u32::MAX)) as u32;
        let capacity = tier.capacity / chunk_bytes * chunk_bytes;
        if capacity < 2 * chunk_bytes {
            return Err(Error::invalid(format!(
                "a flash tier of {} bytes is too small: it must hold two chunks of {chunk_bytes} bytes",
                tier.capacity
            )));
        }
        Ok(Device {
            name: file.name(),
            file: Metered::new(file, tier.meter.clone(), tier.emulation),
            number,
            chunk_bytes,
            capacity,
            meter: tier.meter,
            medium,
            chunks: Table::new(),
            fillings: Table::new(),
            waiting: AtomicU32::new(0),
            garbage: CachePadded::new(AtomicU64::new(0)),
            given_out: AtomicU64::new(0),
            left_out: AtomicBool::new(false),
            space: Mutex::new(Space { end, ..Space::default() }),
            back: Mutex::default(),
            spare: Arc::default(),
            latch,
            full: AtomicBool::new(false),
            writes_in_flight: AtomicU32::new(0),
        })
    }

    /// Makes the length of the file that was found durable: a growth may have failed, or have been cut short, before
    /// its sync. What is written behind that length later must not go with it.
    ///
    /// # Errors
    /// The failure of the sync.
    #[track_caller]
    pub fn settle_length(&self) -> Result<()> {
        let file = self.file.file();
        let len = file.len()?;
        // A file that was cut in the middle of a block has not grown to that.
        if len.is_multiple_of(BLOCK) {
            match file.set_len(len) {
                // A length that stays needs no room.
                Err(error) if !is_full(&error) => return Err(error),
                _ => {}
            }
        }
        self.file.sync(Cause::Recovery)
    }

    /// An empty file, its name durable.
    fn create_file(dir: &D, exists: bool) -> Result<D::File> {
        if exists {
            // It is of a creation that was interrupted, if it is empty. It is made anew, since its name may not
            // be durable: if that was what failed, another sync would prove nothing.
            if !dir.open(FILE, OpenMode::Existing)?.is_empty()? {
                let name = dir.name();
                return Err(Error::invalid(format!(
                    "{name} holds values of a store: it is not created again"
                )));
            }
            dir.remove(FILE)?;
            dir.sync()?;
        }
        let file = dir.open(FILE, OpenMode::CreateNew)?;
        dir.sync()?;
        Ok(file)
    }

    /// Its number in words.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The file's path.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its I/O by cause.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What it is, in words.
    pub fn medium(&self) -> &str {
        &self.medium
    }

    /// Most bytes the store may use.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// A place in its file.
    pub fn place(&self, at: u64) -> Location {
        Location::new(self.name.clone(), at)
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        let mut space = self.space.lock();
        let mut back = self.back.lock();
        space.returned += back.len() as u64;
        space.free.append(&mut back);
        drop(back);
        space
    }

    /// How many chunks have come back when the readers of the moment in which they became free had gone.
    pub fn returned(&self) -> u64 {
        self.space().returned
    }

    /// Chunks in its file.
    pub fn chunks_in_file(&self) -> u32 {
        self.space().end
    }

    fn capacity_chunks(&self) -> u64 {
        self.capacity / self.chunk_bytes
    }

    /// Chunks kept back for garbage collection.
    fn reserve(&self) -> u64 {
        if self.capacity_chunks() >= 6 { 2 } else { 1 }
    }

    /// Chunks that could be given out: free ones and those the file can grow by.
    pub fn available(&self) -> u64 {
        let space = self.space();
        space.free.len() as u64 + self.growable(&space)
    }

    fn growable(&self, space: &Space) -> u64 {
        if space.refused { 0 } else { self.capacity_chunks().saturating_sub(u64::from(space.end)) }
    }

    /// Whether a chunk will be free as soon as running operations have ended.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Chunks that are free, or will be when running operations have ended.
    pub fn free_soon(&self) -> u64 {
        self.available() + u64::from(self.waiting.load(Ordering::Acquire))
    }

    /// Chunks that can be given out for ordinary writes.
    pub fn room(&self) -> u64 {
        if self.is_full() { 0 } else { self.available().saturating_sub(self.reserve()) }
    }

    /// Whether the file system had no room for the last write.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
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
            self.space().free.push(chunk);
            return Err(error);
        }
        if !reserved {
            self.given_out.fetch_add(1, Ordering::Relaxed);
        }
        self.open_chunk(chunk, state, shortest);
        Ok(chunk)
    }

    /// Makes a free chunk ready for records of at least `shortest` bytes.
    pub fn open_chunk(&self, chunk: u32, state: State, shortest: u64) {
        // Before anything is written to it: who has read what is written then finds another filling than before.
        self.fillings.get(u64::from(chunk)).fetch_add(1, Ordering::AcqRel);
        self.with_chunk(chunk, |chunk| chunk.open(state, shortest, self.chunk_bytes));
    }

    fn no_space(&self, space: &Space) -> Error {
        Error::NoSpace {
            tier: TierRole::Flash,
            place: self.name.to_string(),
            used: space.used() * self.chunk_bytes,
            capacity: self.capacity,
        }
    }

    fn grow(&self, space: &mut Space) -> Result<()> {
        let old = u64::from(space.end);
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
                space.refused = true;
                return Ok(());
            }
        }
        let new = old + step;
        // After a failed sync, one that succeeds would say nothing of the length.
        self.file.sync(Cause::Reclaim).map_err(|error| self.latch.set(error))?;
        space.end = new as u32;
        // What a word points into that was cut off stays as it is.
        let unused = |number: &u32| self.with_chunk(*number, |chunk| chunk.state == State::Free);
        space.free.extend((old as u32..new as u32).rev().filter(unused));
        Ok(())
    }

    /// Whether a word may point into chunk `number`: it is in the file, or was before the file was cut.
    fn is_possible(&self, number: u32) -> bool {
        u64::from(number) < self.capacity_chunks().max(u64::from(self.chunks_in_file()))
    }

    /// Asks the file system again if it has refused to grow the file.
    ///
    /// # Errors
    /// Its failure, other than that it is still full.
    pub fn retry_growth(&self) -> Result<()> {
        let mut space = self.space();
        if std::mem::take(&mut space.refused) { self.grow(&mut space) } else { Ok(()) }
    }

    /// Runs `f` on a chunk's state.
    pub fn with_chunk<T>(&self, chunk: u32, f: impl FnOnce(&mut Chunk) -> T) -> T {
        let mut chunk = self.chunks.get(u64::from(chunk)).lock();
        let before = chunk.garbage();
        let done = f(&mut chunk);
        self.count_garbage(before, chunk.garbage());
        done
    }

    /// Tells one filling of the chunk that holds byte `at` from the next.
    pub fn filling(&self, at: u64) -> u32 {
        let (number, _) = self.chunk_of(at);
        self.fillings.existing(u64::from(number)).map_or(0, |filling| filling.load(Ordering::Acquire))
    }

    /// Something of chunk `number` did not check: it is kept, if it still is of that `filling`. Says
    /// whether it is.
    pub fn quarantine(&self, number: u32, filling: u32) -> bool {
        let at = u64::from(number) * self.chunk_bytes;
        self.with_chunk(number, |chunk| {
            let is_same = chunk.state == State::Sealed && self.filling(at) == filling;
            if is_same {
                chunk.state = State::Quarantined;
            }
            is_same
        })
    }

    /// Chunk number, and byte in it, of byte `at` of the file.
    pub fn chunk_of(&self, at: u64) -> (u32, u64) {
        ((at / self.chunk_bytes) as u32, at % self.chunk_bytes)
    }

    /// The record at byte `at` is no longer referred to; the last one of a chunk frees it.
    pub fn release(this: &Arc<Self>, at: u64, word: Word, guard: &crossbeam_epoch::Guard) {
        let (number, offset) = this.chunk_of(at);
        if !this.is_possible(number) {
            return;
        }
        let emptied = this.with_chunk(number, |chunk| {
            chunk.clear(offset, word) && chunk.live == 0 && chunk.state == State::Sealed && {
                chunk.state = State::Free;
                true
            }
        });
        if emptied {
            Self::free_later(this, number, guard);
        }
    }

    /// The chunk that held a part of a long value is no longer referred to.
    pub fn release_part(this: &Arc<Self>, number: u32, guard: &crossbeam_epoch::Guard) {
        let was_part = this.with_chunk(number, |chunk| {
            chunk.state == State::Part && {
                chunk.state = State::Free;
                true
            }
        });
        if was_part {
            Self::free_later(this, number, guard);
        }
    }

    /// An appender has finished with the chunk. With `to_join` its room [counts](Chunk::count_room).
    pub fn seal(this: &Arc<Self>, number: u32, to_join: bool, guard: &crossbeam_epoch::Guard) {
        let emptied = this.with_chunk(number, |chunk| {
            if to_join {
                chunk.count_room(this.chunk_bytes);
            }
            chunk.state = if chunk.live == 0 { State::Free } else { State::Sealed };
            chunk.live == 0
        });
        if emptied {
            Self::free_later(this, number, guard);
        }
    }

    fn free_later(this: &Arc<Self>, number: u32, guard: &crossbeam_epoch::Guard) {
        let device = this.clone();
        device.waiting.fetch_add(1, Ordering::AcqRel);
        guard.defer(move || {
            device.back.lock().push(number);
            device.waiting.fetch_sub(1, Ordering::AcqRel);
        });
        // Others may wait for it, when this thread does nothing for long.
        guard.flush();
    }

    /// On open: a word points at the record at byte `at`. `false` if it cannot.
    ///
    /// Every word of a key was [noted](Device::note_class) before. If one was not, its key is lost; if two
    /// share a granule, one of them is damaged. Nothing in the chunk is given up then.
    pub fn claim(&self, at: u64, word: Word) -> bool {
        let (number, offset) = self.chunk_of(at);
        let inside = number < self.chunks_in_file();
        if inside {
            self.with_chunk(number, |chunk| {
                if chunk.state != State::Sealed || !chunk.set(offset, word) {
                    chunk.state = State::Quarantined;
                }
            });
        }
        inside
    }

    /// On open, before any claim: a word points at the record at byte `at`, so the chunk is in use, with
    /// granules that suit the record. If the file ends before it, it is not to be used when the file grows.
    pub fn note_class(&self, at: u64, word: Word) {
        let (number, _) = self.chunk_of(at);
        if number >= self.chunks_in_file() {
            if self.is_possible(number) {
                self.with_chunk(number, |chunk| chunk.state = State::Quarantined);
            }
        } else {
            self.with_chunk(number, |chunk| {
                if chunk.state == State::Free || chunk.granule() > granule_of(word) {
                    chunk.open(State::Sealed, granule_of(word), self.chunk_bytes);
                    chunk.filled = self.chunk_bytes;
                }
            });
        }
    }

    /// On open: the chunk holds a part of a long value. `false` if it cannot.
    pub fn claim_part(&self, number: u32) -> bool {
        if number >= self.chunks_in_file() {
            if self.is_possible(number) {
                self.with_chunk(number, |chunk| chunk.state = State::Quarantined);
            }
            return false;
        }
        self.with_chunk(number, |chunk| match chunk.state {
            State::Free => chunk.open(State::Part, self.chunk_bytes, self.chunk_bytes),
            // A damaged word points into it as well.
            _ => chunk.state = State::Quarantined,
        });
        true
    }

    /// What an image says of the chunks that are in use, by number. `None` if one of them is kept because of
    /// damage: the next open is to look again.
    pub fn image(&self) -> Option<Vec<u64>> {
        let mut words = vec![0];
        for number in 0..self.chunks_in_file() {
            let Some(chunk) = self.chunks.existing(u64::from(number)) else { continue };
            let chunk = chunk.lock();
            if chunk.state != State::Free {
                words[0] += 1;
                words.push(u64::from(number));
                words.extend(chunk.image()?);
            }
        }
        Some(words)
    }

    /// The chunks of an image, if it can be one of this device.
    pub fn chunks_of_image(&self, words: &mut Words<'_>) -> Option<Vec<(u32, Chunk)>> {
        let mut chunks = Vec::<(u32, Chunk)>::new();
        for _ in 0..words.take()? {
            let number = words.take().filter(|number| *number < u64::from(self.chunks_in_file()))? as u32;
            if chunks.last().is_some_and(|(last, _)| *last >= number) {
                return None;
            }
            chunks.push((number, Chunk::from_image(words, self.chunk_bytes)?));
        }
        Some(chunks)
    }

    /// On open: these chunks are in use, as they were when the store was closed, and all others are free.
    pub fn restore(&self, chunks: Vec<(u32, Chunk)>) {
        for (number, chunk) in chunks {
            self.with_chunk(number, |found| *found = chunk);
        }
        self.find_free();
    }

    fn find_free(&self) {
        let mut space = self.space();
        let is_free = |number: &u32| self.with_chunk(*number, |chunk| chunk.state == State::Free);
        space.free = (0..space.end).rev().filter(is_free).collect();
        space.discarded = 0;
    }

    /// On open, last: every chunk that was not claimed is free, or is kept if `unsure` says that it may hold
    /// a part of a value whose parts are not known.
    pub fn finish_claims(&self, unsure: bool) {
        for number in 0..self.chunks_in_file() {
            self.with_chunk(number, |chunk| {
                chunk.estimate_total(self.chunk_bytes);
                if unsure && chunk.state == State::Free {
                    chunk.state = State::Quarantined;
                }
            });
        }
        self.find_free();
    }

    /// Writes whole blocks at byte `at`, to which nothing refers yet, durably.
    ///
    /// # Errors
    /// `NoSpace` if the file system turns out to have no room for them: nothing is lost, and a later write may
    /// succeed. Any other failure sets the latch.
    #[track_caller]
    pub fn write_durable(&self, at: u64, buf: &AlignedBuf, cause: Cause) -> Result<()> {
        self.latch.check()?;
        self.writes_in_flight.fetch_add(1, Ordering::Relaxed);
        let written = self.file.write_durable(at, buf, cause);
        self.writes_in_flight.fetch_sub(1, Ordering::Relaxed);
        let full = written.as_ref().is_err_and(is_full);
        self.full.store(full, Ordering::Relaxed);
        written.map_err(|error| match full {
            true => self.no_space(&self.space()),
            false => self.latch.set(error),
        })
    }

    /// How its space is used.
    pub fn usage(&self) -> Usage {
        let (end, used) = {
            let space = self.space();
            (space.end, space.used())
        };
        let mut usage = Usage {
            file: u64::from(end) * self.chunk_bytes,
            used: used * self.chunk_bytes,
            ..Usage::default()
        };
        for number in 0..end {
            let Some(chunk) = self.chunks.existing(u64::from(number)) else { continue };
            let chunk = chunk.lock();
            match chunk.state {
                State::Part => usage.parts += self.chunk_bytes,
                State::Quarantined => usage.quarantined += self.chunk_bytes,
                State::Sealed if chunk.is_unreadable => usage.quarantined += self.chunk_bytes,
                _ => usage.live += chunk.live_estimate(),
            }
        }
        usage
    }

    /// Bytes of DRAM that its tables take.
    pub fn memory_bytes(&self) -> u64 {
        let bitmaps: u64 = (0..self.chunks_in_file())
            .filter_map(|n| self.chunks.existing(u64::from(n)))
            .map(|chunk| chunk.lock().memory_bytes())
            .sum();
        self.chunks.memory_bytes()
            + self.fillings.memory_bytes()
            + bitmaps
            + self.space().free.capacity() as u64 * 4
    }
}

/// Whether the file system had no room. A sync that found none has lost what was written before.
fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { op, source, .. }
        if source.kind() == std::io::ErrorKind::StorageFull && *op != "sync")
}

/// The granule that suits every record of the word's length class.
pub(super) fn granule_of(word: Word) -> u64 {
    1 << word.min_len().max(HEADER as u64).ilog2()
}

#[cfg(test)]
mod tests {
    use super::GROWTH;
    use crate::core::tests::{store, store_of};
    use crate::storage::State;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use tierdb_engine::Durability;
    use tierdb_sim::World;

    /// While the file grows nothing is given out, which may take long. Whoever gives up chunks meanwhile, with latches held, goes on.
    #[test]
    fn chunks_come_back_while_the_file_grows() {
        let core = store(&World::new());
        core.put(b"key", &[1; 40_000], Durability::Durable).expect("room");
        let device = &core.storage.devices()[0];
        let before = device.returned();
        let growing = device.space.lock();
        let (done, is_done) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
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
}
