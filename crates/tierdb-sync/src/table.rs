//! A table that grows without moving what is in it.

use std::sync::OnceLock;

const FIRST_BITS: u32 = 10;
const SEGMENTS: usize = 40;

/// Elements by index, made on first touch in segments of doubling size. Reads take no lock.
pub struct Table<T> {
    segments: [OnceLock<Box<[T]>>; SEGMENTS],
}

impl<T: Default> Table<T> {
    /// No segments yet.
    pub fn new() -> Self {
        Table { segments: [const { OnceLock::new() }; SEGMENTS] }
    }

    fn place(index: u64) -> (usize, usize, usize) {
        let shifted = index + (1 << FIRST_BITS);
        let segment = 63 - shifted.leading_zeros() - FIRST_BITS;
        let len = 1usize << (segment + FIRST_BITS);
        (segment as usize, (shifted - len as u64) as usize, len)
    }

    /// How many elements, from the first one on, whole segments have that are no more than `most` together: what is in use takes no more
    /// memory than these.
    pub fn whole_segments(most: u64) -> u64 {
        let first = 1 << FIRST_BITS;
        ((1 << (most / first + 1).ilog2()) - 1) * first
    }

    /// The element at `index`, made with its segment if it is not there yet.
    #[inline]
    pub fn get(&self, index: u64) -> &T {
        let (segment, at, len) = Self::place(index);
        &self.segments[segment].get_or_init(|| (0..len).map(|_| T::default()).collect())[at]
    }

    /// The element at `index`, if its segment was made.
    pub fn existing(&self, index: u64) -> Option<&T> {
        let (segment, at, _) = Self::place(index);
        self.segments[segment].get().map(|elements| &elements[at])
    }

    /// Bytes of DRAM that the segments take.
    pub fn memory_bytes(&self) -> u64 {
        self.segments.iter().filter_map(OnceLock::get).map(|s| size_of_val(&**s) as u64).sum()
    }
}

impl<T: Default> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn elements_are_distinct_and_stay() {
        let count = if cfg!(miri) { 2_000 } else { 10_000 };
        let table = Table::<AtomicU64>::new();
        assert!(table.existing(count / 2).is_none());
        for i in (0..count).rev() {
            table.get(i).store(i + 1, Ordering::Relaxed);
        }
        assert!((0..count).all(|i| table.get(i).load(Ordering::Relaxed) == i + 1));
        assert!(table.memory_bytes() >= count * 8);
    }

    #[test]
    fn whole_segments_take_no_more_than_they_may() {
        for (most, whole) in
            [(0, 0), (1023, 0), (1024, 1024), (3071, 1024), (3072, 3072), (1 << 20, 1_047_552)]
        {
            assert_eq!(Table::<u8>::whole_segments(most), whole);
            let table = Table::<u8>::new();
            (0..whole).step_by(512).for_each(|index| {
                table.get(index);
            });
            assert_eq!(table.memory_bytes(), whole);
        }
    }
}
