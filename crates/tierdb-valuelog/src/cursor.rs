//! Entries of a range in key order, both ways, as one snapshot sees them.
//!
//! Keys are taken from the index a batch at a time; values are read a window at a time as the cursor reaches them, so
//! that what lies together is read together. The snapshot keeps the values it can see, and their keys in the index, so nothing is missed
//! however the store changes meanwhile.

use crate::cache::{Reader, Slot};
use crate::core::Core;
use crate::moving::LONG_RUN;
use crate::read::{Pointed, Ready};
use crate::second_level::Source;
use crate::storage::is_beside;
use crate::word::{Place, Word};
use std::collections::VecDeque;
use std::ops::{Bound, Range};
use tierdb_base::Result;
use tierdb_device::Dir;
use tierdb_engine::{Cursor, KeyRange, Snapshot, Value};
use tierdb_pmem::Pool;

/// Keys wanted from the index at first; doubled up to the most with each batch.
const FIRST_BATCH: usize = 32;
const MOST_BATCH: usize = 256;
/// Values that are read at once: half as many as the cursor has passed, within these bounds, where they lie together.
const FIRST_WINDOW: usize = 32;
const MOST_WINDOW: usize = 256;
/// Where they are scattered, those in so many places, or in a quarter as many as the cursor has passed: who reads some
/// tens of entries is not made to wait for many more.
const FIRST_PLACES: usize = 16;
/// Values in the write buffer are wanted in the cache, as after a `get`, by who has passed fewer than this: who reads a whole store would
/// drive out of the cache what is read again.
const FEW_PASSED: usize = 256;
/// Bytes of a key that room is made for in advance.
const USUAL_KEY: usize = 24;
/// Entries of a scan that are chained at once.
const MOST_SEEN: usize = 128;
/// A range is scattered if more values of it than this are, and more than an eighth of those that are cached. So many do not make a run
/// that would be left alone.
const FEW_SCATTERED: usize = LONG_RUN - 1;

/// Where the cursor stands: between two keys.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Nowhere yet: before the first entry for `next`, after the last for `prev`.
    Either,
    /// Before the first entry of the range.
    Start,
    /// After the last.
    End,
    /// Just before [`StoreCursor::key`].
    Before,
    /// Just after it.
    After,
}

/// A key that the cursor will come to.
struct Ahead {
    /// Where in [`StoreCursor::keys`] it stands.
    key: Range<usize>,
    entry: u64,
    /// `None` if it was not looked for.
    value: Option<Ready>,
}

/// A cursor of this engine.
pub struct StoreCursor<'c, P: Pool, D: Dir> {
    core: &'c Core<P, D>,
    reader: Reader<'c>,
    range: KeyRange,
    snapshot: Snapshot,
    at: At,
    /// The key that the cursor stands at.
    key: Vec<u8>,
    /// Keys ahead in the direction `reverse`.
    ahead: VecDeque<Ahead>,
    /// The bytes of all keys that came with those ahead: one allocation for all.
    keys: Vec<u8>,
    reverse: bool,
    batch: usize,
    /// Entries that it has passed in this direction.
    passed: usize,
    /// Cache slots of values that it has passed: a scan range to keep together.
    seen: Vec<(Slot, u64)>,
    /// How many values lay scattered.
    scattered: usize,
    /// How many values were looked for, and how many runs of them lie side by side on flash.
    looked: usize,
    runs: usize,
}

impl<'c, P: Pool, D: Dir> StoreCursor<'c, P, D> {
    /// A cursor over `range` as `snapshot` sees it, before its first entry.
    pub fn new(core: &'c Core<P, D>, range: KeyRange, snapshot: Snapshot) -> Self {
        StoreCursor {
            core,
            reader: core.cache.reader(),
            range,
            snapshot,
            at: At::Either,
            key: Vec::new(),
            ahead: VecDeque::new(),
            keys: Vec::new(),
            reverse: false,
            batch: FIRST_BATCH,
            passed: 0,
            seen: Vec::new(),
            scattered: 0,
            looked: 0,
            runs: 0,
        }
    }

    fn move_to(&mut self, at: At) {
        self.at = at;
        self.start_over();
    }

    /// What comes next does not follow on what came before.
    fn start_over(&mut self) {
        self.end_of_range();
        self.seen.clear();
        self.ahead.clear();
        self.batch = FIRST_BATCH;
        self.passed = 0;
    }

