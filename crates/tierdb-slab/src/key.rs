//! Keys in DRAM.

use smallvec::SmallVec;

/// Bytes of a key that are kept in place: the paper's are 24 bytes long [5].
const IN_PLACE: usize = 24;

/// Bytes that the allocator adds to what it gives.
const ALLOCATED: u64 = 8;

/// A key of the index. A short one stands in the tree itself, so that a search, which compares with some ten keys in each
/// of its nodes, need not follow an address for each of them.
pub type Key = SmallVec<[u8; IN_PLACE]>;

/// Bytes of DRAM that `key` takes beside its place in the tree.
pub fn apart_bytes(key: &[u8]) -> u64 {
    if key.len() > IN_PLACE { key.len() as u64 + ALLOCATED } else { 0 }
}
