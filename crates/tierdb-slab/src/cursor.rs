//! Entries of a range in key order, both ways, as one snapshot sees them: partitions one after another, in each of
//! them what is on the fast tier merged with what is on flash (PrismDB §5.1).
//!
//! A *stretch* is what a cursor takes under the lock of one partition: some versions on the fast tier with their values, and the
//! tables that there are at that moment, which are read afterwards as far as those reach. A snapshot's view never changes, so a stretch is
//! good for as long as the cursor needs it.

use crate::core::Core;
use crate::heap::MOST_AT_ONCE;
use crate::partition::{Entry, State, bounds};
use crate::read::OnFlash;
use crate::tables::Walk;
use std::iter::Peekable;
use std::ops::Bound;
use tierdb_base::{Result, Seqno, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{Cursor, KeyRange, Snapshot, Value};
use tierdb_pmem::Pool;
use tierdb_table::{Direction, Merge, ReadAhead, Source, Visible};

/// Versions on the fast tier that the first stretch takes; doubled up to the most with each.
const FIRST_FAST: usize = 8;
const MOST_FAST: usize = 256;
/// Keys that it looks at for these at the most: an old snapshot may see none of many.
const MOST_LOOKED_AT: usize = 4096;
/// How much of a table is read at first.
const FIRST_READ: u64 = 32 << 10;

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

/// A key with its value; `None` for the value where none is wanted.
type Item = (Vec<u8>, Option<Value>);

/// What a snapshot sees of a key on the fast tier: a value, or that the key is gone.
struct Fast {
    key: Vec<u8>,
    value: Option<Option<Value>>,
}

/// A key that a snapshot sees on the fast tier: its version, unless it is gone, and the key that was looked at before it.
struct Seen<'s> {
    key: &'s [u8],
    entry: Option<Entry>,
    before: Option<&'s [u8]>,
}

/// What comes next in the cursor's direction.
struct Stretch<D: Dir> {
    fast: Peekable<std::vec::IntoIter<Fast>>,
    flash: Visible<Merge<Walk<D>>>,
    /// Whether the entry that `flash` is at was given, or it is not at its first one yet.
    given: bool,
    on_flash: OnFlash<D>,
    reverse: bool,
    /// What is left of the range behind it.
    rest: Option<KeyRange>,
}

impl<D: Dir> Stretch<D> {
    /// The next entry, as a snapshot at `seqno` sees it. Where a table is damaged, what comes next is not known.
    fn next(&mut self, seqno: Seqno, keys_only: bool) -> Result<Option<Item>> {
        loop {
            if std::mem::take(&mut self.given) {
                self.flash.advance()?;
            }
            let reverse = self.reverse;
            let before =
                |fast: &Fast, key: &[u8]| if reverse { *fast.key >= *key } else { *fast.key <= *key };
            let fast = match self.flash.entry() {
                Some(entry) => self.fast.next_if(|fast| before(fast, entry.key)),
                None => self.fast.next(),
            };
            if let Some(fast) = fast {
                self.given = self.flash.entry().is_some_and(|entry| entry.key == fast.key);
                match fast.value {
                    Some(value) => return Ok(Some((fast.key, value))),
                    None => continue,
                }
            }
            let Some(entry) = self.flash.entry() else { return Ok(None) };
            self.given = true;
            if !self.on_flash.is_removed(entry.key, entry.seqno, seqno) {
                let value = entry.value.filter(|_| !keys_only).map(|value| Value::from(value.to_vec()));
                return Ok(Some((entry.key.to_vec(), value)));
            }
        }
    }
}