    /// Chains what was passed, and keeps the last entry, to chain what follows to it.
    fn end_of_range(&mut self) {
        if let Some(last) = self.seen.last().copied().filter(|_| self.seen.len() > 1) {
            // What lies together in long runs would not be rewritten, and what the fast tier has room for need not be: later scans do not
            // read it from flash.
            if self.runs > 1 + self.looked / LONG_RUN
                && !self.core.second_level.has_room_for_more()
                && !self.core.cache.is_roomy()
            {
                if self.reverse {
                    self.seen.reverse();
                }
                let scattered = self.scattered > FEW_SCATTERED.max(self.seen.len() / 8);
                self.core.cache.chain(&self.seen, scattered);
                if scattered {
                    self.core.work.want_upkeep();
                }
            }
            self.seen.clear();
            self.seen.push(last);
            (self.scattered, self.looked, self.runs) = (0, 0, 0);
        }
    }

    /// Takes the next keys in the cursor's direction from the index. `false` at the end of the range.
    fn fill(&mut self) -> Result<bool> {
        let from: Bound<&[u8]> = match (self.at, self.reverse) {
            (At::Start, true) | (At::End, false) => return Ok(false),
            (At::Start | At::Either, false) => as_slice(&self.range.start),
            (At::End | At::Either, true) => as_slice(&self.range.end),
            (At::Before, false) | (At::After, true) => Bound::Included(&self.key),
            (At::Before, true) | (At::After, false) => Bound::Excluded(&self.key),
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
        self.keys.clear();
        // A leaf may bring some more.
        self.ahead.reserve(2 * self.batch);
        self.keys.reserve(2 * self.batch * USUAL_KEY);
        let mut out = false;
        let ends_at = |fence: &[u8]| match (&self.range.start, self.reverse) {
            (Bound::Included(start) | Bound::Excluded(start), true) => start.as_slice() >= fence,
            (Bound::Unbounded, true) => false,
            (_, false) => self.range.is_after(fence),
        };
        let scanned = self.core.index.scan_within(from, self.reverse, self.batch, ends_at, |key, entry| {
            out = out || if self.reverse { self.range.is_before(key) } else { self.range.is_after(key) };
            if !out {
                let start = self.keys.len();
                self.keys.extend_from_slice(key);
                self.ahead.push_back(Ahead { key: start..self.keys.len(), entry, value: None });
            }
        });
        if self.ahead.is_empty() {
            return scanned.map(|()| false);
        }
        // Damage behind the keys that have come is come upon again, and told of then.
        self.batch = (self.batch * 2).min(MOST_BATCH);
        Ok(true)
    }

    /// Reads the values of the next keys ahead, but for long ones.
    fn read_window(&mut self) {
        if self.seen.len() >= MOST_SEEN {
            self.end_of_range();
        }
        let window = (self.passed / 2).clamp(FIRST_WINDOW, MOST_WINDOW).min(self.ahead.len());
        let seqno = self.snapshot.seqno();
        let next = &self.ahead.make_contiguous()[..window];
        let mut places = Places { left: FIRST_PLACES.max(self.passed / 4), ..Places::default() };
        let guard = crossbeam_epoch::pin();
        // All at first, and then what takes a latch for each: so memory brings several at once.
        let settled: Vec<_> = next.iter().map(|next| self.core.hsit.settled(next.entry)).collect();
        let mut words = Vec::with_capacity(window);
        let as_of = |(next, word): (&Ahead, Result<Word>)| {
            Some(self.core.pointed(next.entry, self.core.as_of(next.entry, word.ok()?, seqno)))
        };
        let wanted = next.iter().zip(settled).map(as_of);
        words.extend(wanted.take_while(|word| places.has_room_for(self.core, *word)));
        if self.passed < FEW_PASSED {
            let in_ring = |pointed: &&Pointed| matches!(pointed.word.place(), Place::Ring(_));
            for Pointed { entry, .. } in words.iter().flatten().filter(in_ring) {
                self.core.want_cached(*entry);
            }
        }
        self.seen.reserve(words.len());
        self.looked += words.len();
        self.runs += places.runs;
        let values = self
            .core
            .read_ahead(&words, guard, &mut self.reader, |number| &self.keys[next[number].key.clone()]);
        for (next, value) in self.ahead.iter_mut().zip(values) {
            next.value = Some(value);
        }
    }

    /// The next key that has a value, in key order, without reading the value.
    pub fn next_key(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if self.ahead.is_empty() && !self.fill()? {
                return Ok(None);
            }
            let Some(Ahead { key, entry, .. }) = self.ahead.pop_front() else { continue };
            self.pass(key, At::After);
            let word = self.core.word_at(entry, self.snapshot.seqno())?;
            if !matches!(word.place(), Place::None | Place::Free) {
                return Ok(Some(self.key.clone()));
            }
        }
    }

