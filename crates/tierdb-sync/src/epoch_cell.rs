//! A value that is replaced while others read it.

#![allow(unsafe_code)]

use crossbeam_epoch::{Atomic, Guard, Owned, unprotected};
use std::sync::atomic::Ordering;

/// A value that is replaced as a whole while others read it. A read costs a load: what was replaced lives until every
/// thread that was pinned then has gone on (epoch-based reclamation, Fraser 2004), so a reader takes part in nothing,
/// and who replaces it does not look for readers.
pub struct EpochCell<T> {
    at: Atomic<T>,
}

impl<T: Send + Sync + 'static> EpochCell<T> {
    /// A cell with `value` in it.
    pub fn new(value: T) -> Self {
        EpochCell { at: Atomic::new(value) }
    }

    /// The value as of some moment since `guard` was pinned.
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g Guard) -> &'g T {
        let now = self.at.load(Ordering::Acquire, guard);
        // SAFETY: the cell is never empty, and what is replaced after `guard` was pinned is destroyed after it is
        // unpinned (`set`). The cell itself is not dropped while it is borrowed.
        unsafe { now.deref() }
    }

    /// Puts `value` in the place of what is there.
    pub fn set(&self, value: T) {
        let guard = crossbeam_epoch::pin();
        let old = self.at.swap(Owned::new(value), Ordering::AcqRel, &guard);
        // SAFETY: nobody can reach it through the cell any more, and those that have it are pinned.
        unsafe { guard.defer_destroy(old) };
    }
}

impl<T> Drop for EpochCell<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the cell, so nothing in it is replaced or destroyed meanwhile.
        let guard = unsafe { unprotected() };
        let last = self.at.load(Ordering::Relaxed, guard);
        // SAFETY: it is not empty, and nobody else has what is in it.
        drop(unsafe { last.into_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// Counts those that live.
    struct Counted(u64, u64, Arc<AtomicUsize>);

    impl Counted {
        fn new(number: u64, living: &Arc<AtomicUsize>) -> Self {
            living.fetch_add(1, Ordering::SeqCst);
            Counted(number, !number, living.clone())
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            (self.0, self.1) = (1, 1);
            self.2.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "crossbeam-epoch needs Tree Borrows: docs/testing.md has the command")]
    fn a_value_is_whole_while_it_is_read_and_goes_when_nobody_reads_it() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let living = Arc::new(AtomicUsize::new(0));
        let cell = EpochCell::new(Counted::new(0, &living));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let guard = crossbeam_epoch::pin();
                    let first = cell.get(&guard);
                    std::thread::yield_now();
                    assert_eq!(first.0, !first.1, "still whole");
                    assert!(first.0 >= last, "not an older one than before");
                    last = first.0;
                }
            });
            for number in 1..=rounds {
                cell.set(Counted::new(number, &living));
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(cell);
        for _ in 0..1000 {
            crossbeam_epoch::pin().flush();
            if living.load(Ordering::SeqCst) == 0 {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{} values were never destroyed", living.load(Ordering::SeqCst));
    }
}
