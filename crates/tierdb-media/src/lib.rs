//! The media of a store, and its engines on them.
//!
//! An engine is generic over its media. Here they meet: what opens stores has [`StoreMedia`], whatever the hardware mode, and the engines are
//! compiled for each kind of them once, however often what is above this changes.

#![forbid(unsafe_code)]

mod directory;
mod overlay;

pub use directory::{StoreDir, StoreFile};
pub use overlay::{Overlay, OverlayFile};

use tierdb_base::Result;
use tierdb_device::{RealDir, Striped};
use tierdb_engine::{Engine, Media, TierDir};
use tierdb_log::LoggedPool;
use tierdb_pmem::{MappedPool, Pool};
use tierdb_slab::SlabStore;
use tierdb_valuelog::ValueLog;

/// A directory of a store.
pub type Directory = StoreDir<RealDir>;

/// What a store is on.
pub enum StoreMedia {
    /// Its pool is byte-addressable, or emulated, or a copy of such a one.
    Mapped(Media<MappedPool, Directory>),
    /// Its pool is in DRAM, and durable by a log.
    Logged(Media<LoggedPool<Striped<Directory>>, Directory>),
}

/// Which engine is to run, and how.
#[derive(Clone, Debug)]
pub enum Options {
    /// `valuelog`.
    Valuelog(tierdb_valuelog::Options),
    /// `slab`.
    Slab(tierdb_slab::Options),
}

impl From<Media<MappedPool, Directory>> for StoreMedia {
    fn from(media: Media<MappedPool, Directory>) -> Self {
        StoreMedia::Mapped(media)
    }
}

impl From<Media<LoggedPool<Striped<Directory>>, Directory>> for StoreMedia {
    fn from(media: Media<LoggedPool<Striped<Directory>>, Directory>) -> Self {
        StoreMedia::Logged(media)
    }
}

/// Does `$call` with the media, whatever their pool is.
macro_rules! either {
    ($this:expr, $media:ident => $call:expr) => {
        match $this {
            StoreMedia::Mapped($media) => $call,
            StoreMedia::Logged($media) => $call,
        }
    };
}

impl StoreMedia {
    /// Bytes of the pool.
    pub fn pool_len(&self) -> u64 {
        either!(self, media => media.pool.len())
    }

    /// The same once more, without what they imitate.
    pub fn again(&self) -> Self {
        either!(self, media => again(media).into())
    }

    /// Makes an empty store of an engine on them.
    ///
    /// # Errors
    /// Those of the engine's `create`.
    pub fn create(self, options: Options) -> Result<Box<dyn Engine>> {
        either!(self, media => match options {
            Options::Valuelog(options) => Ok(Box::new(ValueLog::create(media, options)?)),
            Options::Slab(options) => Ok(Box::new(SlabStore::create(media, options)?)),
        })
    }

    /// Opens the store of an engine that is on them: as it was closed, or as a crash has left it.
    ///
    /// # Errors
    /// Those of the engine's `open`.
    pub fn open(self, options: Options) -> Result<Box<dyn Engine>> {
        either!(self, media => match options {
            Options::Valuelog(options) => Ok(Box::new(ValueLog::open(media, options)?)),
            Options::Slab(options) => Ok(Box::new(SlabStore::open(media, options)?)),
        })
    }

    /// [`tierdb_valuelog::salvage`] of a store that is on them.
    ///
    /// # Errors
    /// Those of that, and of `found`.
    pub fn salvage_valuelog(
        self,
        found: &mut dyn FnMut(tierdb_valuelog::Salvaged) -> Result<()>,
    ) -> Result<tierdb_valuelog::SalvageReport> {
        either!(self, media => tierdb_valuelog::salvage(media, found))
    }

    /// [`tierdb_slab::salvage`] of a store that is on them.
    ///
    /// # Errors
    /// Those of that, and of `found`.
    pub fn salvage_slab(
        self,
        found: &mut dyn FnMut(tierdb_slab::Salvaged) -> Result<()>,
    ) -> Result<tierdb_slab::SalvageReport> {
        either!(self, media => tierdb_slab::salvage(media, found))
    }
}

fn again<P: Pool>(media: &Media<P, Directory>) -> Media<P, Directory> {
    let tier = |tier: &TierDir<Directory>| TierDir {
        dir: tier.dir.clone(),
        capacity: tier.capacity,
        meter: tier.meter.clone(),
        emulation: None,
    };
    Media {
        pool: media.pool.clone(),
        fast_meter: media.fast_meter.clone(),
        fast_dirs: media.fast_dirs.iter().map(tier).collect(),
        flash: media.flash.iter().map(tier).collect(),
        seed: media.seed,
        latch: media.latch.clone(),
        mode: media.mode.clone(),
    }
}
