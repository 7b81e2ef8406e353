//! What the program sees of a pool: atomic words over shared pages.
//!
//! A page is copied to words of its own on its first store. Until then it is read from the shared page
//! of the image the world was made from, so that opening an image costs what recovery touches.

use crate::space::{PAGE, Space, pieces, word_of};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = PAGE / 8;

pub(crate) struct Live {
    base: Space,
    pages: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl Live {
    /// `len` bytes (a multiple of a page) that start as the content of `base`.
    pub fn new(base: Space, len: u64) -> Self {
        Live { base, pages: (0..len as usize / PAGE).map(|_| OnceLock::new()).collect() }
    }

    /// The word at `at`.
    #[inline]
    pub fn load(&self, at: u64) -> u64 {
        assert!(at.is_multiple_of(8), "offset {at} is not that of a word");
        let number = at as usize / PAGE;
        match self.pages[number].get() {
            Some(words) => words[at as usize % PAGE / 8].load(Ordering::Acquire),
            None => self.base.word(at),
        }
    }

    /// Stores the word at `at` and returns the one before. The caller holds the world's lock, under which
    /// all stores are made.
    pub fn swap(&self, at: u64, word: u64) -> u64 {
        assert!(at.is_multiple_of(8), "offset {at} is not that of a word");
        let number = at as usize / PAGE;
        let words = self.pages[number].get_or_init(|| {
            let page = self.base.page(number);
            (0..WORDS).map(|i| AtomicU64::new(page.map_or(0, |page| word_of(page, i * 8)))).collect()
        });
        let slot = &words[at as usize % PAGE / 8];
        // One store at a time, so this need not be one step.
        let before = slot.load(Ordering::Relaxed);
        slot.store(word, Ordering::Release);
        before
    }

    /// Copies `out.len()` bytes from `at`; any alignment.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        for (number, skip, range) in pieces(at, out.len()) {
            let out = &mut out[range];
            let Some(words) = self.pages[number].get() else {
                match self.base.page(number) {
                    Some(page) => out.copy_from_slice(&page[skip..skip + out.len()]),
                    None => out.fill(0),
                }
                continue;
            };
            let mut done = 0;
            while done < out.len() {
                let from = skip + done;
                let bytes = words[from / 8].load(Ordering::Acquire).to_le_bytes();
                let n = (8 - from % 8).min(out.len() - done);
                out[done..done + n].copy_from_slice(&bytes[from % 8..from % 8 + n]);
                done += n;
            }
        }
    }
}
