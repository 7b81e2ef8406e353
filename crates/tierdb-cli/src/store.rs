//! The seam between the commands and the stores they work on.

use crate::exit::Failure;
use std::path::Path;
use tierdb_engine::{Engine, VerifyReport};

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

/// What was copied from one store into another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// Where stores come from. A target is a store directory or a configuration file.
pub trait Stores {
    /// Opens the store at `target`, does `work` with it and closes it, whatever came of the work. The
    /// failure of the work comes before that of the closing.
    fn with(&self, target: &Path, how: OpenHow, work: &mut Work<'_>) -> Result<(), Failure>;

    /// Checks the store at `target` without changing it.
    fn verify(&self, target: &Path) -> Result<VerifyReport, Failure>;

    /// Saves what can be read at `source` into a new store at `target`; returns what was saved, and what was
    /// damaged.
    fn repair(&self, source: &Path, target: &Path) -> Result<(Copied, VerifyReport), Failure>;

    /// Copies the store at `target`, as of now, into the new directory `dir`.
    fn checkpoint(&self, target: &Path, dir: &Path) -> Result<Copied, Failure>;

    /// Makes a store at `target` from the checkpoint in `dir`.
    fn restore(&self, dir: &Path, target: &Path) -> Result<Copied, Failure>;
}
