//! Sources whose keys do not overlap, one after another.

use crate::entry::EntryRef;
use crate::merge::Source;
use std::iter::Fuse;
use tierdb_base::Result;

/// The entries of several sources, all of one before those of the next: the tables of a run, whose key ranges are
/// disjoint. A source is made, and reads, only when those before it are exhausted.
pub struct Chain<S, I> {
    rest: Fuse<I>,
    current: Option<S>,
}

impl<S: Source, I: Iterator<Item = S>> Chain<S, I> {
    /// The entries of `sources`, which give their entries in one direction and come in the order of it, none of
    /// them advanced yet.
    pub fn new(sources: impl IntoIterator<Item = S, IntoIter = I>) -> Self {
        Chain { rest: sources.into_iter().fuse(), current: None }
    }
}

impl<S: Source, I: Iterator<Item = S>> Source for Chain<S, I> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.current.as_ref().and_then(|current| current.entry())
    }

    fn advance(&mut self) -> Result<()> {
        loop {
            if let Some(current) = &mut self.current {
                // A source that failed stays the current one, and goes on failing.
                current.advance()?;
                if current.entry().is_some() {
                    return Ok(());
                }
            }
            self.current = self.rest.next();
            if self.current.is_none() {
                return Ok(());
            }
        }
    }
}
