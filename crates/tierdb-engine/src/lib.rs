//! The contract every TierDB engine keeps, and the conformance suite that checks it.
//!
//! Read in this order: [`engine`] (what a store can do), [`batch`], [`value`], [`stats`], [`verify`]; then
//! [`model`], the contract in its simplest form, and (feature `conformance`) the suite that any engine runs.

#![forbid(unsafe_code)]

pub mod batch;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod engine;
pub mod model;
pub mod stats;
pub mod value;
pub mod verify;

pub use batch::{Op, WriteBatch};
pub use engine::{Cursor, Durability, Engine, KeyRange, Snapshot};
pub use model::{ModelEngine, ModelStore};
pub use stats::{CacheStats, IoStats, LatencyStats, Stats, TierStats};
pub use value::Value;
pub use verify::{Damage, VerifyReport};
