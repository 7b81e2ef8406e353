//! TierDB: an embeddable, ordered, durable key-value store that spreads itself over DRAM, fast storage and flash.

#![forbid(unsafe_code)]

pub mod config;

pub use config::{Config, EngineKind, FastKind, FastTier, FlashTier};
pub use tierdb_base::{ByteSize, Error, ErrorKind, Result};
