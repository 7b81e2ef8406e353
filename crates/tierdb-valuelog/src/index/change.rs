//! The one structural change: a run of adjacent leaves is replaced by new ones.
//!
//! 1. The leaf before the run is latched, then the run, from left to right; with its predecessor latched
//!    nobody else can replace a leaf.
//! 2. The new leaves are staged and drained. A crash leaves pages that nothing refers to.
//! 3. One word is published, the predecessor's link or the head: the run is gone and the new leaves are
//!    there, latched. It is fenced before anyone can write to them.
//! 4. The change is queued for the search layer. Only once it is in there, and all readers of that time
//!    have gone, do the old pages come back.
//! 5. The old leaves' states say *dead* and name the first new leaf, whose low fence is at or below theirs.
//! 6. The new leaves are unlatched: who writes to them, or replaces them, does so after 4 and 5.
//!
//! So changes that overlap hold a common latch while they queue, and the queue has them in their order. And a key that was
//! inserted in a new leaf is not looked for in an old one that still seems to be alive.

use super::Index;
use super::build::{Part, cut, load, prefix, separator, space};
use super::format::*;
use super::leaf::{Contents, Fence, Header, State};
use crate::pages::{KIND_LEAF, PAGE, PageNo, Purpose};
use crossbeam_epoch::Guard;
use std::sync::atomic::Ordering;
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_pmem::{Pool, Stage};
use tierdb_sync::WordGuard;

/// What stands before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// The head word.
    Head,
    /// A leaf.
    Leaf(PageNo),
    /// A leaf that is lost. What follows it is found by kind, fence and generation when the store is opened.
    Lost,
}

/// A run of adjacent leaves and what is before it, all latched.
struct Run<'l> {
    before: Before,
    _before_latch: WordGuard<'l>,
    leaves: Vec<(Header, WordGuard<'l>)>,
}

/// A change that the search layer does not have yet.
#[derive(Default)]
pub(super) struct Update {
    pub set: Vec<(Vec<u8>, PageNo)>,
    pub removed: Vec<Vec<u8>>,
    pub pages: Vec<PageNo>,
    pub blobs: Vec<BlobRef>,
}

