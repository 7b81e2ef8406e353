//! The words that every TierDB crate shares: limits, sizes, errors, checksums, the failure latch.
//!
//! Nothing here does I/O. Read [`error`] first: it says what can go wrong and what a caller can do.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod error;
pub mod hex;
pub mod latch;
pub mod limits;
pub mod mutant;
pub mod processors;
pub mod size;
#[cfg(feature = "mutants")]
pub mod sources;

pub use checksum::{checksum, checksum_parts, matches};
pub use error::{Error, ErrorKind, Location, Result, TierRole};
pub use latch::FailureLatch;
pub use limits::{MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, check_key, check_value};
pub use processors::processors;
pub use size::ByteSize;
pub use uuid::Uuid;

/// Order of writes: a later write of the same key has a higher seqno. The first write has 1.
pub type Seqno = u64;
