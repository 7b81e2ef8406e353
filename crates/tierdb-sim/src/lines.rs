//! Lines of a pool with stores that are not certain to be on media, found by number at once.

use crate::space::PAGE;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;
const PER_PAGE: usize = PAGE / LINE as usize;

/// Stores a line keeps apart. Older ones are then joined into one step, which only leaves out crash
/// states: words that are never flushed must not cost without bound.
const KEPT: usize = 64;

/// One store of a word that is not certain to be on media. Stores with the same `seq` are one step.
#[derive(Clone, Copy)]
pub(crate) struct Store {
    pub seq: u64,
    pub word: u8,
    pub value: u64,
}

/// The uncertain stores of a line, oldest first. Shared with the crash points that have it.
#[derive(Clone)]
pub(crate) struct Line {
    pub stores: Vec<Store>,
    /// Stores up to this one were flushed.
    pub flushed: u64,
}

impl Line {
    pub fn push(&mut self, store: Store) {
        self.stores.push(store);
        // A flushed store stays apart, or a fence would have to take more or less than was flushed.
        if self.stores.len() > KEPT && self.stores[0].seq > self.flushed {
            self.join_oldest();
        }
    }

    fn join_oldest(&mut self) {
        let oldest = &self.stores[..KEPT / 2];
        let seq = oldest[oldest.len() - 1].seq;
        let mut last = [None; 8];
        for store in oldest {
            last[store.word as usize] = Some(store.value);
        }
        let joined = (0..8).filter_map(|word| Some(Store { seq, word, value: last[word as usize]? }));
        self.stores.splice(..KEPT / 2, joined.collect::<Vec<_>>());
    }
}

struct PageLines {
    /// A bit for each line that is there.
    there: u64,
    lines: [Option<Arc<Line>>; PER_PAGE],
}

/// Lines by number, most of them absent.
#[derive(Default)]
pub(crate) struct Lines {
    pages: Vec<Option<Box<PageLines>>>,
}

impl Lines {
    /// The line, added if it was absent.
    pub fn entry(&mut self, number: u32) -> &mut Line {
        let (page, i) = (number as usize / PER_PAGE, number as usize % PER_PAGE);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let empty = || Box::new(PageLines { there: 0, lines: [const { None }; PER_PAGE] });
        let page = self.pages[page].get_or_insert_with(empty);
        page.there |= 1 << i;
        let line =
            page.lines[i].get_or_insert_with(|| Arc::new(Line { stores: Vec::with_capacity(8), flushed: 0 }));
        Arc::make_mut(line)
    }

    /// Calls `change` with every line there is in `range`; one it leaves without stores is dropped.
    pub fn change(&mut self, range: RangeInclusive<u32>, mut change: impl FnMut(u32, &mut Line)) {
        let (first, last) = (*range.start() as usize, *range.end() as usize);
        for number in first / PER_PAGE..=(last / PER_PAGE).min(self.pages.len().wrapping_sub(1)) {
            let Some(Some(page)) = self.pages.get_mut(number) else { continue };
            let mut left = page.there;
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                left &= left - 1;
                let line_number = (number * PER_PAGE + i) as u32;
                if range.contains(&line_number)
                    && let Some(line) = &mut page.lines[i]
                {
                    let line = Arc::make_mut(line);
                    change(line_number, line);
                    if line.stores.is_empty() {
                        page.lines[i] = None;
                        page.there &= !(1 << i);
                    }
                }
            }
        }
    }

    /// All lines, shared, in order.
    pub fn share(&self) -> Vec<(u32, Arc<Line>)> {
        let mut all = Vec::new();
        for (number, page) in self.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let mut left = page.there;
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                left &= left - 1;
                all.extend(page.lines[i].clone().map(|line| ((number * PER_PAGE + i) as u32, line)));
            }
        }
        all
    }
}