impl<P: Pool> Index<P> {
    /// Latches what is before the leaf whose low fence is `low`, that leaf, and `more` leaves after it.
    /// `None` if there is no such leaf any more.
    fn latch_run(&self, low: &[u8], more: usize, guard: &Guard) -> Result<Option<Run<'_>>> {
        let (before, before_latch) = loop {
            let before = if low.is_empty() { Before::Head } else { self.locate_before(low, guard)? };
            let Before::Leaf(page) = before else {
                break (before, WordGuard::latch(self.leaves.state_word(0)));
            };
            let latch = WordGuard::latch(self.leaves.state_word(page));
            if matches!(State::decode(latch.value()), State::Dead(_)) {
                continue;
            }
            if self.leaves.header(page)?.high.is_none_or(|high| high.bytes != low) {
                return Ok(None);
            }
            break (before, latch);
        };
        let mut run = Run { before, _before_latch: before_latch, leaves: Vec::with_capacity(1 + more) };
        let mut from = low.to_vec();
        for _ in 0..=more {
            let page = self.locate(&from, guard)?;
            let latch = WordGuard::latch(self.leaves.state_word(page));
            let header = self.leaves.header(page)?;
            if matches!(State::decode(latch.value()), State::Dead(_)) || header.low.bytes != from {
                return Ok(None);
            }
            let high = header.high.as_ref().map(|high| high.bytes.clone());
            run.leaves.push((header, latch));
            match high {
                Some(high) => from = high,
                None => break,
            }
        }
        Ok((run.leaves.len() == 1 + more).then_some(run))
    }

    /// Makes room for `key` in the leaf that it belongs to: leaves out dead slots, or splits. When it
    /// returns the caller looks again.
    ///
    /// # Errors
    /// `NoSpace` if a page is needed and none is free; nothing was changed. `Corrupt` if the leaf is damaged.
    pub(super) fn make_room(&self, key: &[u8], guard: &Guard) -> Result<()> {
        let low = self.leaves.header(self.locate(key, guard)?)?.low.bytes;
        let Some(mut run) = self.latch_run(&low, 0, guard)? else { return Ok(()) };
        let (header, latch) = &run.leaves[0];
        let State::Alive { used, bottom } = State::decode(latch.value()) else { return Ok(()) };
        let size = entry_bytes(key.len(), header.geometry.prefix);
        let has_room = used < header.geometry.slots && bottom >= header.heap_from() + size;
        if has_room || !header.ends_after(key) {
            return Ok(());
        }
        let mut contents = Contents::default();
        self.leaves.contents(header, &mut contents)?;
        if let Some(note) = contents.notes.first() {
            return Err(self.leaves.damage_of(note));
        }
        contents.sort();
        let (low, high) = (header.low.clone(), header.high.clone());
        let bytes = load(&contents, &contents.items, header.geometry.prefix) + size + SLOT;
        let count = contents.items.len() + 1;
        let roomy = bytes * 4 <= space(&low, high.as_ref()) * 3 && count * 4 <= MAX_SLOTS * 3;
        if !roomy {
            let parts = split(header, &contents, key);
            match parts.map(|parts| self.replace(&mut run, parts, &contents, Purpose::Grow, guard)) {
                Some(Err(e)) if e.kind() == ErrorKind::NoSpace => {}
                Some(done) => return done,
                None => return Err(self.leaves.damage("a leaf cannot be split", low_at(&run))),
            }
        }
        match Part::plan(low, high, &contents, 0..count - 1, Some(key.len())) {
            Some(part) => self.replace(&mut run, vec![part], &contents, Purpose::Shrink, guard),
            None => Err(self.no_space()),
        }
    }

    /// Joins the leaf of `key`, which has few keys, with a neighbour, if they fill one leaf at most to
    /// three quarters.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt`: nothing was changed, and nothing needs to be.
    pub(super) fn join(&self, key: &[u8], guard: &Guard) -> Result<()> {
        let header = self.leaves.header(self.locate(key, guard)?)?;
        let first = match (&header.high, header.low.bytes.is_empty()) {
            (Some(_), _) => header.low.bytes,
            (None, true) => return Ok(()),
            (None, false) => match self.locate_before(&header.low.bytes, guard)? {
                Before::Leaf(left) => self.leaves.header(left)?.low.bytes,
                Before::Head | Before::Lost => return Ok(()),
            },
        };
        let Some(mut run) = self.latch_run(&first, 1, guard)? else { return Ok(()) };
        let mut contents = Contents::default();
        let mut right = Contents::default();
        self.leaves.contents(&run.leaves[0].0, &mut contents)?;
        self.leaves.contents(&run.leaves[1].0, &mut right)?;
        if let Some(note) = contents.notes.iter().chain(&right.notes).next() {
            return Err(self.leaves.damage_of(note));
        }
        let one_is_empty = contents.items.is_empty() || right.items.is_empty();
        let (low, high) = (run.leaves[0].0.low.clone(), run.leaves[1].0.high.clone());
        let prefix = prefix(&low, high.as_ref());
        contents.append(&right, prefix);
        contents.sort();
        let bytes = load(&contents, &contents.items, prefix);
        let roomy = bytes * 4 <= space(&low, high.as_ref()) * 3 && contents.items.len() * 4 <= MAX_SLOTS * 3;
        if !roomy && !one_is_empty {
            return Ok(());
        }
        let all = 0..contents.items.len();
        match Part::plan(low, high, &contents, all, None) {
            Some(part) => self.replace(&mut run, vec![part], &contents, Purpose::Shrink, guard),
            None => Ok(()),
        }
    }

    /// Replaces the leaves of `run` by `parts`, which cover the same range. The leaves are not in `run` any more then.
    fn replace(
        &self,
        run: &mut Run<'_>,
        mut parts: Vec<Part>,
        contents: &Contents,
        purpose: Purpose,
        guard: &Guard,
    ) -> Result<()> {
        let (pages, blobs) = self.provide(&mut parts, purpose)?;
        let pool = &*self.leaves.pool;
        let after = self.link_after(&run.leaves[run.leaves.len() - 1].0, guard);
        let mut stage = Stage::new(pool);
        let mut latches = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            let next = pages.get(i + 1).map_or(after, |next| encode_next(Some(*next)));
            let generation = self.generation.fetch_add(1, Ordering::Relaxed);
            let state = self.leaves.stage(&mut stage, pages[i], generation, part, contents, next);
            let word = self.leaves.state_word(pages[i]);
            word.store(state.encode(), Ordering::Release);
            latches.push(WordGuard::latch(word));
            if let Some(blob) = part.low.blob.filter(|blob| blobs.contains(blob)) {
                self.blobs.stage(&mut stage, blob, &part.low.bytes);
            }
        }
        let drained = stage.drain();
        blobs.into_iter().for_each(|blob| self.blobs.drained(blob));
        for page in &pages {
            self.pages.publish_kind(*page, KIND_LEAF, 0, &drained);
        }
        match run.before {
            Before::Head => drained.publish(self.head_at, encode_next(Some(pages[0]))),
            Before::Leaf(page) => drained.publish(page * PAGE + NEXT_AT, encode_next(Some(pages[0]))),
            Before::Lost => {}
        }
        // Another thread may write to the new leaves and drain, which says nothing of this publish.
        pool.fence();
        let mut update = Update::default();
        for (header, latch) in &mut run.leaves {
            latch.set(State::Dead(pages[0]).encode());
            update.pages.push(header.page);
            if !parts.iter().any(|part| part.low.bytes == header.low.bytes) {
                update.blobs.extend(header.low.blob);
                update.removed.push(std::mem::take(&mut header.low.bytes));
            }
        }
        self.leaf_count.fetch_add(pages.len() as u64, Ordering::Relaxed);
        self.leaf_count.fetch_sub(run.leaves.len() as u64, Ordering::Relaxed);
        update.set = parts.into_iter().map(|part| part.low.bytes).zip(pages).collect();
        self.queue(update);
        run.leaves.clear();
        drop(latches);
        Ok(())
    }

    /// The link of a latched leaf to the one after it, which cannot be replaced meanwhile. A damaged link is
    /// made anew from what the search layer knows; if the next leaf is lost, the link stays as it is.
    fn link_after(&self, header: &Header, guard: &Guard) -> u64 {
        let known = || self.locate(&header.high.as_ref()?.bytes, guard).ok();
        match self.leaves.next(header.page) {
            Ok(next) => encode_next(next),
            Err(_) => known()
                .map_or(self.leaves.pool.load(header.page * PAGE + NEXT_AT), |next| encode_next(Some(next))),
        }
    }

    /// Pages for `parts`, and blobs for the fences between them that are too long for a leaf.
    fn provide(&self, parts: &mut [Part], purpose: Purpose) -> Result<(Vec<PageNo>, Vec<BlobRef>)> {
        let mut pages = Vec::with_capacity(parts.len());
        let mut blobs = Vec::new();
        let outcome = (0..parts.len()).try_for_each(|i| {
            pages.push(self.pages.allocate(purpose)?);
            let low = &parts[i].low;
            if low.blob.is_none() && low.bytes.len() > MAX_INLINE_FENCE {
                let sum = blob_sum(self.leaves.hash(&low.bytes));
                let blob = self.blobs.allocate(low.bytes.len(), sum)?;
                blobs.push(blob);
                parts[i].low.blob = Some(blob);
                if let Some(high) = &mut parts[i - 1].high {
                    high.blob = Some(blob);
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => Ok((pages, blobs)),
            Err(e) => {
                pages.into_iter().for_each(|page| self.pages.give_back(page));
                blobs.into_iter().for_each(|blob| self.blobs.give_back(blob));
                Err(e)
            }
        }
    }

    /// Queues a change for the search layer.
    pub(super) fn queue(&self, update: Update) {
        let mut queue = self.updates.lock();
        queue.push(update);
        self.queued.store(queue.len(), Ordering::Relaxed);
    }

    #[cold]
    fn no_space(&self) -> Error {
        let numbers = self.pages.numbers();
        Error::NoSpace {
            tier: tierdb_base::TierRole::Fast,
            place: self.leaves.pool.place(0).file.to_string(),
            used: self.pages.used() * PAGE,
            capacity: (numbers.end - numbers.start) * PAGE,
        }
    }
}

fn low_at(run: &Run<'_>) -> u64 {
    run.leaves[0].0.page * PAGE
}

/// How to split the leaf with this header and these sorted items so that there is room for `key`.
///
/// Keys that come in order, up or down, leave full leaves behind: if the last key inserted was the
/// outermost and the new one lies beyond it, the new one gets a leaf of its own.
fn split(header: &Header, contents: &Contents, key: &[u8]) -> Option<Vec<Part>> {
    let items = &contents.items;
    let count = items.len();
    let newest = items.iter().map(|item| item.slot).max()?;
    let (first, last) = (&items[0], &items[count - 1]);
    let ends = if last.slot == newest && key > contents.key(last) {
        Some((count, separator(contents.key(last), key)))
    } else if first.slot == newest && key < contents.key(first) {
        Some((0, separator(key, contents.key(first))))
    } else {
        None
    };
    let at = |(left, separator): (usize, Vec<u8>)| {
        let middle = Fence::new(separator);
        let (low, high) = (header.low.clone(), header.high.clone());
        let right_gets_it = key >= middle.bytes.as_slice();
        let spare = |gets_it: bool| gets_it.then_some(key.len());
        let left_part = Part::plan(low, Some(middle.clone()), contents, 0..left, spare(!right_gets_it))?;
        let right_part = Part::plan(middle, high, contents, left..count, spare(right_gets_it))?;
        Some(vec![left_part, right_part])
    };
    ends.and_then(at).or_else(|| at(cut(contents, header.geometry.prefix)).filter(|_| count > 1))
}
