//! A bit for each page, which any thread may change.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Bits(Box<[AtomicU64]>);

impl Bits {
    /// `count` bits, none of them set.
    pub(crate) fn new(count: u64) -> Self {
        Bits((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> bool {
        self.0[(number / 64) as usize].load(Ordering::Acquire) >> (number % 64) & 1 == 1
    }

    pub(crate) fn set(&self, number: u64) {
        self.0[(number / 64) as usize].fetch_or(1 << (number % 64), Ordering::Release);
    }

    pub(crate) fn clear(&self, number: u64) {
        self.0[(number / 64) as usize].fetch_and(!(1 << (number % 64)), Ordering::Release);
    }

    /// The words that they lie in, bit 0 of each the first.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    /// Bytes of DRAM that they take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }
}
