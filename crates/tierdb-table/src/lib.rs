//! Immutable sorted tables (SSTs) on a block device.
//!
//! A table is written once, front to back, by a [`Writer`], and read by any number of threads through a [`Table`]. It
//! holds versions of keys: of one key the newest first, tombstones among them. It does not know about
//! levels, about which tables are live, or when a file may be removed: that is the engine's.
//!
//! Read in this order: [`footer`] (how a file is laid out, and found to be whole), [`block`] (how entries are packed),
//! [`index`] and [`filter`] (how a block is found; both may be kept on a faster tier), [`writer`],
//! [`table`], [`mod@iter`] (ranges, with read-ahead), [`merge`] (many sources as one; [`chain`] where their keys do not overlap), [`retain`] (which versions a rewrite
//! keeps), [`visible`] (what a snapshot sees), [`verify`] and [`salvage`] (damage).
//!
//! # Limits
//!
//! Keys of 1 to 4,096 bytes; values of up to 64 MiB; a file of up to 4 GiB.
//!
//! # Example
//!
//! ```
//! use tierdb_device::{Cause, Meter};
//! use tierdb_sim::World;
//! use tierdb_table::{EntryRef, TableDir, WriterOptions};
//!
//! # fn main() -> tierdb_base::Result<()> {
//! let tables = TableDir::new(World::new().add_dir("flash"), 7, Meter::new(), None);
//! let mut writer = tables.create(1, Cause::Gc, &WriterOptions::default())?;
//! writer.add(&EntryRef { key: b"a", seqno: 9, value: None })?;
//! writer.add(&EntryRef { key: b"a", seqno: 4, value: Some(b"before") })?;
//! let table = writer.finish()?;
//! let found = table.get(b"a", 5, Cause::Foreground)?.expect("a version as old as that");
//! assert_eq!((found.seqno, found.value.as_deref()), (4, Some(&b"before"[..])));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod block;
mod bytes;
pub mod chain;
pub mod dir;
mod entry;
pub mod filter;
pub mod footer;
pub mod id;
pub mod index;
pub mod iter;
pub mod merge;
pub mod retain;
pub mod salvage;
pub mod table;
pub mod verify;
pub mod visible;
pub mod writer;

pub use block::Flaw;
pub use chain::Chain;
pub use dir::{Parts, TableDir};
pub use entry::{Entry, EntryRef, Found, Version};
pub use filter::Filter;
pub use footer::{Footer, MAX_TABLE_BYTES};
pub use id::{TableId, file_name, file_number};
pub use index::Index;
pub use iter::{Direction, ReadAhead, TableIter};
pub use merge::{Merge, Source};
pub use retain::{Retain, Retention};
pub use salvage::Salvage;
pub use table::Table;
pub use verify::{Damage, VerifyReport};
pub use visible::Visible;
pub use writer::{EMPTY_LEN, Writer, WriterOptions};
