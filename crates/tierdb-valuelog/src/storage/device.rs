//! One flash directory: its file, its chunks, and who may have one.

mod claims;
mod discard;
mod garbage;
mod reads;
mod space;

pub use garbage::Victim;
use reads::Spare;
pub use reads::{Found, Record, is_beside, read_records};
use space::Space;

use crate::record::HEADER;
use crate::storage::chunk::{Chunk, State};
use crate::word::{MAX_ADDRESS, Word};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tierdb_base::{Error, FailureLatch, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Dir, Meter, Metered, OpenMode};
use tierdb_engine::TierDir;
use tierdb_sync::Table;

const FILE: &str = "values";

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
    /// Chunks that the file has; changed with `space` held.
    in_file: AtomicU32,
    /// Chunks into which words point, and before which the file ends: they are kept when it grows.
    cut_off: Mutex<BTreeSet<u32>>,
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
    /// Whether the file system had no room for what was last written to a chunk that takes no space, although the file's length
    /// says it has.
    full: AtomicBool,
    /// Writes that have been started and not finished.
    pub writes_in_flight: AtomicU32,
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
        tier: TierDir<D>,
        number: u8,
        chunk_bytes: u64,
        latch: FailureLatch,
        create: bool,
    ) -> Result<Self> {
        let medium = tier.medium("block device");
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
        let in_file = (file.len()?.min(MAX_ADDRESS) / chunk_bytes).min(u64::from(u32::MAX)) as u32;
        let (least, mut capacity) = (2 * chunk_bytes, tier.capacity / chunk_bytes * chunk_bytes);
        if !create {
            // A store that is there is opened whatever its capacity is now.
            capacity = capacity.max(least);
        }
        if capacity < least {
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
            space: Mutex::default(),
            in_file: AtomicU32::new(in_file),
            cut_off: Mutex::default(),
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

    /// Makes a free chunk ready for records of at least `shortest` bytes.
    pub fn open_chunk(&self, chunk: u32, state: State, shortest: u64) {
        // Before anything is written to it: who has read what is written then finds another filling than before.
        self.fillings.get(u64::from(chunk)).fetch_add(1, Ordering::AcqRel);
        self.with_chunk(chunk, |chunk| chunk.open(state, shortest, self.chunk_bytes));
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
        // What damage points to is no reason to keep books of it.
        if number >= this.chunks_in_file() {
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
        if written.is_ok() || full {
            // Where a part found no room, collection cannot count on the rest.
            let was_hole =
                self.with_chunk(self.chunk_of(at).0, |chunk| std::mem::replace(&mut chunk.is_hole, full));
            // What goes to a chunk that has its space says nothing of those that have none.
            if full || was_hole {
                self.full.store(full, Ordering::Relaxed);
            }
        }
        written.map_err(|error| match full {
            true => self.no_space(&self.space()),
            false => self.latch.set(error),
        })
    }

    /// How its space is used.
    pub fn usage(&self) -> Usage {
        let (in_file, used) = {
            let space = self.space();
            (self.chunks_in_file(), self.used(&space))
        };
        let mut usage = Usage {
            file: u64::from(in_file) * self.chunk_bytes,
            used: used * self.chunk_bytes,
            ..Usage::default()
        };
        for number in 0..in_file {
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
