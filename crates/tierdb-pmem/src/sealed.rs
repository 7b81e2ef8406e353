//! Words that carry their own checksum: small numbers that are published one by one, where damage must not
//! pass for another number.

use crate::pool::Pool;
use tierdb_base::{Error, Result, TierRole, checksum, matches};

/// Bits of a number that can be sealed; the rest of the word checks it.
pub const NUMBER_BITS: u32 = 41;

/// The sealed form of `number`, which has at most 41 bits, for the header's word at byte `at`.
pub fn seal(seed: u64, at: u64, number: u64) -> u64 {
    debug_assert!(number >> NUMBER_BITS == 0, "{number} has more than {NUMBER_BITS} bits");
    number | seal_check(seed, at, number) << NUMBER_BITS
}

/// The number that the word at byte `at` seals.
///
/// # Errors
/// `Corrupt` if it is not a word that was written there.
pub fn unseal<P: Pool>(pool: &P, seed: u64, at: u64) -> Result<u64> {
    let word = pool.load(at);
    let number = word & ((1 << NUMBER_BITS) - 1);
    if matches(word >> NUMBER_BITS, seal_check(seed, at, number)) {
        Ok(number)
    } else {
        Err(Error::corrupt(TierRole::Fast, "a sealed word of the pool is damaged", pool.place(at)))
    }
}

fn seal_check(seed: u64, at: u64, number: u64) -> u64 {
    checksum(seed, [at, number].map(u64::to_le_bytes).as_flattened()) >> NUMBER_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MappedPool;

    #[test]
    fn a_sealed_word_reads_back_in_its_place_alone() {
        let pool = MappedPool::in_memory(4096);
        for number in [0, 1, (1 << NUMBER_BITS) - 1] {
            let sealed = seal(5, 128, number);
            pool.store(128, sealed);
            assert_eq!(unseal(&pool, 5, 128).expect("whole"), number);
            assert!(unseal(&pool, 6, 128).is_err(), "another store's");
            pool.store(136, sealed);
            assert!(unseal(&pool, 5, 136).is_err(), "another word's");
            for bit in 0..64 {
                pool.store(128, sealed ^ 1 << bit);
                assert!(unseal(&pool, 5, 128).is_err(), "bit {bit}");
            }
        }
        pool.store(128, 0);
        assert!(unseal(&pool, 5, 128).is_err(), "zeroed");
    }
}
