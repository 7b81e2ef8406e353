//! A pool kept in DRAM and made durable on a block device: a redo log ring with group commit, and page
//! checkpoints.
//!
//! [`LoggedPool`] gives an engine the byte-addressable [`Pool`](tierdb_pmem::Pool) contract where the fast
//! tier is a block device, or where there is one plain SSD. It starts no threads: whoever waits for
//! durability writes the log, and the engine's background threads wait for what was grouped, and call
//! [`LoggedPool::checkpoint`].
//!
//! Three files in one directory, all named by a prefix:
//!
//! | file | what | written |
//! |---|---|---|
//! | `.log` | a ring of log blocks | one durable write for each group commit |
//! | `.image` | slots of one page each, in no order | by checkpoints, only to slots that no table names |
//! | `.table` | three areas, each with which page is in which slot, and where the log begins | in turn, last in a checkpoint |
//!
//! Read in this order: [`pool`] (what is promised, and why recovery gives it), then `block` and `table` (the
//! bytes), `log` (group commit), `store` and `checkpoint` (shadow paging), `recover` with
//! `load` and `replay`.

#![forbid(unsafe_code)]

mod bits;
mod block;
mod checkpoint;
mod dirty;
mod frames;
mod layout;
mod load;
mod log;
mod memory;
pub mod options;
pub mod pool;
mod recover;
mod replay;
mod slots;
mod store;
mod table;

pub use options::{LARGEST_POOL, LoggedOptions, LoggedStats, LostPage, Salvage};
pub use pool::LoggedPool;
