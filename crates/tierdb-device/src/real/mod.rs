//! Block files in a directory of a file system.
//!
//! Read in this order: `dir` (opening, what the medium is, the lock), `file` (writes and syncs), `device`
//! (how reads get to the medium), `uring` (the only place where the kernel works on our buffers behind
//! our back, but for `reference`), `pool` (overlapping reads where there is no io_uring), `reference` (what the device
//! does by itself).

mod device;
mod dir;
mod file;
mod pool;
mod reference;
mod uring;

pub use device::{ReadBatching, RealOptions};
pub use dir::RealDir;
pub use file::RealFile;
pub use reference::{RandomReads, random_reads};
