//! Why a run ends without a result.

use crate::store::StoreError;
use crate::values::Wrong;
use crate::workload::Op;
use std::path::PathBuf;

/// Why a run ends without a result.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A store gave a value that is not what was written: its figures mean nothing.
    #[error("{op} of key number {number} returned a wrong value: {wrong}", op = op.name())]
    WrongValue {
        /// What was asked.
        op: Op,
        /// The key.
        number: u64,
        /// What is wrong.
        wrong: Wrong,
    },
    /// A store failed.
    #[error("{system}: {doing}: {source}")]
    Store {
        /// Which system.
        system: String,
        /// What it was asked to do.
        doing: String,
        /// What it said.
        source: StoreError,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A file of the benchmark's own could not be read or written.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A process that ran a case ended without a result.
    #[error("the case ended without a result: {0}")]
    Child(String),
    /// Some cases failed.
    #[error("{} failed: {}", if .0.len() == 1 { "a case" } else { "cases" }, .0.join("; "))]
    Cases(Vec<String>),
}

impl Failure {
    /// An I/O failure.
    pub fn io(doing: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Failure::Io { doing, path: path.into(), source }
    }
}
