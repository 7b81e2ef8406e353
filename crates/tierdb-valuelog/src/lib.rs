//! The valuelog engine: PRISM (ASPLOS 2023) with a full crash and correctness contract.

#![forbid(unsafe_code)]

mod batch;
mod cache;
pub mod config;
mod core;
mod counters;
mod cursor;
mod deleted;
mod engine;
mod hash;
mod hsit;
mod image;
pub mod index;
mod layout;
mod long;
mod moving;
pub mod pages;
mod read;
mod record;
mod recover;
mod redo;
mod ring;
mod second_level;
mod stats;
mod storage;
mod verify;
mod versions;
mod word;
mod work;
mod write;

/// What the models of `tests/loom_*.rs` run.
#[cfg(loom)]
pub mod modelled {
    pub use crate::hsit::Hsit;
    pub use crate::layout::Layout;
    pub use crate::record::{Header, Kind, encode};
    pub use crate::ring::{Appender, Ring, Rings};
    pub use crate::versions::Versions;
    pub use crate::word::{Place, Word};
}

pub use config::Options;
pub use engine::ValueLog;
pub use tierdb_engine::{Background, Media, TierDir};
pub use verify::{SalvageReport, Salvaged, salvage};
