//! Byte-addressable pools: where the fast tier's structures live, and how a store reaches media.
//!
//! [`Pool`] is the one narrow trait between an engine and byte-addressable media. An engine takes it
//! as a generic parameter, so the real path has no virtual call. Its implementations: mapped files
//! or emulated memory ([`MappedPool`], here), a DRAM image made durable by a log on a block device
//! (`tierdb-log`), and a simulated one with crash states (`tierdb-sim`).
//!
//! Read in this order: [`pool`] (the contract), [`stage`] (persisted before reachable, as types),
//! [`sealed`] (words that check themselves), [`arena`] (the words), then [`mapped`].

// It has unsafe code, and is tested with debug assertions.
#![allow(clippy::disallowed_macros)]

pub mod arena;
pub mod mapped;
mod mapping;
pub mod pool;
pub mod sealed;
pub mod stage;

pub use arena::Arena;
pub use mapped::MappedPool;
pub use pool::{Admitted, Lsn, PersistenceDomain, Pool, WriteBacks};
pub use sealed::{seal, unseal};
pub use stage::{Drained, Stage};
