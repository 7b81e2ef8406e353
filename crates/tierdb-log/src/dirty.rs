//! Which pages hold logged content that the image does not have.

use crate::bits::Bits;
use crate::layout::PAGE;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// One bit a page. A bit is set after the content is in DRAM and its entry in the log buffer, and taken
/// before a checkpoint copies the page: so content is in that copy, or its page is dirty again.
pub(crate) struct DirtyPages {
    bits: Bits,
}

impl DirtyPages {
    pub(crate) fn new(pages: u64) -> Self {
        DirtyPages { bits: Bits::new(pages) }
    }

    /// Marks the pages of `at..at + len`, which is not empty.
    pub(crate) fn mark(&self, at: u64, len: u64) {
        for page in at / PAGE..=(at + len - 1) / PAGE {
            // Always a read-modify-write: it comes before the taker's, which then sees the content, or after
            // it, and the page is dirty again. A load that finds the bit set could be overtaken by both.
            self.bits.set(page);
        }
    }

    /// Takes the dirty pages outside `except` (pages), in order. Those in it stay dirty.
    pub(crate) fn take(&self, except: Range<u64>) -> Vec<u64> {
        let mut pages = Vec::new();
        for (index, word) in self.bits.words().iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let first = index as u64 * 64;
            let mut kept = 0;
            for page in except.start.max(first)..except.end.min(first + 64) {
                kept |= 1 << (page % 64);
            }
            let mut taken = word.fetch_and(kept, Ordering::Acquire) & !kept;
            while taken != 0 {
                pages.push(first + u64::from(taken.trailing_zeros()));
                taken &= taken - 1;
            }
        }
        pages
    }

    /// Whether `page` is dirty.
    pub(crate) fn is_marked(&self, page: u64) -> bool {
        self.bits.get(page)
    }

    /// How many pages are dirty, about.
    pub(crate) fn count(&self) -> u64 {
        self.bits.words().iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Bytes of DRAM it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bits.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_once_and_exceptions_stay() {
        let dirty = DirtyPages::new(200);
        dirty.mark(4095, 2);
        dirty.mark(70 * PAGE, 3 * PAGE);
        dirty.mark(199 * PAGE, 1);
        assert_eq!(dirty.take(71..199), vec![0, 1, 70, 199]);
        assert_eq!(dirty.take(0..0), vec![71, 72]);
        assert_eq!(dirty.take(0..0), Vec::<u64>::new());
    }
}
