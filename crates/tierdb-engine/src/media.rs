//! What an engine is given: its tiers, and who does its background work.

use std::sync::Arc;
use tierdb_base::FailureLatch;
use tierdb_device::{Dir, Emulation, Meter};
use tierdb_pmem::Pool;

/// Who does an engine's background work: reclamation, garbage collection, migration, upkeep, checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Threads of the engine's own, asleep while there is nothing to do.
    Threads,
    /// The caller's thread, inside the operation that needs it: one order of events, for simulation.
    Inline,
}

/// A directory of a tier, for an engine's files.
pub struct TierDir<D: Dir> {
    /// Where they live.
    pub dir: D,
    /// Most bytes the store may use in it.
    pub capacity: u64,
    /// Counts its I/O.
    pub meter: Meter,
    /// A device to imitate.
    pub emulation: Option<Emulation>,
}

impl<D: Dir> TierDir<D> {
    /// What it is, in words: `own`, and what is imitated.
    pub fn medium(&self, own: &str) -> String {
        match &self.emulation {
            Some(emulation) => format!("{own}, EMULATED {}", emulation.name),
            None => own.into(),
        }
    }
}

/// What an engine stores on.
pub struct Media<P: Pool, D: Dir> {
    /// The fast tier.
    pub pool: Arc<P>,
    /// Counts the fast tier's block I/O, where it has any.
    pub fast_meter: Meter,
    /// Room on fast block devices beside log and image of the pool: up to sixteen directories. None where the fast tier is
    /// byte-addressable, or there is no other than the pool.
    pub fast_dirs: Vec<TierDir<D>>,
    /// Flash: one to sixteen directories.
    pub flash: Vec<TierDir<D>>,
    /// What seeds every checksum: the store's identity.
    pub seed: u64,
    /// Set by the first failed write on any tier.
    pub latch: FailureLatch,
    /// The hardware mode, in words, for stats.
    pub mode: String,
}
