//! Entries of a range in key order, both ways, as one snapshot sees them: partitions one after another, in each of
//! them what is on the fast tier merged with what is on flash (PrismDB §5.1).
//!
//! Entries are taken a batch at a time, under the lock of one partition; the tables are read without it.

use crate::core::{Core, OnFlash};
use crate::partition::{State, bounds};
use std::collections::VecDeque;
use std::ops::Bound;
use tierdb_base::{Result, Seqno};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{Cursor, KeyRange, Snapshot, Value};
use tierdb_pmem::Pool;
use tierdb_table::{Direction, ReadAhead, Source, Visible};

/// Entries taken at first; doubled up to the most with each batch.
const FIRST_BATCH: usize = 16;
const MOST_BATCH: usize = 256;
/// Bytes of values after which a batch ends.
const BATCH_BYTES: usize = 1 << 20;

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

/// An entry on the way to the caller; `None` for the value where none is wanted.
type Ahead = (Vec<u8>, Option<Value>);

/// What a snapshot sees of a key on the fast tier: a value, or that the key is gone.
struct Fast {
    key: Vec<u8>,
    value: Option<Option<Value>>,
}

/// A cursor of this engine.
pub struct StoreCursor<'c, P: Pool, D: Dir> {
    core: &'c Core<P, D>,
    range: KeyRange,
    snapshot: Snapshot,
    at: At,
    /// Entries ahead in the direction `reverse`.
    ahead: VecDeque<Ahead>,
    reverse: bool,
    batch: usize,
    /// Whether values are not wanted.
    keys_only: bool,
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
        }
    }

    /// The number of keys in `range` that `snapshot` sees.
    pub fn count(core: &'c Core<P, D>, range: KeyRange, snapshot: Snapshot) -> Result<u64> {
        let mut cursor =
            StoreCursor { keys_only: true, batch: MOST_BATCH, ..Self::new(core, range, snapshot) };
        let mut keys = 0;
        while cursor.fill()? {
            keys += cursor.ahead.len() as u64;
            if let Some((key, _)) = cursor.ahead.pop_back() {
                cursor.at = At::After(key);
            }
            cursor.ahead.clear();
        }
        Ok(keys)
    }

    fn move_to(&mut self, at: At) {
        self.at = at;
        self.ahead.clear();
        self.batch = FIRST_BATCH;
    }

    /// The part of the range that lies ahead; `None` where there is none.
    fn rest(&self) -> Option<KeyRange> {
        let mut rest = self.range.clone();
        match (&self.at, self.reverse) {
            (At::Start, true) | (At::End, false) => return None,
            (At::Start | At::Either, false) | (At::End | At::Either, true) => {}
            (At::Before(key), false) if !self.range.is_before(key) => {
                rest.start = Bound::Included(key.clone())
            }
            (At::After(key), false) if !self.range.is_before(key) => {
                rest.start = Bound::Excluded(key.clone())
            }
            (At::Before(key), true) if !self.range.is_after(key) => rest.end = Bound::Excluded(key.clone()),
            (At::After(key), true) if !self.range.is_after(key) => rest.end = Bound::Included(key.clone()),
            _ => {}
        }
        Some(rest)
    }

    /// Takes the next entries in the cursor's direction. `false` at the end of the range.
    fn fill(&mut self) -> Result<bool> {
        let Some(mut rest) = self.rest() else { return Ok(false) };
        loop {
            if bounds(&rest).is_none() {
                return Ok(false);
            }
            let Some(next) = self.fill_from_part(&rest)? else { return Ok(!self.ahead.is_empty()) };
            if !self.ahead.is_empty() {
                self.batch = (self.batch * 2).min(MOST_BATCH);
                return Ok(true);
            }
            rest = next;
        }
    }

    /// Takes entries of the partition in which `rest` begins, in the cursor's direction. Returns what is left of it
    /// behind them, if anything.
    fn fill_from_part(&mut self, rest: &KeyRange) -> Result<Option<KeyRange>> {
        let seqno = self.snapshot.seqno();
        let router = self.core.router.read();
        let number = match (&rest.start, &rest.end, self.reverse) {
            (Bound::Included(key) | Bound::Excluded(key), _, false) => router.number_of(key),
            (_, Bound::Included(key), true) => router.number_of(key),
            (_, Bound::Excluded(key), true) => router.bounds.partition_point(|bound| **bound < **key),
            (_, _, false) => 0,
            (_, _, true) => router.parts.len() - 1,
        };
        let part = router.parts[number].clone();
        let border = if self.reverse {
            number.checked_sub(1).map(|below| router.bounds[below].to_vec())
        } else {
            router.bounds.get(number).map(|bound| bound.to_vec())
        };
        let inside = match (&border, self.reverse) {
            (None, _) => rest.clone(),
            (Some(border), false) if rest.is_after(border) => rest.clone(),
            (Some(border), false) => {
                KeyRange { start: rest.start.clone(), end: Bound::Excluded(border.clone()) }
            }
            (Some(border), true) if rest.is_before(border) => rest.clone(),
            (Some(border), true) => {
                KeyRange { start: Bound::Included(border.clone()), end: rest.end.clone() }
            }
        };
        let state = part.read();
        let unsettled = part.any_unsettled();
        let (fast, whole) = self.fast_entries(&state, &inside, seqno)?;
        let on_flash = OnFlash::of(&state);
        drop(state);
        drop(router);
        if unsettled {
            self.core.heap.pool.wait(self.core.heap.pool.lsn())?;
        }
        let last = if whole { None } else { fast.last().map(|fast| fast.key.clone()) };
        let end = self.merge(fast, &on_flash, &inside, last, seqno)?;
        Ok(match end {
            // The batch is full, or what was taken from the fast tier is used up: go on behind that key.
            Some(key) if self.reverse => {
                Some(KeyRange { start: rest.start.clone(), end: Bound::Excluded(key) })
            }
            Some(key) => Some(KeyRange { start: Bound::Excluded(key), end: rest.end.clone() }),
            None => match border {
                Some(border) if self.reverse && !rest.is_before(&border) => {
                    Some(KeyRange { start: rest.start.clone(), end: Bound::Excluded(border) })
                }
                Some(border) if !self.reverse && !rest.is_after(&border) => {
                    Some(KeyRange { start: Bound::Included(border), end: rest.end.clone() })
                }
                _ => None,
            },
        })
    }

    /// What the snapshot sees of the next keys on the fast tier, and whether these are all in `range`.
    fn fast_entries(&self, state: &State<D>, range: &KeyRange, seqno: Seqno) -> Result<(Vec<Fast>, bool)> {
        let Some(bounds) = bounds(range) else { return Ok((Vec::new(), true)) };
        let mut current = state.index.range::<[u8], _>(bounds).map(|(key, _)| key);
        let mut old = state.old.range::<[u8], _>(bounds).map(|(key, _)| key);
        let mut next_current = || if self.reverse { current.next_back() } else { current.next() };
        let mut next_old = || if self.reverse { old.next_back() } else { old.next() };
        let (mut one, mut other) = (next_current(), next_old());
        let mut found: Vec<Fast> = Vec::new();
        let mut bytes = 0;
        loop {
            let key = match (one, other) {
                (None, None) => return Ok((found, true)),
                (Some(key), None) | (None, Some(key)) => key,
                (Some(one), Some(other)) if self.reverse => one.max(other),
                (Some(one), Some(other)) => one.min(other),
            };
            if found.len() >= self.batch || bytes >= BATCH_BYTES {
                return Ok((found, false));
            }
            if let Some(entry) = state.version_at(key, seqno) {
                let value = if entry.is_tombstone() {
                    None
                } else if self.keys_only {
                    Some(None)
                } else {
                    match self.core.value_of(key, entry) {
                        Ok(value) => Some(Some(value)),
                        // What comes before it is given first.
                        Err(_) if !found.is_empty() => return Ok((found, false)),
                        Err(error) => return Err(error),
                    }
                };
                bytes += value.as_ref().and_then(Option::as_ref).map_or(0, |value| value.len());
                found.push(Fast { key: key.to_vec(), value });
            }
            let (used_one, used_other) = (one == Some(key), other == Some(key));
            if used_one {
                one = next_current();
            }
            if used_other {
                other = next_old();
            }
        }
    }

    /// Puts entries of both tiers ahead, in order, up to a batch, and up to key `last` if there is one. Returns the key
    /// behind which to go on, if not all of `range` was looked at.
    fn merge(
        &mut self,
        fast: Vec<Fast>,
        on_flash: &OnFlash<D>,
        range: &KeyRange,
        last: Option<Vec<u8>>,
        seqno: Seqno,
    ) -> Result<Option<Vec<u8>>> {
        let direction = if self.reverse { Direction::Backward } else { Direction::Forward };
        let reach = match (&last, self.reverse) {
            (None, _) => range.clone(),
            (Some(last), false) => {
                KeyRange { start: range.start.clone(), end: Bound::Included(last.clone()) }
            }
            (Some(last), true) => KeyRange { start: Bound::Included(last.clone()), end: range.end.clone() },
        };
        if bounds(&reach).is_none() {
            return Ok(last);
        }
        let ahead = ReadAhead { first: 8 << 10, ..ReadAhead::default() };
        let entries = on_flash.tables.entries(&reach, direction, ahead, Cause::Foreground);
        let mut flash = Visible::new(entries, direction, seqno);
        let mut fast = fast.into_iter().peekable();
        let mut bytes = 0;
        let mut stopped = flash.advance().err();
        loop {
            if self.ahead.len() >= self.batch || bytes >= BATCH_BYTES {
                return Ok(self.ahead.back().map(|(key, _)| key.clone()).or(last));
            }
            let before =
                |fast: &Fast, key: &[u8]| if self.reverse { *fast.key >= *key } else { *fast.key <= *key };
            let next_fast = match (flash.entry(), &stopped) {
                (Some(entry), None) => fast.next_if(|fast| before(fast, entry.key)),
                // Damaged tables hide what comes next: what is before it is not known.
                (_, Some(error)) => {
                    return if self.ahead.is_empty() {
                        Err(error.clone())
                    } else {
                        Ok(self.ahead.back().map(|(key, _)| key.clone()))
                    };
                }
                (None, None) => fast.next(),
            };
            if let Some(fast) = next_fast {
                if flash.entry().is_some_and(|entry| entry.key == fast.key) {
                    stopped = flash.advance().err();
                }
                if let Some(value) = fast.value {
                    bytes += value.as_ref().map_or(0, |value| value.len());
                    self.ahead.push_back((fast.key, value));
                }
                continue;
            }
            let Some(entry) = flash.entry() else { return Ok(last) };
            if !on_flash.is_removed(entry.key, entry.seqno, seqno) {
                let value = entry.value.filter(|_| !self.keys_only).map(|value| Value::from(value.to_vec()));
                bytes += value.as_ref().map_or(0, |value| value.len());
                self.ahead.push_back((entry.key.to_vec(), value));
            }
            stopped = flash.advance().err();
        }
    }

    fn step(&mut self, reverse: bool) -> Result<Option<(Vec<u8>, Value)>> {
        self.core.check_open()?;
        self.core.lost.check_all(&self.core.heap)?;
        if self.reverse != reverse {
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
            let Some((key, value)) = self.ahead.pop_front() else { continue };
            self.at = if reverse { At::Before(key.clone()) } else { At::After(key.clone()) };
            if let Some(value) = value {
                return Ok(Some((key, value)));
            }
        }
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
