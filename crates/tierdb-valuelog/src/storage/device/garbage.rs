//! Garbage of a device: how much there is, when it is to be collected, and from which chunks.

use super::Device;
use crate::config::Options;
use std::collections::{BinaryHeap, HashSet};
use std::sync::atomic::Ordering;
use tierdb_device::Dir;

/// Chunks that are named at once, at least and as a share of all: to find one, all are looked at.
const NAMED: usize = 64;
const NAMED_OF: usize = 1024;
/// Chunks' worth of garbage that it may have however little else: a sixteenth of its capacity, but so many at least and at most.
const LEAST_ALLOWED: u64 = 16;
const MOST_ALLOWED: u64 = 32;

/// A chunk that is to be emptied.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    /// Which one.
    pub number: u32,
    /// About how many bytes of it are live.
    live: u64,
}

impl<D: Dir> Device<D> {
    /// A chunk's garbage was one, and is another.
    pub(super) fn count_garbage(&self, before: u64, after: u64) {
        if before != after {
            // It wraps where garbage becomes less.
            self.garbage.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// About how many bytes of its chunks nobody needs.
    pub fn garbage(&self) -> u64 {
        self.garbage.load(Ordering::Relaxed)
    }

    /// Whether less than `pct` percent of what it may have is free, or less than four chunks; where the file system is full, only those
    /// count that have their space.
    pub fn is_short(&self, pct: u8) -> bool {
        let available = self.counted_on();
        available * 100 < self.chunks_in_reach() * u64::from(pct) || available <= self.reserve() + 1
    }

    /// Whether of what is in use a larger share is garbage than `options` allow, and more than any store may have.
    pub fn is_wasteful(&self, options: &Options) -> bool {
        let garbage = self.garbage();
        let of_capacity = || (self.capacity_chunks() / 16).clamp(LEAST_ALLOWED, MOST_ALLOWED);
        let allowed = options.gc_garbage_chunks.unwrap_or_else(of_capacity);
        if garbage <= allowed * self.chunk_bytes {
            return false;
        }
        let used = self.used(&self.space()) * self.chunk_bytes;
        u128::from(garbage) * 100 > u128::from(used) * u128::from(options.gc_garbage_pct)
    }

    /// How many chunks were given out since this was last asked, but for those that collection has itself.
    pub fn take_given_out(&self) -> u64 {
        self.given_out.swap(0, Ordering::Relaxed)
    }

    /// Whether that is any.
    pub fn has_given_out(&self) -> bool {
        self.given_out.load(Ordering::Relaxed) > 0
    }

    /// Chunk `number` could not be read: it is neither collected nor counted until it is filled anew, or [tried again].
    ///
    /// [tried again]: Device::try_unreadable_again
    pub fn leave_out(&self, number: u32) {
        self.with_chunk(number, |chunk| chunk.is_unreadable = true);
        self.left_out.store(true, Ordering::Release);
    }

    /// Chunks that could not be read may be collected again.
    pub fn try_unreadable_again(&self) {
        if !self.left_out.swap(false, Ordering::AcqRel) {
            return;
        }
        for number in 0..self.chunks_in_file() {
            self.with_chunk(number, |chunk| chunk.is_unreadable = false);
        }
    }

    /// Whether there is still as much to gain by emptying `victim` as when it was named.
    pub fn gains(&self, victim: Victim) -> bool {
        let Some(chunk) = self.chunks.existing(u64::from(victim.number)) else { return false };
        let chunk = chunk.lock();
        chunk.gains(self.chunk_bytes) && chunk.live_estimate() <= victim.live
    }

    /// Sealed chunks that it gains something to empty, but for those in `not`: those with the fewest live bytes, the fewest last.
    /// One that was not emptied before comes behind all others.
    pub fn victims(&self, not: &HashSet<u32>) -> Vec<Victim> {
        let named = NAMED.max(self.chunks_in_file() as usize / NAMED_OF);
        let mut best = BinaryHeap::with_capacity(named + 1);
        for number in 0..self.chunks_in_file() {
            let Some(chunk) = self.chunks.existing(u64::from(number)) else { continue };
            let chunk = chunk.lock();
            if chunk.gains(self.chunk_bytes) && !not.contains(&number) {
                best.push((chunk.is_stuck, chunk.live_estimate(), number));
                if best.len() > named {
                    best.pop();
                }
            }
        }
        best.into_sorted_vec().into_iter().rev().map(|(_, live, number)| Victim { number, live }).collect()
    }
}
