//! Entries of a range as a Rust iterator, from either end.

use std::ops::{Bound, RangeBounds};
use tierdb_base::Result;
use tierdb_engine::{Cursor, Engine, KeyRange, Snapshot, Value};

/// Entries of a range of keys in key order, all as of one moment; `rev()` gives them from the end.
///
/// After an error the iterator stays where it is, and the next call gives the error again: damage is never
/// skipped, and an end is never made up. So stop at the first error, as `?` and `collect::<Result<_>>()` do.
pub struct Entries<'a> {
    engine: &'a dyn Engine,
    range: KeyRange,
    snapshot: Snapshot,
    front: Option<Box<dyn Cursor + 'a>>,
    back: Option<Box<dyn Cursor + 'a>>,
    last_front: Option<Vec<u8>>,
    last_back: Option<Vec<u8>>,
    met: bool,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(engine: &'a dyn Engine, range: KeyRange, snapshot: Snapshot) -> Self {
        Entries {
            engine,
            range,
            snapshot,
            front: None,
            back: None,
            last_front: None,
            last_back: None,
            met: false,
        }
    }

    fn step(&mut self, forward: bool) -> Result<Option<(Vec<u8>, Value)>> {
        if self.met {
            return Ok(None);
        }
        let side = if forward { &mut self.front } else { &mut self.back };
        let cursor = match side {
            Some(cursor) => cursor,
            // A new cursor is before the first entry for `next`, and after the last for `prev`.
            None => side.insert(self.engine.cursor(self.range.clone(), Some(&self.snapshot))?),
        };
        let entry = if forward { cursor.next()? } else { cursor.prev()? };
        let Some((key, value)) = entry else {
            self.met = true;
            return Ok(None);
        };
        let met = match (&self.last_front, &self.last_back) {
            (_, Some(back)) if forward => key >= *back,
            (Some(front), _) if !forward => key <= *front,
            _ => false,
        };
        if met {
            self.met = true;
            return Ok(None);
        }
        let last = if forward { &mut self.last_front } else { &mut self.last_back };
        let last = last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(&key);
        Ok(Some((key, value)))
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(true).transpose()
    }
}

impl DoubleEndedIterator for Entries<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(false).transpose()
    }
}

impl std::iter::FusedIterator for Entries<'_> {}

/// A range of anything that is bytes, as the engine takes it.
pub(crate) fn key_range<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> KeyRange {
    let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    KeyRange { start: own(range.start_bound()), end: own(range.end_bound()) }
}
