//! Many sources of entries as one.

use crate::entry::EntryRef;
use crate::iter::Direction;
use std::cmp::Ordering;
use tierdb_base::{Error, Result};

/// Entries in the order of a table, or in the reverse of it: an iterator that lends its entries.
///
/// A new source stands before its first entry. Behind the last one it stays. After an error it gives the same error
/// at every call, and no entry.
pub trait Source {
    /// The entry it is at: `None` before the first [`Source::advance`], behind the last entry, and after an error.
    fn entry(&self) -> Option<EntryRef<'_>>;

    /// Goes to the next entry.
    fn advance(&mut self) -> Result<()>;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        (**self).entry()
    }

    fn advance(&mut self) -> Result<()> {
        (**self).advance()
    }
}

/// The entries of several sources in one order. Of equal entries (key and seqno), that of the source named first comes
/// first.
///
/// Every source is read from before the first entry is given: where their keys do not overlap, a
/// [`Chain`](crate::Chain) reads less.
pub struct Merge<S> {
    sources: Vec<S>,
    direction: Direction,
    /// A heap of sources that are at an entry: none is before its parent.
    heap: Vec<usize>,
    started: bool,
    failed: Option<Error>,
}

impl<S: Source> Merge<S> {
    /// Merges `sources`, all of them in `direction`, none of them advanced yet.
    pub fn new(sources: Vec<S>, direction: Direction) -> Self {
        Merge { sources, direction, heap: Vec::new(), started: false, failed: None }
    }

    /// The sources, in the order given.
    pub fn sources(&self) -> &[S] {
        &self.sources
    }

    /// Which source the entry it is at comes from.
    pub fn current(&self) -> Option<usize> {
        if self.started && self.failed.is_none() { self.heap.first().copied() } else { None }
    }

    fn is_before(&self, one: usize, other: usize) -> bool {
        let (Some(first), Some(second)) = (self.sources[one].entry(), self.sources[other].entry()) else {
            return false;
        };
        let order = match self.direction {
            Direction::Forward => first.order(&second),
            Direction::Backward => second.order(&first),
        };
        order.then(one.cmp(&other)) == Ordering::Less
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[least]) {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    fn try_advance(&mut self) -> Result<()> {
        if !self.started {
            for (number, source) in self.sources.iter_mut().enumerate() {
                source.advance()?;
                if source.entry().is_some() {
                    self.heap.push(number);
                }
            }
            self.started = true;
            for at in (0..self.heap.len() / 2).rev() {
                self.sift_down(at);
            }
        } else if let Some(&top) = self.heap.first() {
            self.sources[top].advance()?;
            if self.sources[top].entry().is_none() {
                self.heap.swap_remove(0);
            }
            self.sift_down(0);
        }
        Ok(())
    }
}

impl<S: Source> Source for Merge<S> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.current().and_then(|number| self.sources[number].entry())
    }

    fn advance(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.try_advance().inspect_err(|error| self.failed = Some(error.clone()))
    }
}
