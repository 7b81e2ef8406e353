//! Counters that many threads add to without sharing a cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

const SHARDS: usize = 16;

/// A small number that stays the same for a thread and is spread evenly over threads.
#[inline]
pub(super) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Relaxed) % (1 << 16));
        }
        number.get()
    })
}

#[derive(Default)]
struct Shard {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Hits and misses.
#[derive(Default)]
pub(super) struct Counters([CachePadded<Shard>; SHARDS]);

impl Counters {
    #[inline]
    pub fn hit(&self) {
        self.0[thread_number() % SHARDS].hits.fetch_add(1, Relaxed);
    }

    #[inline]
    pub fn miss(&self) {
        self.0[thread_number() % SHARDS].misses.fetch_add(1, Relaxed);
    }

    /// Hits and misses so far.
    pub fn sums(&self) -> (u64, u64) {
        let sum = |of: fn(&Shard) -> &AtomicU64| self.0.iter().map(|shard| of(shard).load(Relaxed)).sum();
        (sum(|shard| &shard.hits), sum(|shard| &shard.misses))
    }
}
