//! Appending records to chunks, a group at a time.

use crate::storage::Storage;
use crate::storage::chunk::State;
use crate::storage::device::{Device, granule_of};
use crate::word::{Place, Word};
use std::sync::Arc;
use tierdb_base::Result;
use tierdb_device::{AlignedBuf, BLOCK, Cause, Dir};
use tierdb_pmem::Pool;

/// A chunk that is being filled.
struct OpenChunk<D: Dir> {
    device: Arc<Device<D>>,
    number: u32,
    /// Byte of the chunk at which the next group starts.
    fill: u64,
    granule: u64,
}

/// A record that is durable on flash, live, and to which no word points yet.
#[derive(Debug)]
pub struct Stored<T> {
    /// What it was added with.
    pub with: T,
    /// The word that points at it.
    pub word: Word,
}

/// Gathers records for one chunk and writes them as a group: whole blocks, written once, durable.
///
/// Keep one for each kind of work, so that values that are moved together stay together.
pub struct Appender<D: Dir, T> {
    only: Option<Arc<Device<D>>>,
    open: Option<OpenChunk<D>>,
    /// Records of the group, end to end, and behind them room for more: kept, since memory that is new to the process costs faults.
    group: AlignedBuf,
    /// Bytes of `group` that records take.
    grouped: usize,
    pending: Vec<(u64, Stored<T>)>,
    cause: Cause,
    reserved: bool,
    /// The coarsest granule of the next chunk, and of one that is collected into it of all its records.
    coarsest: u64,
    /// The finest granule that a record of the open chunk has needed.
    needed: u64,
}

impl<D: Dir, T> Appender<D, T> {
    /// An appender that has no chunk yet, and takes its chunks from idle devices.
    pub fn new(cause: Cause) -> Self {
        let (group, pending) = (AlignedBuf::default(), Vec::new());
        let (coarsest, needed) = (u64::MAX, u64::MAX);
        Appender {
            only: None,
            open: None,
            group,
            grouped: 0,
            pending,
            cause,
            reserved: false,
            coarsest,
            needed,
        }
    }

    /// An appender that stays on one device and may take the chunks kept for garbage collection.
    pub fn collecting(device: Arc<Device<D>>) -> Self {
        Appender { only: Some(device), reserved: true, ..Self::new(Cause::Gc) }
    }

    /// What comes next are the records of a chunk with this granule. They take no more than one new chunk, in whatever order sizes come.
    pub fn begin_victim(&mut self, granule: u64) {
        self.coarsest = granule;
    }

    /// Bytes of DRAM it holds.
    pub fn memory_bytes(&self) -> u64 {
        self.group.capacity() as u64 + (self.pending.capacity() * size_of::<(u64, Stored<T>)>()) as u64
    }

    /// Adds the stored form of a record, whose word (wherever it points) is `word`. Gives `with` back if it does
    /// not fit beside what is pending: commit that, publish its words, and add it again.
    ///
    /// Nothing is pending where it fails: what was added before is stored, and its words are published.
    ///
    /// # Errors
    /// `NoSpace` if no chunk is to be had, `Io` if there is no memory for the group, and `with`.
    pub fn add<P: Pool>(
        &mut self,
        storage: &Storage<D>,
        pool: &P,
        record: &[u8],
        word: Word,
        with: T,
    ) -> Result<Option<T>, (T, tierdb_base::Error)> {
        let len = record.len() as u64;
        // Nor coarser than the record, if damage has given its word the class of longer ones: records begin in granules of their own.
        let granule = granule_of(word).min(1 << len.ilog2());
        let granule = granule.min(if self.reserved { self.coarsest } else { u64::MAX });
        let fits = self.open.as_ref().is_some_and(|open| {
            open.fill + self.grouped as u64 + len <= storage.chunk_bytes() && open.granule <= granule
        });
        if !fits {
            if !self.pending.is_empty() {
                return Ok(Some(with));
            }
            let device = match &self.only {
                Some(device) => device.clone(),
                None => storage.pick().clone(),
            };
            // Where sizes are mixed, a chunk that begins with a long record would end at the first short one: so its granule is that of the
            // last chunk, which may be one step coarser if nothing there was so short.
            let granule = granule.min(self.coarsest_next());
            // Without a chunk the open one stays open: others may go into it.
            match device.allocate(pool, State::Open, granule, self.reserved) {
                Ok(number) => {
                    // What collection has joined is not joined again: as long as nothing of it is given up, there is nothing to gain.
                    self.end(!self.reserved);
                    self.open = Some(OpenChunk { device, number, fill: 0, granule });
                }
                Err(error) => return Err((with, error)),
            }
        }
        if let Some(open) = &self.open {
            let end = self.grouped + record.len();
            if let Err(error) = self.group.grow(end) {
                return if self.pending.is_empty() { Err((with, error)) } else { Ok(Some(with)) };
            }
            self.group[self.grouped..end].copy_from_slice(record);
            self.needed = self.needed.min(granule);
            let at = open.fill + self.grouped as u64;
            let place =
                Place::Flash(open.device.number(), u64::from(open.number) * storage.chunk_bytes() + at);
            self.pending.push((at, Stored { with, word: word.clean().moved_to(place) }));
            self.grouped = end;
        }
        Ok(None)
    }

    /// Writes what is pending; when this returns it is durable and its bits are set.
    ///
    /// # Errors
    /// That of [`Device::write_durable`]; nothing is pending or stored then, and what comes next goes to another chunk: the file
    /// system of another device may have room.
    pub fn commit(&mut self) -> Result<Vec<Stored<T>>> {
        let Some(open) = self.open.as_mut().filter(|_| !self.pending.is_empty()) else {
            return Ok(Vec::new());
        };
        self.group[self.grouped..].fill(0);
        let at = u64::from(open.number) * open.device.chunk_bytes() + open.fill;
        if let Err(error) = open.device.write_durable(at, &self.group, self.cause) {
            self.abandon();
            self.end(!self.reserved);
            return Err(error);
        }
        open.fill += (self.grouped as u64).next_multiple_of(BLOCK);
        self.grouped = 0;
        let pending = std::mem::take(&mut self.pending);
        open.device.with_chunk(open.number, |chunk| {
            chunk.filled = open.fill;
            for (at, stored) in &pending {
                let fresh = chunk.set(*at, stored.word);
                assert!(fresh, "two records in one granule");
            }
        });
        Ok(pending.into_iter().map(|(_, stored)| stored).collect())
    }

    /// Records that wait for [`Appender::commit`].
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Forgets what is pending.
    pub fn abandon(&mut self) {
        self.pending.clear();
        self.grouped = 0;
    }

    /// Ends the open chunk, if there is one. Nothing may be pending.
    pub fn seal(&mut self) {
        self.end(true);
    }

    /// The coarsest granule for the next chunk.
    fn coarsest_next(&self) -> u64 {
        match &self.open {
            _ if self.reserved => u64::MAX,
            Some(open) if self.needed <= open.granule => open.granule,
            Some(open) => open.granule * 2,
            None => self.coarsest,
        }
    }

    fn end(&mut self, to_join: bool) {
        if !self.reserved {
            self.coarsest = self.coarsest_next();
        }
        self.needed = u64::MAX;
        if let Some(open) = self.open.take() {
            Device::seal(&open.device, open.number, to_join, &crossbeam_epoch::pin());
        }
    }
}
