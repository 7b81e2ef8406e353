//! The word latch, under every interleaving of a few threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-sync --test loom_latch`
#![cfg(loom)]

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::Ordering;
use tierdb_sync::switch::{AtomicU64, explore};
use tierdb_sync::{LATCHED, WordGuard};

/// What the latch guards besides its word. Loom fails where two threads are at it at once, or one sees it
/// without having seen what the last holder did.
struct Guarded {
    word: AtomicU64,
    other: Cell<u64>,
}

// SAFETY: `other` is used under the latch alone, and loom checks that on every access.
unsafe impl Sync for Guarded {}

fn guarded() -> Arc<Guarded> {
    Arc::new(Guarded { word: AtomicU64::new(0), other: Cell::new(0) })
}

fn add(guarded: &Guarded, mut guard: WordGuard<'_, AtomicU64>) {
    let before = guarded.other.get();
    assert_eq!(before * 2, guard.value(), "word and content change together");
    guarded.other.set(before + 1);
    guard.set(guard.value() + 2);
}

#[test]
fn holders_exclude_each_other_and_see_what_the_last_one_did() {
    explore(|| {
        let shared = guarded();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || add(&shared, WordGuard::latch(&shared.word)))
            })
            .collect();
        let tried = WordGuard::try_latch(&shared.word).map(|guard| add(&shared, guard)).is_some();
        for thread in threads {
            thread.join().expect("no thread fails");
        }
        assert_eq!(shared.word.load(Ordering::Acquire), 4 + 2 * u64::from(tried));
    });
}

#[test]
fn a_reader_sees_a_value_that_nobody_is_changing_and_all_that_came_before_it() {
    explore(|| {
        let word = Arc::new(AtomicU64::new(0));
        let content = Arc::new(AtomicU64::new(0));
        let writer = {
            let (word, content) = (word.clone(), content.clone());
            thread::spawn(move || {
                for value in 1..=2 {
                    let mut guard = WordGuard::latch(&*word);
                    content.store(value, Ordering::Relaxed);
                    guard.set(value * 2);
                }
            })
        };
        let seen = word.load(Ordering::Acquire);
        if seen & LATCHED == 0 {
            let content = content.load(Ordering::Relaxed);
            assert!(content >= seen / 2, "released with {seen}, and {content} is seen");
        }
        writer.join().expect("the writer");
    });
}

/// The canary: the same model, with a holder that does not take the latch.
#[test]
#[should_panic]
fn a_thread_that_does_not_latch_is_noticed() {
    explore(|| {
        let shared = guarded();
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || shared.other.set(shared.other.get() + 1))
        };
        add(&shared, WordGuard::latch(&shared.word));
        thread.join().expect("the other thread");
    });
}
