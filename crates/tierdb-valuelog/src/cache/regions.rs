//! Which parts of flash were read lately by reads that bring many values at once.
//!
//! To cache some of the values that such a read brings spares nothing, and to cache all of them would fill the cache with what
//! one scan passed. So they are cached when another reader reads their part of flash: [`Reader::is_read_again`].
//!
//! A mark is a tag of 15 bits, one of them set, whether the region was read again, and the time of that read. Marks are in a table that
//! is looked up by a hash, and stay until another region's takes their place: the table is small, so that is soon. Two readers who
//! change a mark at once cost a region some time, and nothing else.

use super::heap_bytes;
use crate::hash::mix;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes of flash that have one mark: about as many as a scan reads at once.
const REGION: u64 = 32 << 10;
/// Bytes of the cache's capacity for each mark: marks for an eighth of the regions that it can hold. What is read again only
/// after more other regions than that would be given up before it is of use.
const BYTES_A_MARK: u64 = 8 * REGION;
/// Readers after whom a region counts as read again. One who goes on where another ended has the answer of that one.
const APART: u16 = 8;

/// The bit of a mark that says that the read which made it was not the first one.
const AGAIN: u32 = 1 << 16;

/// See the module's description.
pub struct Regions {
    marks: Box<[AtomicU32]>,
    /// Counts readers.
    clock: AtomicU32,
}

impl Regions {
    /// No region was read yet, by readers of a cache of `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        let marks = (capacity / BYTES_A_MARK).clamp(64, 1 << 20).next_power_of_two();
        Regions { marks: (0..marks).map(|_| AtomicU32::new(0)).collect(), clock: AtomicU32::new(1) }
    }

    /// Bytes of heap.
    pub fn heap_bytes(&self) -> u64 {
        heap_bytes(size_of_val(&*self.marks))
    }

    /// For one reader: a cursor, or a read of many keys.
    pub fn reader(&self) -> Reader<'_> {
        Reader { regions: self, now: self.clock.fetch_add(1, Relaxed) as u16, last: None }
    }

    fn mark(&self, region: u64) -> (&AtomicU32, u16) {
        let hash = mix(region);
        let number = hash as usize & (self.marks.len() - 1);
        // Never zero, as marks are that nobody has made.
        (&self.marks[number], (hash >> 49) as u16 | 1)
    }
}

/// One reader, whose own reads are never read again.
pub struct Reader<'r> {
    regions: &'r Regions,
    now: u16,
    /// The region asked for last, and the answer.
    last: Option<(u64, bool)>,
}

impl Reader<'_> {
    /// Notes that byte `at` of a device is read, and says whether its region was read by another, some readers ago.
    pub fn is_read_again(&mut self, device: u8, at: u64) -> bool {
        let region = (u64::from(device) << 56) | (at / REGION);
        match self.last {
            Some((last, again)) if last == region => again,
            _ => {
                let again = self.note(region);
                self.last = Some((region, again));
                again
            }
        }
    }

    fn note(&self, region: u64) -> bool {
        let (mark, tag) = self.regions.mark(region);
        let was = mark.load(Relaxed);
        let is_known = (was >> 17) as u16 == tag;
        if is_known && self.now.wrapping_sub(was as u16) < APART {
            return was & AGAIN != 0;
        }
        let again = if is_known { AGAIN } else { 0 };
        mark.store((u32::from(tag) << 17) | again | u32::from(self.now), Relaxed);
        is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_read_again_by_a_later_reader_and_not_by_the_next_one() {
        let regions = Regions::new(64 << 20);
        let read = |at: u64| regions.reader().is_read_again(0, at);
        assert!(!read(0), "the first time");
        assert!(!read(REGION - 1), "one who goes on where another ended");
        (1..u64::from(APART)).for_each(|n| assert!(!read(n << 30), "region {n}"));
        assert!(read(5000) && read(6000), "again, and one who goes on");
        assert!(!regions.reader().is_read_again(1, 5000), "another device");

        let mut reader = regions.reader();
        assert!(!reader.is_read_again(2, 0) && !reader.is_read_again(2, 1), "one reader has one answer");
        (0..100).for_each(|n| assert!(!reader.is_read_again(3, n << 30), "region {n}"));
        assert!(!reader.is_read_again(3, 0), "what one has read oneself");
    }

    #[test]
    fn what_was_read_long_ago_is_forgotten() {
        let regions = Regions::new(1 << 20);
        let count = |range: std::ops::Range<u64>| {
            range.filter(|n| regions.reader().is_read_again(0, n * REGION)).count()
        };
        assert_eq!(count(0..20), 0);
        assert!(count(0..20) > 10, "these are remembered");
        assert!(count(1000..100_000) < 200, "new ones, but for tags that agree");
        assert!(count(0..20) < 5);
    }
}
