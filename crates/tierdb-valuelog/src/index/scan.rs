//! Keys in order, forward and backward, leaf by leaf.

use super::change::Before;
use super::format::{GROUPS, GROUPS_AT};
use super::leaf::{Contents, Header, State};
use super::{EntryId, Index};
use crate::pages::{PAGE, PageNo};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::Bound;
use tierdb_base::{Error, Result};
use tierdb_pmem::Pool;
use tierdb_sync::WordGuard;

impl<P: Pool> Index<P> {
    /// Calls `each`, in key order, with the first `wanted` keys from the lower bound `from` on; if `reverse`,
    /// in falling order with the last ones down from the upper bound `from`. More than are wanted come if the leaf of the
    /// last one has them: to read the leaf again takes longer.
    ///
    /// Each leaf is as it was at one moment; keys that are inserted or removed meanwhile are there or not.
    /// Fewer keys than are wanted means that there are no more.
    ///
    /// # Errors
    /// `Corrupt` on reaching a leaf that is damaged or lost; the keys before it have come.
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        reverse: bool,
        wanted: usize,
        each: impl FnMut(&[u8], EntryId),
    ) -> Result<()> {
        self.scan_within(from, reverse, wanted, |_| false, each)
    }

    /// The same for who wants a range alone: `ends_at` says of a fence whether no key is wanted from there on, at or above it, or if
    /// `reverse` below it. What is damaged behind that is not come upon.
    ///
    /// # Errors
    /// As [`Index::scan`].
    pub fn scan_within(
        &self,
        from: Bound<&[u8]>,
        reverse: bool,
        wanted: usize,
        ends_at: impl Fn(&[u8]) -> bool,
        mut each: impl FnMut(&[u8], EntryId),
    ) -> Result<()> {
        let mut left = wanted;
        let mut from = from.map(<[u8]>::to_vec);
        let mut contents = Contents::default();
        while left > 0 {
            let header = {
                let guard = epoch::pin();
                let page = match (&from, reverse) {
                    (Bound::Unbounded, false) => self.locate(b"", &guard)?,
                    (Bound::Unbounded, true) => self.locate_last(&guard)?,
                    (Bound::Excluded(key), true) if key.is_empty() => return Ok(()),
                    (Bound::Excluded(key), true) => match self.locate_before(key, &guard)? {
                        Before::Leaf(page) => page,
                        Before::Head | Before::Lost => return Err(self.lost().with_key(key)),
                    },
                    (Bound::Included(key) | Bound::Excluded(key), _) => self.locate(key, &guard)?,
                };
                match self.read_leaf(page, &mut contents, &guard)? {
                    Some(header) => header,
                    None => continue,
                }
            };
            if let Some(note) = contents.notes.first() {
                return Err(self.leaves.damage_of(note));
            }
            let leads_on = match (&from, reverse) {
                (Bound::Included(key) | Bound::Excluded(key), false) => header.ends_after(key),
                (Bound::Included(key), true) => header.low.bytes <= *key,
                (Bound::Excluded(key), true) => header.low.bytes < *key,
                (Bound::Unbounded, _) => true,
            };
            if !leads_on {
                return Err(self.misplaced(&header));
            }
            match (&from, reverse) {
                (Bound::Unbounded, _) => {}
                (Bound::Included(from), false) => contents.retain(|key| key >= from.as_slice()),
                (Bound::Excluded(from), false) => contents.retain(|key| key > from.as_slice()),
                (Bound::Included(from), true) => contents.retain(|key| key <= from.as_slice()),
                (Bound::Excluded(from), true) => contents.retain(|key| key < from.as_slice()),
            }
            contents.sort();
            left = left.saturating_sub(contents.items.len());
            let item = |item| each(contents.key(item), item.id);
            if reverse {
                contents.items.iter().rev().for_each(item);
                if header.low.bytes.is_empty() || ends_at(&header.low.bytes) {
                    return Ok(());
                }
                from = Bound::Excluded(header.low.bytes);
            } else {
                contents.items.iter().for_each(item);
                match header.high {
                    Some(high) if !ends_at(&high.bytes) => from = Bound::Included(high.bytes),
                    _ => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// The error for a leaf whose fences are not those under which it was found. A walk that went on from
    /// them might never end.
    #[cold]
    pub(super) fn misplaced(&self, header: &Header) -> Error {
        self.leaves.damage("a leaf's fences are not those that the search layer knows", header.page * PAGE)
    }

    /// Reads a leaf as it was at one moment at which it was in the chain; `None` if it was replaced.
    pub(super) fn read_leaf(
        &self,
        page: PageNo,
        out: &mut Contents,
        _guard: &Guard,
    ) -> Result<Option<Header>> {
        let header = self.leaves.header(page)?;
        for _ in 0..3 {
            self.leaves.contents(&header, out)?;
            let now =
                (0..GROUPS as u64).map(|group| self.leaves.pool.load(page * PAGE + GROUPS_AT + group * 8));
            let unchanged = now.eq(out.groups);
            if let State::Dead(_) = self.leaves.state(page) {
                return Ok(None);
            }
            if unchanged {
                return Ok(Some(header));
            }
        }
        // Writers keep changing it: hold them off.
        let latch = WordGuard::latch(self.leaves.state_word(page));
        if let State::Dead(_) = State::decode(latch.value()) {
            return Ok(None);
        }
        self.leaves.contents(&header, out)?;
        Ok(Some(header))
    }
}
