//! The tracker and the mapper (PrismDB §4.3, §5.2): which keys were read lately, and how many are how popular.
//!
//! One table of cells of 4 bytes, in sets of eight; a key may be in its set only. A cell holds a fingerprint of
//! the key, three clock bits and the tier on which the key was last seen. There is no second list: the clock
//! hand of a set goes around its cells, and takes one from each clock value it passes until it finds a zero.
//! So 4.1 bytes a key, and no lock: a cell is one atomic word, and a race costs at most the count of one access.
//!
//! Unlike the paper's, which has two clock bits and sets them all at each access but the first, the clock counts accesses: among the
//! keys that are read now and then, most of what there is, it tells which are read more often.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const WAYS: usize = 8;
const USED: u32 = 1;
const CLOCK_SHIFT: u32 = 1;
const CLOCK: u32 = (CLOCKS as u32 - 1) << CLOCK_SHIFT;
const ON_FLASH: u32 = 1 << 4;
const PRINT_SHIFT: u32 = 5;
/// Clock values.
pub const CLOCKS: usize = 8;
/// The highest of them.
const HOT: u8 = CLOCKS as u8 - 1;

/// Where a key was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// On the fast tier.
    Fast,
    /// On flash.
    Flash,
}

/// How popular a key is: its clock value; `None` if it is not tracked.
pub type Popularity = Option<u8>;

/// Whether it has the highest clock value.
pub fn is_hottest(popularity: Popularity) -> bool {
    popularity == Some(HOT)
}

/// Recently read keys.
pub struct Tracker {
    cells: Box<[AtomicU32]>,
    hands: Box<[AtomicU8]>,
    /// Keys with each clock value: the mapper.
    clocks: [AtomicU64; CLOCKS],
    /// Tracked keys that were last read from flash.
    on_flash: AtomicU64,
}

fn clock_of(cell: u32) -> u8 {
    ((cell & CLOCK) >> CLOCK_SHIFT) as u8
}

impl Tracker {
    /// A tracker for about `keys` keys.
    pub fn new(keys: u64) -> Self {
        let sets = (keys as usize).div_ceil(WAYS).clamp(16, 1 << 32);
        Tracker {
            cells: (0..sets * WAYS).map(|_| AtomicU32::new(0)).collect(),
            hands: (0..sets).map(|_| AtomicU8::new(0)).collect(),
            clocks: Default::default(),
            on_flash: AtomicU64::new(0),
        }
    }

    fn set_of(&self, hash: u64) -> (usize, &[AtomicU32]) {
        let set = (((hash >> 32) * self.hands.len() as u64) >> 32) as usize;
        (set, &self.cells[set * WAYS..][..WAYS])
    }

    fn print_of(hash: u64) -> u32 {
        (hash as u32) << PRINT_SHIFT | USED
    }

    fn find(set: &[AtomicU32], print: u32) -> Option<(&AtomicU32, u32)> {
        set.iter()
            .map(|cell| (cell, cell.load(Ordering::Relaxed)))
            .find(|(_, now)| now & !(CLOCK | ON_FLASH) == print)
    }

    /// Counts that a cell is `now` what it `was` not. Not at the moment in which it becomes so: who changes it next may be counted first.
    fn count(&self, was: u32, now: u32) {
        if now & USED != 0 {
            self.clocks[usize::from(clock_of(now))].fetch_add(1, Ordering::Relaxed);
            self.on_flash.fetch_add(u64::from(now & ON_FLASH != 0), Ordering::Relaxed);
        }
        if was & USED != 0 {
            self.clocks[usize::from(clock_of(was))].fetch_sub(1, Ordering::Relaxed);
            self.on_flash.fetch_sub(u64::from(was & ON_FLASH != 0), Ordering::Relaxed);
        }
    }

