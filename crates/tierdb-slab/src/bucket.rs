//! Buckets (PrismDB §5.3.1): what is known of the keys of a range without asking for each of them.
//!
//! The paper's have all as many keys as a table has on average. Keys here are byte strings of which nobody knows how they are spread, so a
//! bucket is the range of one table of the first level. It has three things: how many keys of the range only the fast tier has the
//! newest version of, which is the table's own count ([`LiveTable::dirty_keys`]); which of these were read, a bit for the hash of each;
//! and a moving average of the share of them that flash has, too.
//!
//! Reads set bits under the partition's lock for reading, so bits are atomic; all else changes under its lock for writing, or while
//! its migration is held. Nothing of it is stored: after an open counts are exact, no key is popular (none is tracked either), and the first
//! migration of a range begins its average.

use crate::core::{Core, hash_of};
use crate::live::LiveTable;
use crate::partition::{State, bounds};
use crate::plan::Victim;
use crate::tables::TableSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tierdb_base::Seqno;
use tierdb_device::{Cause, Dir};
use tierdb_pmem::Pool;

/// Bits for each key of the table; the fast tier has several times fewer of its range.
const BITS: u64 = 2;
/// The fewest words of bits.
const LEAST_WORDS: u64 = 4;
/// What a measurement counts for in the moving average.
const WEIGHT: f32 = 0.25;

/// Popularity and overlap of a range.
pub struct Bucket {
    bits: Box<[AtomicU64]>,
    /// As the bits of an `f32`; NaN as long as nothing was measured.
    overlap: AtomicU32,
}

impl Bucket {
    /// Of the range of a table that has so many keys.
    pub fn new(keys: u64) -> Self {
        let words = (keys * BITS).div_ceil(64).max(LEAST_WORDS);
        Bucket {
            bits: (0..words).map(|_| AtomicU64::new(0)).collect(),
            overlap: AtomicU32::new(f32::NAN.to_bits()),
        }
    }

    fn bit(&self, hash: u64) -> (&AtomicU64, u64) {
        let bit = ((u128::from(hash) * (self.bits.len() as u128 * 64)) >> 64) as usize;
        (&self.bits[bit / 64], 1 << (bit % 64))
    }

    /// The key with this hash was read.
    pub fn set(&self, hash: u64) {
        let (word, bit) = self.bit(hash);
        // What is popular is read often: its word stays as it is.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The key with this hash is not one of the range's any more.
    pub fn clear(&self, hash: u64) {
        let (word, bit) = self.bit(hash);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Whether the key with this hash was read, or one that has the same bit.
    pub fn has(&self, hash: u64) -> bool {
        let (word, bit) = self.bit(hash);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// About how many keys were read: of `n` bits as many are set as by `n ln(n / zeros)` keys.
    pub fn popular(&self) -> f64 {
        let bits = self.bits.len() as f64 * 64.0;
        let zeros: u32 = self.bits.iter().map(|word| word.load(Ordering::Relaxed).count_zeros()).sum();
        bits * (bits / f64::from(zeros.max(1))).ln()
    }

    /// The share of the range's keys on the fast tier that flash has, too; none if it was never measured.
    pub fn overlap(&self) -> f64 {
        let overlap = self.average();
        if overlap.is_nan() { 0.0 } else { overlap.into() }
    }

    fn average(&self) -> f32 {
        f32::from_bits(self.overlap.load(Ordering::Relaxed))
    }

    /// Of `keys` of the range flash had so many.
    pub fn measured(&self, on_flash: u64, keys: u64) {
        if keys > 0 {
            let (before, now) = (self.average(), on_flash as f32 / keys as f32);
            let average = if before.is_nan() { now } else { before + (now - before) * WEIGHT };
            self.overlap.store(average.to_bits(), Ordering::Relaxed);
        }
    }

    /// Goes on with the average of `before`, if it has none of its own.
    fn inherit(&self, before: &Bucket) {
        if self.average().is_nan() {
            self.overlap.store(before.overlap.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Bytes of DRAM.
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + self.bits.len() * 8) as u64
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Measures how many of the `victims` each of `tables` has, of those in its range, while `first` is the first level.
    pub fn measure_overlap(&self, first: &TableSet<D>, tables: &[Arc<LiveTable<D>>], victims: &[Victim]) {
        for table in tables {
            let Some((bucket, number)) = table.bucket().zip(first.position(table)) else { continue };
            // What cannot be read is met by the merge.
            let Ok(whole) = table.table(Cause::Migration) else { continue };
            let range = first.range_of(number);
            let from = victims.partition_point(|victim| range.is_before(&victim.key));
            let own = victims[from..].iter().take_while(|victim| range.contains(&victim.key));
            let (mut keys, mut on_flash) = (0, 0);
            for Victim { key, .. } in own {
                keys += 1;
                on_flash += u64::from(whole.locate(key, Seqno::MAX).is_some());
            }
            bucket.measured(on_flash, keys);
        }
    }

    /// The tables `gone` of the first level as it was `before` have left it: buckets of `state` that have their ranges now get the bits of
    /// keys that are still there, and tracked, and the averages. The caller holds the partition's migration, and victims have left
    /// the index: a bit that was cleared for one may be another key's, too.
    pub fn hand_over(&self, state: &State<D>, before: &TableSet<D>, gone: &[Arc<LiveTable<D>>]) {
        for table in gone {
            let Some((bucket, number)) = table.bucket().zip(before.position(table)) else { continue };
            let range = before.range_of(number);
            let now = state.tables.first();
            for (_, heir) in now.overlapping(&range) {
                heir.bucket().into_iter().for_each(|heir| heir.inherit(bucket));
            }
            let entries = bounds(&range).into_iter().flat_map(|bounds| state.index.range(bounds));
            for (key, _) in entries.filter(|(_, entry)| entry.is_counted()) {
                let hash = hash_of(key);
                if bucket.has(hash) && self.tracker.popularity(hash).is_some() {
                    now.bucket_of(key).into_iter().for_each(|heir| heir.set(hash));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_base::checksum;

    #[test]
    fn bits_are_counted_as_the_keys_that_set_them_and_overlap_is_averaged() {
        let hash = |key: u64| checksum(1, &key.to_le_bytes());
        let bucket = Bucket::new(4000);
        assert_eq!((bucket.popular(), bucket.overlap(), bucket.memory_bytes()), (0.0, 0.0, 24 + 1000));
        (0..2000).for_each(|key| bucket.set(hash(key)));
        assert!((1900.0..2100.0).contains(&bucket.popular()), "{}", bucket.popular());
        assert!((0..2000).all(|key| bucket.has(hash(key))));
        (0..1000).for_each(|key| bucket.clear(hash(key)));
        assert!((0..1000).all(|key| !bucket.has(hash(key))));
        let left = (1000..2000).filter(|key| bucket.has(hash(*key))).count();
        assert!((850..1000).contains(&left), "{left}: some had the bit of one that went");
        bucket.measured(0, 0);
        bucket.measured(3, 4);
        assert_eq!(bucket.overlap(), 0.75, "the first counts whole");
        bucket.measured(7, 4);
        assert_eq!(bucket.overlap(), 1.0, "each further one a quarter");
    }
}
