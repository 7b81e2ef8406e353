//! Value Storage: one file of chunks for each flash directory (PRISM §4.2, §5.1).
//!
//! A chunk is filled by one appender, in groups of whole blocks, each written once and durable before
//! any word points into it. Records in it are self-describing, so no other structure on flash is needed:
//! which chunks are in use, and which of their records, is known from the HSIT.
//!
//! Invariants
//! 1. A bit of a chunk's bitmap is set before a word that points at the record is published, and cleared
//!    after no word, and no snapshot, refers to it any more.
//! 2. A chunk whose bits are all clear is free, but is given out again only after (a) every operation
//!    that was running when it became free has ended, and (b) the words that point elsewhere are durable.
//!    Otherwise a crash could bring back a word that points at overwritten bytes.
//! 3. Readers take no part in this: what they read is checked against the word they came from.
//!
//! Read in this order: [`chunk`] (bitmaps), [`device`] (allocation, reading), [`append`].

mod append;
mod chunk;
mod device;

pub use append::{Appender, Stored};
pub use chunk::{Chunk, State};
pub use device::{Device, Found, Record, Victim, is_beside, read_records};

use crate::word::{Place, Word};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{FailureLatch, Result};
use tierdb_device::Dir;
use tierdb_engine::TierDir;

/// The flash directories of a store.
pub struct Storage<D: Dir> {
    devices: Box<[Arc<Device<D>>]>,
    chunk_bytes: u64,
}

impl<D: Dir> Storage<D> {
    /// Opens, or with `create` creates, the file of each directory.
    ///
    /// The first failed write sets `latch`.
    pub fn open(
        tiers: Vec<TierDir<D>>,
        chunk_bytes: u64,
        latch: &FailureLatch,
        create: bool,
    ) -> Result<Self> {
        let devices = tiers
            .into_iter()
            .enumerate()
            .map(|(number, tier)| {
                let device = Device::open(tier, number as u8, chunk_bytes, latch.clone(), create)?;
                if !create {
                    device.settle_length()?;
                }
                Ok(Arc::new(device))
            })
            .collect::<Result<_>>()?;
        Ok(Storage { devices, chunk_bytes })
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<Device<D>>] {
        &self.devices
    }

    /// The device that `number` names.
    pub fn device(&self, number: u8) -> Option<&Arc<Device<D>>> {
        self.devices.get(usize::from(number))
    }

    /// An idle device at random, or any at random when none is idle (PRISM §5.2); those without space last.
    pub fn pick(&self) -> &Arc<Device<D>> {
        let start = fastrand::usize(..self.devices.len());
        let in_turn = || (0..self.devices.len()).map(|i| &self.devices[(start + i) % self.devices.len()]);
        in_turn()
            .find(|d| d.writes_in_flight.load(Ordering::Relaxed) == 0 && d.has_space())
            .or_else(|| in_turn().find(|d| d.has_space()))
            .unwrap_or(&self.devices[start])
    }

    /// Tells one filling of the chunk that `place` lies in from the next; 0 of what is not on flash.
    pub fn filling(&self, place: Place) -> u32 {
        match place {
            Place::Flash(number, at) => self.device(number).map_or(0, |device| device.filling(at)),
            Place::None | Place::Free | Place::Damaged | Place::Ring(_) => 0,
        }
    }

    /// The record at `word` is no longer referred to.
    pub fn release(&self, word: Word, guard: &crossbeam_epoch::Guard) {
        if let Place::Flash(number, at) = word.place()
            && let Some(device) = self.device(number)
        {
            Device::release(device, at, word, guard);
        }
    }

    /// How many chunks of the devices have come back with their space.
    pub fn returned(&self) -> u64 {
        self.devices.iter().map(|device| device.returned()).sum()
    }

    /// Chunks that the devices can still give out, or grow, for ordinary writes; of one whose file system is full, those that have
    /// their space.
    pub fn room(&self) -> u64 {
        self.devices.iter().map(|device| device.room()).sum()
    }
}
