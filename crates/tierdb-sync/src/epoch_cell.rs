//! A value that is replaced, or taken away, while others read it.

#![allow(unsafe_code)]

use crossbeam_epoch::{Atomic, Guard, Owned, Shared, unprotected};
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

/// As an [`EpochCell`], of a value that may not be there.
pub struct EpochSlot<T> {
    at: Atomic<T>,
}

impl<T: Send + Sync + 'static> EpochSlot<T> {
    /// A slot with nothing in it.
    pub fn empty() -> Self {
        EpochSlot { at: Atomic::null() }
    }

    /// What is in it, as of some moment since `guard` was pinned.
    #[inline]
    pub fn get<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        let now = self.at.load(Ordering::Acquire, guard);
        // SAFETY: what is taken out after `guard` was pinned is destroyed after it is unpinned (`put`, `take_if`). The
        // slot itself is not dropped while it is borrowed.
        unsafe { now.as_ref() }
    }

    /// Puts `value` in, in the place of what is there.
    pub fn put(&self, value: Box<T>, guard: &Guard) {
        let old = self.at.swap(Owned::from(value), Ordering::AcqRel, guard);
        if !old.is_null() {
            // SAFETY: nobody can reach it through the slot any more, and those that have it are pinned.
            unsafe { guard.defer_destroy(old) };
        }
    }

    /// Takes out what is in it, if that is what is `meant`, and nobody else took it. It is there for as long as `guard` is
    /// pinned, and goes when nobody reads it.
    pub fn take_if<'g>(&'g self, meant: impl FnOnce(&T) -> bool, guard: &'g Guard) -> Option<&'g T> {
        let now = self.at.load(Ordering::Acquire, guard);
        // SAFETY: as in `get`.
        let value = unsafe { now.as_ref() }.filter(|value| meant(value))?;
        self.at.compare_exchange(now, Shared::null(), Ordering::AcqRel, Ordering::Relaxed, guard).ok()?;
        // SAFETY: as in `put`. It was this value that was taken out: its place is not another's while `guard` is pinned.
        unsafe { guard.defer_destroy(now) };
        Some(value)
    }
}

impl<T> Drop for EpochSlot<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the slot, so nothing is put in or taken out meanwhile.
        let guard = unsafe { unprotected() };
        let last = self.at.load(Ordering::Relaxed, guard);
        // SAFETY: nobody else has what is in it.
        drop(unsafe { last.try_into_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::time::{Duration, Instant};

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
        all_go(&living);
    }

    /// Waits until nothing lives. The epochs are the process's: what other tests have pinned holds these values too, for
    /// as long as the machine does not run them.
    fn all_go(living: &AtomicUsize) {
        let given_up = Instant::now() + Duration::from_secs(60);
        loop {
            crossbeam_epoch::pin().flush();
            let left = living.load(Ordering::SeqCst);
            if left == 0 {
                return;
            }
            assert!(Instant::now() < given_up, "{left} values were never destroyed");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "crossbeam-epoch needs Tree Borrows: docs/testing.md has the command")]
    fn what_is_put_into_a_slot_is_taken_out_once_and_goes() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let living = Arc::new(AtomicUsize::new(0));
        let slot: EpochSlot<Counted> = EpochSlot::empty();
        let taken = AtomicUsize::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let guard = crossbeam_epoch::pin();
                        if let Some(seen) = slot.get(&guard) {
                            assert_eq!(seen.0, !seen.1, "still whole");
                        }
                        let odd = |value: &Counted| value.0 % 2 == 1;
                        if let Some(out) = slot.take_if(odd, &guard) {
                            std::thread::yield_now();
                            assert_eq!((out.0, out.0 % 2), (!out.1, 1), "whole, and what was meant");
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for number in 1..=rounds {
                let guard = crossbeam_epoch::pin();
                slot.put(Box::new(Counted::new(number, &living)), &guard);
                drop(guard);
                while number % 2 == 1 && slot.get(&crossbeam_epoch::pin()).is_some() {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(taken.load(Ordering::Relaxed) as u64, rounds / 2, "each once");
        assert!(slot.get(&crossbeam_epoch::pin()).is_some(), "the last one was not meant");
        drop(slot);
        all_go(&living);
    }
}
