//! What is measured: the seam between the benchmark and the stores.

use crate::knobs::Knobs;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Any error of a store, with what it was doing.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// What a write survives when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Power loss.
    Durable,
    /// Power loss some milliseconds later; a crash of the process at once.
    Grouped,
}

impl Durability {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Durable => "durable",
            Durability::Grouped => "grouped",
        }
    }
}

/// Where a store lives and what it may use: the same for every system of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// A directory on the fast device, for this store alone. It is there, and empty for a new store.
    pub fast_dir: PathBuf,
    /// Bytes the store may use there.
    pub fast_bytes: u64,
    /// A directory on flash, for this store alone; as `fast_dir`.
    pub flash_dir: PathBuf,
    /// Bytes of memory the store may use, caches and write buffers included.
    pub memory: u64,
    /// What writes survive.
    pub durability: Durability,
    /// The device to imitate on the fast tier, where the system can.
    pub emulate_fast: Option<String>,
    /// The device to imitate on flash; only for systems that [can](System::imitates_flash).
    pub emulate_flash: Option<String>,
    /// Keys that will be loaded.
    pub keys: u64,
    /// Bytes of keys and values that will be loaded.
    pub data_bytes: u64,
    /// What an experiment changes about it.
    pub knobs: Knobs,
}

/// The name of the fast tier in [`TierIo`].
pub const FAST: &str = "fast";
/// The name of the tier in [`TierIo`] on which cold values lie.
pub const FLASH: &str = "flash";

/// I/O of one tier for one cause, as the store itself counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierIo {
    /// `fast` or `flash`; another name where what is counted is not told by tier.
    pub tier: String,
    /// What it was for.
    pub cause: String,
    /// Reads completed; 0 where bytes alone are counted.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed; as `reads`.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs and durable writes.
    pub syncs: u64,
}

impl TierIo {
    /// Whether there was any.
    pub fn is_any(&self) -> bool {
        [self.reads, self.read_bytes, self.writes, self.written_bytes, self.syncs]
            .iter()
            .any(|count| *count > 0)
    }
}

/// What a store counts about itself since it was opened. What it does not count is left empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// The store's mode in its own words, emulation included.
    pub mode: String,
    /// I/O by tier and cause.
    pub io: Vec<TierIo>,
    /// Whether that of flash is among it, if there was any.
    pub tells_of_flash: bool,
    /// Whether it has files of a fast tier in memory that it tells nothing of: what the kernel counts of its calls beyond those
    /// to flash stands for their I/O then.
    pub has_fast_files: bool,
    /// Reads answered from memory or from the write buffer.
    pub hits: u64,
    /// Reads that went to flash.
    pub misses: u64,
    /// Nanoseconds that writers were held back.
    pub stall_ns: u64,
    /// Bytes in use by part of the store, on all tiers and in memory.
    pub parts: Vec<(String, u64)>,
    /// Other counters of the store, by its own names.
    pub counters: Vec<(String, u64)>,
}

/// An open store. Threads share it.
pub trait Store: Send + Sync {
    /// Shows the value of `key`, or that there is none, as the store hands it out: copied or lent.
    ///
    /// # Errors
    /// Whatever the store reports; it ends the run.
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError>;

    /// Shows the values of `keys`, in their order. One after another where the store has no call for it.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn multi_get(&self, keys: &[Vec<u8>], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        keys.iter().try_for_each(|key| self.get(key, see))
    }

    /// Stores `value` under `key`. A store that cannot choose for each write does as the setup asks.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), StoreError>;

    /// Shows the first `count` entries from `from` on, in key order, as of one moment.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError>;

    /// What it counts about itself.
    fn counts(&self) -> Counts;

    /// Makes everything durable and closes the store.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn close(self: Box<Self>) -> Result<(), StoreError>;
}

/// What a system's fast tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fast {
    /// There is none: everything is on flash.
    None,
    /// Memory that stands for byte-addressable storage.
    Memory,
    /// A block device.
    Block,
}

/// The least that a system works with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes on the fast tier.
    pub fast_bytes: u64,
}

/// A way to open stores: one product with one arrangement of its tiers.
pub trait System: Send + Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// How it is set up, and what memory it uses beyond the limit, in a sentence.
    fn about(&self) -> &'static str;

    /// What its fast tier is.
    fn fast(&self) -> Fast;

    /// The least it works with for `keys` keys of `key_bytes` bytes, whatever their values. Default: anything.
    fn needs(&self, _keys: u64, _key_bytes: usize) -> Needs {
        Needs::default()
    }

    /// One of `knobs` that is set and that it has not. Default: any.
    fn lacks(&self, knobs: &Knobs) -> Option<&'static str> {
        knobs.of_any_engine().or(knobs.of_valuelog()).or(knobs.of_slab())
    }

    /// Whether it can imitate a device on flash. Default: no.
    fn imitates_flash(&self) -> bool {
        false
    }

    /// Opens the store of `setup`, or creates it where the directories are empty.
    ///
    /// # Errors
    /// Whatever the store reports.
    fn open(&self, setup: &Setup) -> Result<Box<dyn Store>, StoreError>;
}

/// The systems that a program can measure.
pub struct Systems(pub Vec<Box<dyn System>>);

impl Systems {
    /// The system `name`, if there is one.
    pub fn named(&self, name: &str) -> Option<&dyn System> {
        self.0.iter().find(|system| system.name() == name).map(|system| &**system)
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|system| system.name()).collect()
    }
}
