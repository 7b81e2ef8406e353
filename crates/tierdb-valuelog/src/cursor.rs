//! Entries of a range in key order, both ways, as one snapshot sees them.
//!
//! Keys are taken from the index a batch at a time; values are read as the cursor reaches them. The
//! snapshot keeps the values it can see, and keeps deleted keys in the index, so nothing is missed
//! however the store changes meanwhile.

use crate::cache::Slot;
use crate::core::Core;
use crate::word::Place;
use std::collections::VecDeque;
use std::ops::Bound;
use tierdb_base::Result;
use tierdb_device::Dir;
use tierdb_engine::{Cursor, KeyRange, Snapshot, Value};
use tierdb_pmem::Pool;

/// Keys taken from the index at first; doubled up to the most with each batch.
const FIRST_BATCH: usize = 16;
const MOST_BATCH: usize = 256;

/// Where the cursor stands: between two keys.
#[derive(Clone, Debug)]
enum At {
    /// Nowhere yet: before the first entry for `next`, after the last for `prev`.
    Either,
    /// Before the first entry of the range.
    Start,
    /// After the last.
    End,
    /// Just before this key.
    Before(Vec<u8>),
    /// Just after this key.
    After(Vec<u8>),
}

/// A key that the cursor will come to.
struct Ahead {
    key: Vec<u8>,
    entry: u64,
    /// Its value, where that was read together with others.
    value: Option<Value>,
}

/// A cursor of this engine.
pub struct StoreCursor<'c, P: Pool, D: Dir> {
    core: &'c Core<P, D>,
    range: KeyRange,
    snapshot: Snapshot,
    at: At,
    /// Keys ahead in the direction `reverse`.
    ahead: VecDeque<Ahead>,
    reverse: bool,
    batch: usize,
    /// Whether values are not wanted.
    keys_only: bool,
    /// Cache slots of the values read since the last batch: a scan range to keep together.
    seen: Vec<(Slot, u64)>,
}

impl<'c, P: Pool, D: Dir> StoreCursor<'c, P, D> {
    /// A cursor over `range` as `snapshot` sees it, before its first entry.
    pub fn new(core: &'c Core<P, D>, range: KeyRange, snapshot: Snapshot) -> Self {
        StoreCursor {
            core,
            range,
            snapshot,
            at: At::Either,
            ahead: VecDeque::new(),
            reverse: false,
            batch: FIRST_BATCH,
            keys_only: false,
            seen: Vec::new(),
        }
    }

    /// A cursor for [`StoreCursor::next_key`] alone.
    pub fn keys_only(core: &'c Core<P, D>, range: KeyRange, snapshot: Snapshot) -> Self {
        StoreCursor { keys_only: true, ..Self::new(core, range, snapshot) }
    }

    fn move_to(&mut self, at: At) {
        self.at = at;
        self.ahead.clear();
        self.batch = FIRST_BATCH;
        self.end_of_batch();
    }

    fn end_of_batch(&mut self) {
        if self.seen.len() > 1 {
            if self.reverse {
                self.seen.reverse();
            }
            self.core.cache.chain(&self.seen);
        }
        self.seen.clear();
    }

    /// Takes the next keys in the cursor's direction from the index. `false` at the end of the range.
    fn fill(&mut self) -> Result<bool> {
        self.end_of_batch();
        let from: Bound<&[u8]> = match (&self.at, self.reverse) {
            (At::Start, true) | (At::End, false) => return Ok(false),
            (At::Start | At::Either, false) => as_slice(&self.range.start),
            (At::End | At::Either, true) => as_slice(&self.range.end),
            (At::Before(key), false) | (At::After(key), true) => Bound::Included(key),
            (At::Before(key), true) | (At::After(key), false) => Bound::Excluded(key),
        };
        // A position outside the range counts as the range's end that it lies beyond.
        let from = match from {
            Bound::Included(key) | Bound::Excluded(key) if !self.reverse && self.range.is_before(key) => {
                as_slice(&self.range.start)
            }
            Bound::Included(key) | Bound::Excluded(key) if self.reverse && self.range.is_after(key) => {
                as_slice(&self.range.end)
            }
            other => other,
        };
        let mut keys = Vec::with_capacity(self.batch);
        self.core.index.scan(from, self.reverse, self.batch, &mut keys)?;
        self.batch = (self.batch * 2).min(MOST_BATCH);
        let out =
            |key: &[u8]| if self.reverse { self.range.is_before(key) } else { self.range.is_after(key) };
        keys.truncate(keys.iter().take_while(|(key, _)| !out(key)).count());
        let values = self.read_ahead(&keys);
        let ahead = keys.into_iter().zip(values).map(|((key, entry), value)| Ahead { key, entry, value });
        self.ahead = ahead.collect();
        Ok(!self.ahead.is_empty())
    }

    /// The values of `keys` that lie on flash, read at once.
    fn read_ahead(&self, keys: &[(Vec<u8>, u64)]) -> Vec<Option<Value>> {
        if self.keys_only {
            return vec![None; keys.len()];
        }
        let words: Vec<_> = keys
            .iter()
            .map(|(_, entry)| Some((*entry, self.core.word_at(*entry, self.snapshot.seqno()).ok()?)))
            .collect();
        self.core.read_ahead(&words, |number| &keys[number].0)
    }

    /// The next key that has a value, in key order, without reading the value.
    pub fn next_key(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if self.ahead.is_empty() && !self.fill()? {
                return Ok(None);
            }
            let Some(Ahead { key, entry, .. }) = self.ahead.pop_front() else { continue };
            self.at = At::After(key.clone());
            let word = self.core.word_at(entry, self.snapshot.seqno())?;
            if !matches!(word.place(), Place::None | Place::Free) {
                return Ok(Some(key));
            }
        }
    }

    fn step(&mut self, reverse: bool) -> Result<Option<(Vec<u8>, Value)>> {
        self.core.check_open()?;
        if self.reverse != reverse {
            self.end_of_batch();
            self.reverse = reverse;
            self.ahead.clear();
            self.batch = FIRST_BATCH;
        }
        loop {
            if self.ahead.is_empty() && !self.fill()? {
                // The end is remembered, so that the other direction starts from it.
                self.move_to(if reverse { At::Start } else { At::End });
                return Ok(None);
            }
            let Some(next) = self.ahead.front_mut() else { continue };
            let found = match next.value.take() {
                Some(value) => Some(value),
                None => self.core.entry_at(next.entry, &next.key, self.snapshot.seqno())?,
            };
            if let Some(slot) = self.core.hsit.aux(next.entry).slot() {
                self.seen.push((slot, next.entry));
            }
            let Some(Ahead { key, .. }) = self.ahead.pop_front() else { continue };
            self.at = if reverse { At::Before(key.clone()) } else { At::After(key.clone()) };
            if let Some(value) = found {
                return Ok(Some((key, value)));
            }
        }
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl<P: Pool, D: Dir> Cursor for StoreCursor<'_, P, D> {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Value)>> {
        self.step(false)
    }

    fn prev(&mut self) -> Result<Option<(Vec<u8>, Value)>> {
        self.step(true)
    }

    fn seek(&mut self, key: &[u8]) {
        self.move_to(At::Before(key.to_vec()));
    }

    fn seek_to_first(&mut self) {
        self.move_to(At::Start);
    }

    fn seek_to_last(&mut self) {
        self.move_to(At::End);
    }
}
