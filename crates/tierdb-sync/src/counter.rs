//! Counters that many threads add to without sharing a cache line.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// A small number that is this thread's own for as long as there are at most 16 threads.
pub fn thread_shard() -> usize {
    SHARD.with(|shard| *shard)
}

/// A counter; its value is exact once the threads that add to it have stopped.
#[derive(Default)]
pub struct Counter([CachePadded<AtomicU64>; SHARDS]);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0[thread_shard()].fetch_add(n, Ordering::Relaxed);
    }

    /// The sum of all that was added.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|shard| shard.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..100).for_each(|_| counter.add(1)));
            }
        });
        assert_eq!(counter.get(), 2000);
    }
}
