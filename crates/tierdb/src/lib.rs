//! TierDB: an embeddable, ordered, durable key-value store that spreads itself over DRAM, fast storage and
//! flash.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("data");
//! let db = tierdb::Db::open(&path)?;
//! db.put("user/42", "Ada")?; // survives power loss when it returns
//! assert_eq!(db.get("user/42")?.as_deref(), Some(&b"Ada"[..]));
//! for entry in db.prefix("user/")? {
//!     let (key, value) = entry?;
//!     println!("{} bytes under a key of {}", value.len(), key.len());
//! }
//! db.delete("user/42")?;
//! db.close()?;
//! # Ok::<(), tierdb::Error>(())
//! ```
//!
//! [`Db::open`] puts a store on one SSD. A machine with faster storage beside it names both in a [`Config`], and the
//! store puts every part of itself where it belongs. [`Db`] is what a user holds; [`Error::kind`] says what can be
//! done about an error; [`restore`] and [`repair()`] make stores of checkpoints and of damaged stores.

#![forbid(unsafe_code)]

mod checkpoint;
pub mod config;
mod db;
mod entries;
mod frozen;
mod history;
mod identity;
mod repair;
mod replace;
mod setup;
mod shape;
mod tiers;

pub use checkpoint::{Copied, restore};
pub use config::{
    Config, EngineKind, FastKind, FastTier, FlashTier, PinningThreshold, Promotion, Records, Slab, Valuelog,
    WriteBudget,
};
pub use db::Db;
pub use entries::Entries;
pub use history::{History, IoSum};
pub use repair::{REPORT_NAME, RepairReport, repair, verify_offline};
pub use shape::logged_layout;
pub use tierdb_base::{
    ByteSize, Error, ErrorKind, Location, MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Result, Seqno,
    TierRole, Uuid,
};
pub use tierdb_engine::{
    CacheStats, Cursor, Damage, Durability, Engine, IoStats, KeyRange, LatencyStats, Op, Snapshot, Stats,
    TierStats, Value, VerifyReport, WriteBatch,
};
