//! The contract every TierDB engine keeps, and the conformance suite that checks it.
//!
//! Read in this order: [`engine`] (what a store can do), [`batch`], [`value`], [`stats`], [`verify`]; what engines
//! are given and share: [`media`], [`latency`]; then
//! [`model`], the contract in its simplest form, and (feature `conformance`) the suite that any engine runs.

#![forbid(unsafe_code)]

pub mod background;
pub mod batch;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod engine;
pub mod gate;
pub mod latency;
pub mod media;
pub mod model;
pub mod parallel;
pub mod stats;
pub mod value;
pub mod verify;

pub use background::{Job, Threads, Wakeup};
pub use batch::{Op, WriteBatch};
pub use engine::{Cursor, Durability, Engine, KeyRange, Snapshot};
pub use gate::Gate;
pub use latency::{Latencies, Timed};
pub use media::{Background, Media, TierDir};
pub use model::{ModelEngine, ModelStore};
pub use parallel::in_parallel;
pub use stats::{CacheStats, IoStats, LatencyStats, Stats, TierStats};
pub use value::Value;
pub use verify::{Damage, VerifyReport};
