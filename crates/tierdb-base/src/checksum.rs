//! Checksums of stored bytes: XXH3-64, seeded with what identifies the place.
//!
//! The seed carries the store's UUID (and, for blocks that never move, their place), so bytes of
//! another store or of another place fail although they are intact.

use crate::mutant;
use std::hash::Hasher;
use twox_hash::XxHash3_64;
use twox_hash::xxhash3_64::{DEFAULT_SECRET_LENGTH, RawHasher, SecretBuffer};

/// Most bytes of parts that are laid end to end on the stack.
const SHORT: usize = 128;

/// Checksum of `bytes` under `seed`.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    if left_out::is(bytes.len()) {
        return seed;
    }
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Checksum of `parts` laid end to end, under `seed`.
pub fn checksum_parts(seed: u64, parts: &[&[u8]]) -> u64 {
    let len = parts.iter().map(|part| part.len()).sum();
    if left_out::is(len) {
        return seed;
    }
    // To lay a few bytes end to end takes less than to hash them part by part.
    if len <= SHORT {
        let mut whole = [0; SHORT];
        let mut at = 0;
        for part in parts {
            whole[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        return checksum(seed, &whole[..len]);
    }
    // On the stack: `XxHash3_64::with_seed` allocates what it derives from the seed.
    let secret = SecretBuffer::with_seed(seed, [0; DEFAULT_SECRET_LENGTH]).expect("a secret of its length");
    let mut hasher = RawHasher::new(secret);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
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

/// What a benchmark leaves out to see what it costs. Without the feature `unchecked` nothing ever is.
mod left_out {
    #[cfg(feature = "unchecked")]
    use std::sync::atomic::{AtomicBool, Ordering};

    #[cfg(feature = "unchecked")]
    static LONG: AtomicBool = AtomicBool::new(false);

    /// Bytes from which on a checksum is long: those of headers, and hashes of ordinary keys, are not.
    #[cfg(feature = "unchecked")]
    const LEAST: usize = 256;

    /// Whether the checksum of so many bytes is left out.
    #[inline]
    pub(super) fn is(len: usize) -> bool {
        #[cfg(feature = "unchecked")]
        return len >= LEAST && LONG.load(Ordering::Relaxed);
        #[cfg(not(feature = "unchecked"))]
        {
            let _ = len;
            false
        }
    }

    /// Leaves out the checksums of 256 bytes and more in this process from now on, so that damage to records, log
    /// blocks, pages and tables passes.
    ///
    /// For measuring what they cost, before any store is opened: what is written so reads as damaged in a process that
    /// checks.
    #[cfg(feature = "unchecked")]
    pub fn leave_out_long() {
        LONG.store(true, Ordering::Relaxed);
    }
}

#[cfg(feature = "unchecked")]
pub use left_out::leave_out_long;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_whole_agree_and_the_seed_counts() {
        let bytes: Vec<u8> = (0..600_u32).map(|i| i as u8).collect();
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, bytes.len()] {
            let bytes = &bytes[..len];
            let whole = checksum(7, bytes);
            let (head, tail) = bytes.split_at(len / 3);
            assert_eq!(checksum_parts(7, &[head, &[], tail]), whole, "{len}");
            assert_ne!(checksum(8, bytes), whole, "{len}");
        }
    }

    #[test]
    fn it_is_xxh3() {
        // Of the reference implementation, and of another one.
        assert_eq!(checksum(0, b""), 0x2d06_8005_38d3_94c2);
        let bytes: Vec<u8> = (0..600_u32).map(|i| i as u8).collect();
        assert_eq!(checksum(7, &bytes[..100]), 0xf99b_7990_5a88_dc51);
        assert_eq!(checksum(7, &bytes), 0xef6a_9a85_be45_d45b);
    }
}
