//! Block files: how a store reaches flash, and block NVM.
//!
//! [`Dir`] and [`BlockFile`] are the narrow traits between an engine and block media. An engine takes
//! them as generic parameters. Their implementations: real directories with direct I/O, and
//! simulated ones with crash states and faults (`tierdb-sim`).
//!
//! Read in this order: [`mod@file`] (the contract), [`buf`] (aligned buffers), [`meter`] (who caused which
//! I/O, and emulated devices), [`combine`] (reads of many threads as one batch), [`striped`]
//! (several directories as one), [`real`] (real directories).

pub mod buf;
pub mod combine;
pub mod file;
pub mod meter;
pub mod real;
pub mod striped;

pub use buf::AlignedBuf;
pub use combine::Combined;
pub use file::{BLOCK, BlockFile, Dir, DirLock, FileRead, OpenMode, Piece, read_blocks};
pub use meter::{Cause, Emulation, Meter, MeterSnapshot, Metered, Pace, imitation_cpu, own_cpu};
pub use real::{RandomReads, ReadBatching, RealDir, RealFile, RealOptions, random_reads};
pub use striped::{STRIPE, Striped, StripedFile};
