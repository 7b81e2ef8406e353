//! Checksums of stored bytes: XXH3-64, seeded with what identifies the place.
//!
//! The seed carries the store's UUID (and, for blocks that never move, their place), so bytes of
//! another store or of another place fail although they are intact.

use crate::mutant;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Checksum of `bytes` under `seed`.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Checksum of `parts` laid end to end, under `seed`.
pub fn checksum_parts(seed: u64, parts: &[&[u8]]) -> u64 {
    let mut hasher = Xxh3::with_seed(seed);
    for part in parts {
        hasher.update(part);
    }
    hasher.digest()
}

/// Whether a stored checksum is the computed one.
///
/// Every comparison of a checksum goes through here, so that a test can switch each off in turn and
/// see that damage is then no longer noticed. Where they differ a second site is passed, so that the test knows
/// which damage the comparison tells.
#[track_caller]
#[inline]
pub fn matches(stored: u64, computed: u64) -> bool {
    !mutant::keep("checksum") || stored == computed || !mutant::keep("mismatch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_whole_agree_and_the_seed_counts() {
        let whole = checksum(7, b"tier and log");
        assert_eq!(checksum_parts(7, &[b"tier", b" and ", b"log"]), whole);
        assert_ne!(checksum(8, b"tier and log"), whole);
    }
}
