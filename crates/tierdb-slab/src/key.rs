//! Keys in DRAM.

use smallvec::SmallVec;

/// Bytes of a key that are kept in place: the paper's are 24 bytes long (PrismDB §5).
const IN_PLACE: usize = 24;

/// Bytes that the allocator adds to what it gives.
pub const ALLOCATED: usize = 8;

/// A key by itself. A short one stands where it is used, without an address to follow.
pub type Key = SmallVec<[u8; IN_PLACE]>;

/// Bytes of DRAM that `key` takes beside itself.
pub fn apart_bytes(key: &[u8]) -> u64 {
    if key.len() > IN_PLACE { (key.len() + ALLOCATED) as u64 } else { 0 }
}
