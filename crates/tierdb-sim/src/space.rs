//! Bytes of a medium as shared pages: a copy costs a reference count, a change copies one page.
//!
//! This is what makes a crash image cheap: it shares every page with the crash point it was made from,
//! except the few that its choice of lost writes changes.

use std::sync::Arc;

/// Bytes of a page; also the block of the device contract.
pub(crate) const PAGE: usize = 4096;
const FAN: usize = 64;

pub(crate) type Page = [u8; PAGE];
type Chunk = [Option<Arc<Page>>; FAN];

/// Pages by number; a page that was never written reads as zeros and takes no memory.
#[derive(Clone, Default)]
pub(crate) struct Space {
    chunks: Arc<Vec<Option<Arc<Chunk>>>>,
}

impl Space {
    /// The page, unless it is all zeros because nothing was ever written to it.
    pub fn page(&self, number: usize) -> Option<&Arc<Page>> {
        self.chunks.get(number / FAN)?.as_ref()?[number % FAN].as_ref()
    }

    fn slot(&mut self, number: usize) -> &mut Option<Arc<Page>> {
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks.len() <= number / FAN {
            chunks.resize(number / FAN + 1, None);
        }
        let chunk = chunks[number / FAN].get_or_insert_with(|| Arc::new([const { None }; FAN]));
        &mut Arc::make_mut(chunk)[number % FAN]
    }

    /// Replaces a page.
    pub fn set_page(&mut self, number: usize, page: Arc<Page>) {
        *self.slot(number) = Some(page);
    }

    /// The page for changes in place; copied first if an image shares it.
    pub fn page_mut(&mut self, number: usize) -> &mut Page {
        Arc::make_mut(self.slot(number).get_or_insert_with(|| Arc::new([0; PAGE])))
    }

    /// Forgets every page from `pages` on.
    pub fn truncate(&mut self, pages: usize) {
        let whole = pages.div_ceil(FAN);
        if self.chunks.len() > whole {
            Arc::make_mut(&mut self.chunks).truncate(whole);
        }
        if !pages.is_multiple_of(FAN) && self.chunks.get(pages / FAN).is_some_and(Option::is_some) {
            for number in pages..whole * FAN {
                // Where nothing was written there is nothing to forget, and what images share stays shared.
                if self.page(number).is_some() {
                    *self.slot(number) = None;
                }
            }
        }
    }

    /// Copies `out.len()` bytes from `at`.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        for (number, skip, range) in pieces(at, out.len()) {
            let len = range.len();
            match self.page(number) {
                Some(page) => out[range].copy_from_slice(&page[skip..skip + len]),
                None => out[range].fill(0),
            }
        }
    }

    /// Copies `bytes` to `at`.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        for (number, skip, range) in pieces(at, bytes.len()) {
            self.page_mut(number)[skip..skip + range.len()].copy_from_slice(&bytes[range]);
        }
    }

    /// The word at `at`, a multiple of 8.
    pub fn word(&self, at: u64) -> u64 {
        self.page(at as usize / PAGE).map_or(0, |page| word_of(page, at as usize % PAGE))
    }

    /// Stores the word at `at`, a multiple of 8.
    pub fn set_word(&mut self, at: u64, word: u64) {
        let skip = at as usize % PAGE;
        self.page_mut(at as usize / PAGE)[skip..skip + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// The little-endian word of `page` at byte `skip`.
pub(crate) fn word_of(page: &Page, skip: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&page[skip..skip + 8]);
    u64::from_le_bytes(word)
}

/// Cuts `at..at + len` at page boundaries: page number, offset in it, and the part of the range.
pub(crate) fn pieces(at: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let from = at as usize + done;
            let n = (PAGE - from % PAGE).min(len - done);
            let piece = (from / PAGE, from % PAGE, done..done + n);
            done += n;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_independent_and_cut_pages_read_as_zeros() {
        let mut space = Space::default();
        space.write(4090, &[7; 12]);
        let copy = space.clone();
        space.set_word(4096, 9);
        let mut out = [1; 14];
        copy.read(4089, &mut out);
        assert_eq!(out, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        assert_eq!((space.word(4096), copy.word(4096) & 0xffff), (9, 0x0707));
        space.write(70 * 4096, &[5; 8]);
        space.truncate(1);
        assert_eq!((space.word(4096), space.word(70 * 4096)), (0, 0));
        assert_ne!(space.word(4088), 0);
        assert_eq!(copy.word(4096) & 0xffff, 0x0707);
    }
}