/// A cursor of this engine.
pub struct StoreCursor<'c, P: Pool, D: Dir> {
    core: &'c Core<P, D>,
    range: KeyRange,
    snapshot: Snapshot,
    at: At,
    /// What lies ahead in the direction `reverse`, behind `at`.
    stretch: Option<Stretch<D>>,
    reverse: bool,
    /// Versions on the fast tier that the next stretch takes.
    most_fast: usize,
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
            stretch: None,
            reverse: false,
            most_fast: FIRST_FAST,
            keys_only: false,
        }
    }

    /// The number of keys in `range` that `snapshot` sees.
    pub fn count(core: &'c Core<P, D>, range: KeyRange, snapshot: Snapshot) -> Result<u64> {
        let mut cursor =
            StoreCursor { keys_only: true, most_fast: MOST_FAST, ..Self::new(core, range, snapshot) };
        let mut keys = 0;
        while cursor.advance()?.is_some() {
            keys += 1;
        }
        Ok(keys)
    }

    fn move_to(&mut self, at: At) {
        self.at = at;
        self.stretch = None;
        self.most_fast = FIRST_FAST;
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

    /// What lies ahead in the partition in which `rest` begins, in the cursor's direction.
    fn stretch(&mut self, rest: &KeyRange) -> Result<Stretch<D>> {
        self.core.look_at_stretches();
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
        let (fast, last) = self.fast_entries(&state, &inside, seqno)?;
        let last = last.map(<[u8]>::to_vec);
        let on_flash = OnFlash::of(&state);
        drop(state);
        drop(router);
        if unsettled {
            self.core.heap.pool.wait(self.core.heap.pool.lsn())?;
        }
        self.most_fast = (self.most_fast * 2).min(MOST_FAST);
        let (mut reach, mut behind) = (inside, None);
        match (last, border, self.reverse) {
            (Some(last), _, false) => {
                reach.end = Bound::Included(last.clone());
                behind = Some(KeyRange { start: Bound::Excluded(last), end: rest.end.clone() });
            }
            (Some(last), _, true) => {
                reach.start = Bound::Included(last.clone());
                behind = Some(KeyRange { start: rest.start.clone(), end: Bound::Excluded(last) });
            }
            (None, Some(border), false) if !rest.is_after(&border) => {
                behind = Some(KeyRange { start: Bound::Included(border), end: rest.end.clone() });
            }
            (None, Some(border), true) if !rest.is_before(&border) => {
                behind = Some(KeyRange { start: rest.start.clone(), end: Bound::Excluded(border) });
            }
            _ => {}
        }
        let direction = if self.reverse { Direction::Backward } else { Direction::Forward };
        let ahead = ReadAhead { first: FIRST_READ, ..ReadAhead::default() };
        let entries = on_flash.tables.entries(&reach, direction, ahead, Cause::Foreground);
        let flash = Visible::new(entries, direction, seqno);
        let fast = fast.into_iter().peekable();
        Ok(Stretch { fast, flash, given: true, on_flash, reverse: self.reverse, rest: behind })
    }

    /// What the snapshot sees of the next keys on the fast tier, and the last key that was looked at; none if these are all in
    /// `range`.
    fn fast_entries<'s>(
        &self,
        state: &'s State<D>,
        range: &'s KeyRange,
        seqno: Seqno,
    ) -> Result<(Vec<Fast>, Option<&'s [u8]>)> {
        let Some(bounds) = bounds(range) else { return Ok((Vec::new(), None)) };
        let mut current = state.index.range(bounds).map(|(key, _)| key);
        let mut old = state.old.keys(bounds).map(|key| &key[..]);
        let mut next_current = || if self.reverse { current.next_back() } else { current.next() };
        let mut next_old = || if self.reverse { old.next_back() } else { old.next() };
        let (mut one, mut other) = (next_current(), next_old());
        let mut seen: Vec<Seen<'_>> = Vec::new();
        let mut bytes = 0;
        let (mut last, mut looked_at) = (None, 0);
        loop {
            let key = match (one, other) {
                (None, None) => {
                    last = None;
                    break;
                }
                (Some(key), None) | (None, Some(key)) => key,
                (Some(one), Some(other)) if self.reverse => one.max(other),
                (Some(one), Some(other)) => one.min(other),
            };
            if seen.len() >= self.most_fast || bytes >= MOST_AT_ONCE || looked_at >= MOST_LOOKED_AT {
                break;
            }
            if let Some(entry) = state.version_at(key, seqno) {
                let is_gone = entry.is_tombstone() && mutant::keep("tombstone");
                seen.push(Seen { key, entry: (!is_gone).then_some(entry), before: last });
                bytes += if self.keys_only { 0 } else { self.core.heap.bytes_at_once(entry) };
            }
            last = Some(key);
            looked_at += 1;
            let (used_one, used_other) = (one == Some(key), other == Some(key));
            if used_one {
                one = next_current();
            }
            if used_other {
                other = next_old();
            }
        }
        self.with_values(state, seen, last)
    }

    /// `seen` with values, up to one that cannot be read, if anything comes before it, and otherwise up to the key `last`.
    fn with_values<'s>(
        &self,
        state: &'s State<D>,
        seen: Vec<Seen<'s>>,
        last: Option<&'s [u8]>,
    ) -> Result<(Vec<Fast>, Option<&'s [u8]>)> {
        let wanted = |seen: &Seen<'s>| seen.entry.filter(|_| !self.keys_only);
        let places: Vec<u64> = seen.iter().filter_map(wanted).map(Entry::at).collect();
        let mut read = self.core.heap.read_many(&places).into_iter();
        let mut found = Vec::with_capacity(seen.len());
        for Seen { key, entry, before } in seen {
            let value = match entry {
                None => None,
                // Nothing was read of those whose values are not wanted.
                Some(entry) => match read.next().map(|read| self.core.value_from(state, key, entry, read)) {
                    None => Some(None),
                    Some(Ok(value)) => Some(Some(value)),
                    // What comes before it is given first.
                    Some(Err(_)) if before.is_some() => return Ok((found, before)),
                    Some(Err(error)) => return Err(error),
                },
            };
            found.push(Fast { key: key.to_vec(), value });
        }
        Ok((found, last))
    }

    /// The next entry in the cursor's direction. After an error the cursor is where it was.
    fn advance(&mut self) -> Result<Option<Item>> {
        loop {
            let rest = match &mut self.stretch {
                None => self.rest(),
                Some(stretch) => match stretch.next(self.snapshot.seqno(), self.keys_only) {
                    Ok(None) => self.stretch.take().and_then(|stretch| stretch.rest),
                    Ok(Some((key, value))) => {
                        let at = if self.reverse { At::Before } else { At::After };
                        self.at = at(key.clone());
                        return Ok(Some((key, value)));
                    }
                    Err(error) => {
                        self.stretch = None;
                        return Err(error);
                    }
                },
            };
            let Some(rest) = rest.filter(|rest| bounds(rest).is_some()) else {
                // The end is remembered, so that the other direction starts from it.
                self.move_to(if self.reverse { At::Start } else { At::End });
                return Ok(None);
            };
            self.stretch = Some(self.stretch(&rest)?);
        }
    }

    fn step(&mut self, reverse: bool) -> Result<Option<(Vec<u8>, Value)>> {
        self.core.gate.check_open()?;
        self.core.lost.check_all(&self.core.heap)?;
        if self.reverse != reverse {
            self.reverse = reverse;
            self.stretch = None;
            self.most_fast = FIRST_FAST;
        }
        Ok(self.advance()?.and_then(|(key, value)| Some((key, value?))))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::rig::{self, Store};
    use tierdb_engine::Engine;

    const POOL: u64 = 2 << 20;
    const LATER: u16 = 10_000;

    #[test]
    fn an_old_snapshot_does_not_look_at_all_that_is_newer_at_once() {
        let store = Store::new(POOL, Options { memory: 16 << 20, ..rig::options(POOL) });
        let key = |number: u16| number.to_be_bytes().to_vec();
        let early: Vec<Vec<u8>> = (0..LATER).step_by(400).map(key).collect();
        // Half of them on flash.
        early.iter().step_by(2).for_each(|key| store.put(key, 10));
        store.engine.flush().expect("room");
        early.iter().skip(1).step_by(2).for_each(|key| store.put(key, 10));
        let snapshot = store.engine.snapshot().expect("open");
        (0..LATER).for_each(|number| store.put(&key(number), 10));
        assert_eq!(store.part().read().index.len(), usize::from(LATER));
        let mut cursor = StoreCursor::new(store.core(), KeyRange::all(), snapshot);
        cursor.most_fast = MOST_FAST;
        for reverse in [false, true] {
            cursor.reverse = reverse;
            let stretch = cursor.stretch(&KeyRange::all()).expect("whole");
            let most = MOST_LOOKED_AT as u16;
            let rest = if reverse {
                KeyRange { start: Bound::Unbounded, end: Bound::Excluded(key(LATER - most)) }
            } else {
                KeyRange { start: Bound::Excluded(key(most - 1)), end: Bound::Unbounded }
            };
            assert_eq!(stretch.rest, Some(rest));
        }
        let mut found = Vec::new();
        cursor.seek_to_first();
        while let Some((key, _)) = cursor.next().expect("whole") {
            found.push(key);
        }
        assert_eq!(found, early);
        while let Some((key, _)) = cursor.prev().expect("whole") {
            assert_eq!(Some(key), found.pop());
        }
        assert!(found.is_empty());
    }
}
