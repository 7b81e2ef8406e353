//! Which copies stay: decisions only, so that policies can be compared on the same lists.

use super::heap_bytes;
use super::lists::Which;
use crate::hash::mix;

/// What becomes of the oldest slot of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It goes to the head of a list, its heat set anew.
    Move(Which, u8),
    /// It goes; with `remember`, so that a soon return is noticed.
    Evict { remember: bool },
}

/// A replacement policy over two lists, as numbers. Reads only count; the lists move when room is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// For tests that print it.
    #[cfg(test)]
    pub name: &'static str,
    /// The heat at which further reads are not counted.
    pub max_heat: u8,
    /// The heat with which the oldest of the inactive list goes to the active one.
    promoted_at: u8,
    /// How many of the entries evicted last are remembered, in percent of those cached. A longer memory
    /// follows a change of what is hot sooner, a shorter one keeps out more of what is never hot.
    memory_pct: usize,
    /// Whether the oldest of an active list that is too long goes to the inactive one; else it goes round if
    /// it was read, and is evicted if not.
    demotes: bool,
}

impl Policy {
    /// 2Q with an inactive and an active list (PRISM §4.4). A copy enters the inactive list, goes on to the
    /// active one if it was read again by the time it is the oldest, and comes back from the tail of an
    /// active list that is too long. What was evicted lately (the third queue of the original 2Q, Johnson and
    /// Shasha, VLDB '94) enters the active list at once.
    pub const TWO_Q: Self = Policy {
        #[cfg(test)]
        name: "2Q",
        max_heat: 1,
        promoted_at: 1,
        memory_pct: 50,
        demotes: true,
    };

    /// S3-FIFO (Yang et al., SOSP '23), to compare with: a short queue that most copies leave for good, a
    /// long one in which copies that are read go round.
    ///
    /// Its hit ratio is within a hundredth of that of 2Q where popularity follows Zipf's law and stays or
    /// shifts; where the latest entries are read most, 2Q has one or two hundredths more.
    #[cfg(test)]
    pub const S3_FIFO: Self =
        Policy { name: "S3-FIFO", max_heat: 3, promoted_at: 2, memory_pct: 100, demotes: false };

    /// How many of the entries evicted last are remembered by a cache that holds `count`.
    pub fn memory(self, count: usize) -> usize {
        count * self.memory_pct / 100
    }

    /// The list a new copy enters; `known` if the value was evicted or read lately.
    pub fn entrance(self, known: bool) -> Which {
        if known { Which::Active } else { Which::Inactive }
    }

    /// The list whose tail is looked at next: the active one if it has more than nine tenths of the bytes.
    pub fn next(self, inactive: u64, active: u64) -> Which {
        if active > 9 * inactive { Which::Active } else { Which::Inactive }
    }

    /// What becomes of the oldest slot of a list, which was read `heat` times since it was looked at last.
    pub fn fate(self, which: Which, heat: u8) -> Fate {
        match which {
            Which::Inactive if heat >= self.promoted_at => Fate::Move(Which::Active, 0),
            Which::Inactive => Fate::Evict { remember: true },
            Which::Active if self.demotes => Fate::Move(Which::Inactive, heat),
            Which::Active if heat > 0 => Fate::Move(Which::Active, heat - 1),
            Which::Active => Fate::Evict { remember: false },
        }
    }
}

/// Entries evicted lately: tags in buckets of four, each with the time of its eviction counted in evictions.
#[derive(Default)]
pub(super) struct Ghost {
    marks: Box<[u32]>,
    clock: u64,
}

const WAYS: usize = 4;
const SMALLEST: usize = 256;

impl Ghost {
    /// How many marks a ghost that remembers so many entries has, if it needs more than it has now.
    pub fn wants(&self, entries: usize) -> Option<usize> {
        let marks = entries.next_power_of_two().max(SMALLEST);
        (marks > self.marks.len()).then_some(marks)
    }

    /// Heap bytes of a ghost of so many marks.
    pub fn bytes_of(marks: usize) -> u64 {
        heap_bytes(marks * size_of::<u32>())
    }

    /// Takes more room, forgetting all. Returns the bytes given back.
    pub fn resize(&mut self, marks: usize) -> u64 {
        let before = if self.marks.is_empty() { 0 } else { Self::bytes_of(self.marks.len()) };
        self.marks = vec![0; marks].into();
        before
    }

    /// How many entries it can remember.
    #[cfg(test)]
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    /// Notes that an entry was evicted.
    pub fn remember(&mut self, entry: u64) {
        if self.marks.is_empty() {
            return;
        }
        self.clock += 1;
        let (at, tag) = self.place(entry);
        let now = self.time();
        let bucket = &mut self.marks[at..at + WAYS];
        let age = |mark: u32| if mark == 0 { u16::MAX } else { now.wrapping_sub(mark as u16) };
        let oldest = (0..WAYS).max_by_key(|&way| age(bucket[way])).unwrap_or(0);
        bucket[oldest] = tag << 16 | u32::from(now);
    }

    /// Whether an entry was among the last `window` evicted, as far as is remembered. Forgets it.
    pub fn recall(&mut self, entry: u64, window: usize) -> bool {
        if self.marks.is_empty() {
            return false;
        }
        let (at, tag) = self.place(entry);
        let (now, shift) = (self.time(), self.shift());
        for mark in &mut self.marks[at..at + WAYS] {
            if *mark >> 16 == tag {
                let age = u64::from(now.wrapping_sub(*mark as u16)) << shift;
                *mark = 0;
                return age <= window as u64;
            }
        }
        false
    }

    /// The bucket and the tag, which is not zero, of an entry.
    fn place(&self, entry: u64) -> (usize, u32) {
        let hash = mix(entry);
        let buckets = self.marks.len() / WAYS;
        ((hash as usize & (buckets - 1)) * WAYS, (hash >> 48) as u32 | 1)
    }

    /// The clock in steps of a 256th of the marks, so that 16 bits of it span 256 times the marks.
    fn time(&self) -> u16 {
        (self.clock >> self.shift()) as u16
    }

    fn shift(&self) -> u32 {
        self.marks.len().ilog2() - SMALLEST.ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_recalls_what_was_evicted_lately_and_nothing_else() {
        let mut ghost = Ghost::default();
        assert!(!ghost.recall(1, 100));
        assert_eq!(ghost.wants(1000), Some(1024));
        assert_eq!(ghost.resize(1024), 0);
        assert_eq!(ghost.wants(1000), None);
        (0..10_000).for_each(|entry| ghost.remember(entry));
        let lately = (9_500..10_000).filter(|&entry| ghost.recall(entry, 500)).count();
        assert!(lately > 450, "{lately}");
        let again = (9_500..10_000).filter(|&entry| ghost.recall(entry, 500)).count();
        assert!(again < 5, "{again}");
        let old = (0..8_000).filter(|&entry| ghost.recall(entry, 500)).count();
        assert!(old < 40, "{old}");
    }
}