    /// Stands at the key at these bytes of `keys` from now on.
    fn pass(&mut self, key: Range<usize>, at: At) {
        self.key.clear();
        self.key.extend_from_slice(&self.keys[key]);
        self.at = at;
    }

    fn step(&mut self, reverse: bool) -> Result<Option<(Vec<u8>, Value)>> {
        self.core.gate.check_open()?;
        if self.reverse != reverse {
            self.start_over();
            self.reverse = reverse;
        }
        loop {
            if self.ahead.is_empty() && !self.fill()? {
                // The end is remembered, so that the other direction starts from it.
                self.move_to(if reverse { At::Start } else { At::End });
                return Ok(None);
            }
            if self.ahead.front().is_some_and(|next| next.value.is_none()) {
                self.read_window();
            }
            let Some(next) = self.ahead.front_mut() else { continue };
            let read = match next.value.replace(Ready::Alone) {
                Some(Ready::Cached(value)) => Some(value),
                Some(Ready::Scattered(value)) => {
                    self.scattered += 1;
                    Some(value)
                }
                Some(Ready::Raw(raw)) => self.core.check(raw, &self.keys[next.key.clone()]),
                Some(Ready::Alone) | None => None,
            };
            let found = match read {
                Some(value) => Some(value),
                None => {
                    let key = &self.keys[next.key.clone()];
                    self.core.entry_at(next.entry, key, self.snapshot.seqno())?
                }
            };
            if let Some(slot) = self.core.hsit.aux(next.entry).slot() {
                self.seen.push((slot, next.entry));
            }
            let Some(Ahead { key, .. }) = self.ahead.pop_front() else { continue };
            self.passed += 1;
            self.pass(key, if reverse { At::Before } else { At::After });
            if let Some(value) = found {
                return Ok(Some((self.key.clone(), value)));
            }
        }
    }
}

/// Counts the places on flash that a window's values are in.
#[derive(Default)]
struct Places {
    /// How many more there may be to read.
    left: usize,
    /// Where the last value to read is, and the last one of all.
    last_read: Option<Extent>,
    last: Option<Extent>,
    /// Runs of values, cached or not, that lie side by side.
    runs: usize,
}

/// A device, and where on it a value starts and ends.
type Extent = (u8, u64, u64);

impl Places {
    /// Whether the value that `wanted` points at is in a place that was counted, or in one more that there is room for.
    fn has_room_for<P: Pool, D: Dir>(&mut self, core: &Core<P, D>, wanted: Option<Pointed>) -> bool {
        let Some(Pointed { entry, word, filling }) = wanted else { return true };
        let Place::Flash(device, start) = word.place() else { return true };
        // It may be a little longer.
        let end = start + word.min_len();
        let is_beside = |other: Option<Extent>| {
            other.is_some_and(|(number, first, last)| {
                number == device && (is_beside(last, start) || is_beside(end, first))
            })
        };
        if !is_beside(self.last.replace((device, start, end))) {
            self.runs += 1;
        }
        if core.hsit.aux(entry).slot().is_some()
            || core.second_level.may_have(Source { entry, word: word.0, filling })
        {
            // It is cached, most likely.
            return true;
        }
        if is_beside(self.last_read.replace((device, start, end))) {
            return true;
        }
        let room = self.left > 0;
        self.left = self.left.saturating_sub(1);
        room
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl<P: Pool, D: Dir> Drop for StoreCursor<'_, P, D> {
    fn drop(&mut self) {
        self.end_of_range();
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
        self.key.clear();
        self.key.extend_from_slice(key);
        self.move_to(At::Before);
    }

    fn seek_to_first(&mut self) {
        self.move_to(At::Start);
    }

    fn seek_to_last(&mut self) {
        self.move_to(At::End);
    }
}