    /// What `count` says; nothing as long as it is below that, because a key is counted that goes before it is counted that it came.
    fn counted(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    fn change(&self, cell: &AtomicU32, was: u32, now: u32) -> bool {
        let done = cell.compare_exchange(was, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if done {
            self.count(was, now);
        }
        done
    }

    /// The key with this hash was read from `tier`: its clock value rises, or it is tracked with the lowest.
    /// Returns how popular it was before.
    pub fn touch(&self, hash: u64, tier: Tier) -> Popularity {
        let (number, set) = self.set_of(hash);
        let print = Self::print_of(hash);
        let place = if tier == Tier::Flash { ON_FLASH } else { 0 };
        if let Some((cell, was)) = Self::find(set, print) {
            let clock = (clock_of(was) + 1).min(HOT);
            let now = print | u32::from(clock) << CLOCK_SHIFT | place;
            if was != now {
                self.change(cell, was, now);
            }
            return Some(clock_of(was));
        }
        let new = print | place;
        if let Some(cell) = set.iter().find(|cell| cell.load(Ordering::Relaxed) == 0)
            && self.change(cell, 0, new)
        {
            return None;
        }
        // Each cell is passed as often as its clock value says at the most.
        for _ in 0..=WAYS * usize::from(HOT) {
            let hand = usize::from(self.hands[number].fetch_add(1, Ordering::Relaxed)) % WAYS;
            let was = set[hand].load(Ordering::Relaxed);
            if clock_of(was) == 0 {
                self.change(&set[hand], was, new);
                break;
            }
            self.change(&set[hand], was, was - (1 << CLOCK_SHIFT));
        }
        None
    }

    /// The key with this hash went to `tier`.
    pub fn moved(&self, hash: u64, tier: Tier) {
        if let Some((cell, was)) = Self::find(self.set_of(hash).1, Self::print_of(hash)) {
            let now = if tier == Tier::Flash { was | ON_FLASH } else { was & !ON_FLASH };
            if now != was {
                self.change(cell, was, now);
            }
        }
    }

    /// How popular the key with this hash is.
    pub fn popularity(&self, hash: u64) -> Popularity {
        Self::find(self.set_of(hash).1, Self::print_of(hash)).map(|(_, cell)| clock_of(cell))
    }

    /// Keys with each clock value.
    pub fn distribution(&self) -> [u64; CLOCKS] {
        self.clocks.each_ref().map(Self::counted)
    }

    /// Tracked keys that were last read from flash.
    pub fn on_flash(&self) -> u64 {
        Self::counted(&self.on_flash)
    }

    /// Keys that can be tracked.
    pub fn capacity(&self) -> u64 {
        self.cells.len() as u64
    }

    /// Bytes of DRAM.
    pub fn memory_bytes(&self) -> u64 {
        (self.cells.len() * 4 + self.hands.len()) as u64
    }

    /// What has to be pinned so that the most popular `pinned_pct` percent of the tracked keys are.
    pub fn threshold(&self, pinned_pct: f64) -> Threshold {
        let clocks = self.distribution();
        let tracked: u64 = clocks.iter().sum();
        let mut left = tracked as f64 * pinned_pct / 100.0;
        let mut share = [0.0; CLOCKS];
        for clock in (0..CLOCKS).rev() {
            let keys = clocks[clock] as f64;
            // Of an empty class behind the marginal one, nothing: somebody may just be coming into it.
            share[clock] = if left > 0.0 { (left / keys).min(1.0) } else { 0.0 };
            left = (left - keys).max(0.0);
        }
        Threshold { share }
    }
}

/// How much of each clock value is pinned: all of the higher, some of one chosen at random, none of the lower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    share: [f64; CLOCKS],
}

impl Threshold {
    /// Whether a key of this popularity is pinned.
    pub fn pins(&self, popularity: Popularity) -> bool {
        popularity.is_some_and(|clock| {
            let share = self.share[usize::from(clock.min(HOT))];
            share >= 1.0 || share > 0.0 && fastrand::f64() < share
        })
    }

    /// Whether the key with this hash, of this popularity, is pinned; the same ones each time, so that they do not come and go.
    pub fn pins_same(&self, popularity: Popularity, hash: u64) -> bool {
        let at = f64::from((hash >> 16) as u16) / f64::from(1 << 16);
        popularity.is_some_and(|clock| at < self.share[usize::from(clock.min(HOT))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_base::checksum;

    fn hash(key: u64) -> u64 {
        checksum(1, &key.to_le_bytes())
    }

    #[test]
    fn what_is_read_again_stays_and_what_is_read_once_goes() {
        let tracker = Tracker::new(1024);
        for round in 0..20 {
            for key in 0..200 {
                tracker.touch(hash(key), Tier::Fast);
            }
            for key in 0..400 {
                tracker.touch(hash(1000 + round * 400 + key), Tier::Flash);
            }
        }
        let kept = (0..200).filter(|key| tracker.popularity(hash(*key)).is_some()).count();
        assert!(kept > 190, "{kept} of 200");
        let tracked: u64 = tracker.distribution().iter().sum();
        assert!(tracked <= 1024 && tracked > 900, "{tracked}");
        assert!(tracker.on_flash() > 600 && tracker.on_flash() <= tracked - kept as u64);
        let before = tracker.on_flash();
        tracker.touch(hash(5), Tier::Fast);
        tracker.moved(hash(5), Tier::Flash);
        assert_eq!((tracker.popularity(hash(5)), tracker.on_flash()), (Some(HOT), before + 1));
    }

    #[test]
    fn a_key_that_goes_before_it_is_counted_is_not_counted() {
        let tracker = Tracker::new(1024);
        let cell = USED | ON_FLASH;
        tracker.count(cell, 0);
        assert_eq!((tracker.distribution(), tracker.on_flash()), ([0; CLOCKS], 0));
        tracker.count(0, cell);
        tracker.count(0, cell);
        assert_eq!((tracker.distribution(), tracker.on_flash()), ([1, 0, 0, 0, 0, 0, 0, 0], 1));
    }

    #[test]
    fn the_threshold_takes_the_highest_first_and_some_of_the_marginal_class() {
        let tracker = Tracker::new(4096);
        for (clock, keys) in [500, 0, 0, 0, 0, 300, 100, 100].into_iter().enumerate() {
            tracker.clocks[clock].store(keys, Ordering::Relaxed);
        }
        assert_eq!(tracker.threshold(15.0).share, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0]);
        assert_eq!(tracker.threshold(100.0).share, [1.0; CLOCKS]);
        let threshold = tracker.threshold(15.0);
        fastrand::seed(1);
        let kept = (0..1000).filter(|_| threshold.pins(Some(6))).count();
        assert!((400..600).contains(&kept), "{kept}");
        assert!(threshold.pins(Some(7)) && !threshold.pins(Some(5)) && !threshold.pins(None));
    }
}
