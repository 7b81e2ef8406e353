//! A latch in the lowest bit of a word whose other bits it guards.
//!
//! Invariants
//! 1. Only the holder of a [`WordGuard`] changes the word, so a reader that finds bit 0 clear has read
//!    a value that no holder is about to change behind it.
//! 2. The new value and the release are one store: nobody sees one without the other.

use crate::switch::Backoff;
use std::sync::atomic::{AtomicU64, Ordering};

/// The latch bit. The other 63 bits belong to whoever holds it.
pub const LATCHED: u64 = 1;

/// An atomic word. There is another than the standard one in models only.
pub trait Word {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// As [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
    /// As [`AtomicU64::compare_exchange`].
    fn compare_exchange(&self, old: u64, new: u64, done: Ordering, failed: Ordering) -> Result<u64, u64>;
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                <$atomic>::load(self, order)
            }

            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                <$atomic>::store(self, value, order);
            }

            #[inline]
            fn compare_exchange(
                &self,
                old: u64,
                new: u64,
                done: Ordering,
                failed: Ordering,
            ) -> Result<u64, u64> {
                <$atomic>::compare_exchange(self, old, new, done, failed)
            }
        }
    };
}
word!(AtomicU64);
#[cfg(loom)]
word!(crate::switch::AtomicU64);

/// Exclusive use of a word; dropping it stores its value with the latch bit clear.
pub struct WordGuard<'w, W: Word = AtomicU64> {
    word: &'w W,
    value: u64,
}

impl<'w, W: Word> WordGuard<'w, W> {
    /// Waits for the latch of `word`, spinning briefly and then yielding. For sections without I/O.
    pub fn latch(word: &'w W) -> Self {
        let backoff = Backoff::new();
        loop {
            if let Some(guard) = Self::try_latch(word) {
                return guard;
            }
            backoff.snooze();
        }
    }

    /// Takes the latch of `word` if nobody holds it.
    #[inline]
    pub fn try_latch(word: &'w W) -> Option<Self> {
        let value = word.load(Ordering::Relaxed);
        // Acquire pairs with the release in `drop`: what the last holder wrote is seen.
        let taken = value & LATCHED == 0
            && word.compare_exchange(value, value | LATCHED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Made only if it was taken: a guard that is dropped stores the word.
        taken.then(|| WordGuard { word, value })
    }

    /// The guarded value; bit 0 is clear.
    #[inline]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Sets what the release will store.
    ///
    /// # Panics
    /// If `value` has the latch bit.
    #[inline]
    pub fn set(&mut self, value: u64) {
        assert!(value & LATCHED == 0, "bit 0 is the latch");
        self.value = value;
    }
}

impl<W: Word> Drop for WordGuard<'_, W> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(self.value, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn holders_exclude_each_other_and_no_change_is_lost() {
        let times = if cfg!(miri) { 100 } else { 5_000 };
        let word = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..times {
                        let mut guard = WordGuard::latch(&word);
                        guard.set(guard.value() + 2);
                    }
                });
            }
        });
        assert_eq!(word.load(Ordering::Relaxed), 8 * times);
        let held = WordGuard::latch(&word);
        assert!(WordGuard::try_latch(&word).is_none());
        assert_eq!(word.load(Ordering::Relaxed), 8 * times + 1);
        drop(held);
        assert_eq!(word.load(Ordering::Relaxed), 8 * times);
    }
}
