//! The seam between the commands and the stores they work on.

use crate::exit::Failure;
use std::path::Path;
use tierdb::History;
use tierdb_engine::{Damage, Engine, Stats, VerifyReport};

/// Whether a store must be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    /// It must be: a misspelt path is not answered with an empty store.
    Existing,
    /// It is created if it is not there.
    Create,
}

/// What is done with an open store.
pub type Work<'a> = dyn FnMut(&dyn Engine) -> Result<(), Failure> + 'a;

/// What is done with what a store says of itself, and of the times that it was open before.
pub type Show<'a> = dyn FnMut(&Stats, Option<&History>) -> Result<(), Failure> + 'a;

/// What was copied from one store into another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// What a repair saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Keys in the new store.
    pub keys: u64,
    /// Those of them that may have been overwritten or deleted since.
    pub uncertain: u64,
    /// Whether every key of the old store is known.
    pub index_whole: bool,
    /// What was damaged.
    pub damage: Vec<Damage>,
    /// What else there is to say of the old store's tiers.
    pub notes: Vec<String>,
    /// The file in the new store that lists it all.
    pub list: &'static str,
}

/// Where stores come from. A target is a store directory or a configuration file.
pub trait Stores {
    /// Opens the store at `target`, does `work` with it and closes it, whatever came of the work. The
    /// failure of the work comes before that of the closing.
    fn with(&self, target: &Path, how: OpenHow, work: &mut Work<'_>) -> Result<(), Failure>;

    /// Opens the store at `target`, which must be there, and `show`s what it says of itself.
    fn stat(&self, target: &Path, show: &mut Show<'_>) -> Result<(), Failure>;

    /// How many bytes the files of the store at `target` take in its flash directories, as their file systems say: none where there
    /// is no store.
    fn flash_bytes(&self, target: &Path) -> Result<u64, Failure>;

    /// Checks the store at `target` without changing it.
    fn verify(&self, target: &Path) -> Result<VerifyReport, Failure>;

    /// Saves what can be read at `source`, which is not changed, into a new store at `target`.
    fn repair(&self, source: &Path, target: &Path) -> Result<Saved, Failure>;

    /// Copies the store at `target`, as of now, into the new directory `dir`.
    fn checkpoint(&self, target: &Path, dir: &Path) -> Result<Copied, Failure>;

    /// Makes a store at `target` from the checkpoint in `dir`.
    fn restore(&self, dir: &Path, target: &Path) -> Result<Copied, Failure>;
}
