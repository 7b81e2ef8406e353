//! Checking all leaves while the index is in use.

use super::Index;
use super::leaf::{Contents, Header, Note, State};
use crate::pages::{KIND_LEAF, PAGE, PageUse};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::Bound;
use tierdb_base::Error;
use tierdb_engine::{Damage, KeyRange};
use tierdb_pmem::Pool;
use tierdb_sync::WordGuard;

impl<P: Pool> Index<P> {
    /// Reads every leaf and says what is damaged: headers, fences, links, kind words, keys, ids, blobs.
    /// Readers and writers go on meanwhile.
    pub fn verify(&self) -> Vec<Damage> {
        let mut damage = Vec::new();
        let mut contents = Contents::default();
        let mut low = Vec::new();
        loop {
            match self.verify_leaf(&low, &mut contents, &mut damage) {
                Ok(Some(header)) => match header.high {
                    Some(high) => low = high.bytes,
                    None => return damage,
                },
                Ok(None) => {}
                Err(e) => {
                    let next = self.search.get(&epoch::pin()).after(&low);
                    damage.push(range_damage(&e, &low, next.as_deref()));
                    match next {
                        Some(next) => low = next,
                        None => return damage,
                    }
                }
            }
        }
    }

    /// Checks the leaf whose range holds `low`; `None` if it was replaced meanwhile.
    fn verify_leaf(
        &self,
        low: &[u8],
        contents: &mut Contents,
        damage: &mut Vec<Damage>,
    ) -> Result<Option<Header>, Error> {
        let guard = epoch::pin();
        let page = self.locate(low, &guard)?;
        let Some(header) = self.read_leaf(page, contents, &guard)? else { return Ok(None) };
        if header.low.bytes.as_slice() > low || !header.ends_after(low) {
            return Err(self.misplaced(&header));
        }
        let kind = self.pages.usage(page);
        if let State::Dead(_) = self.leaves.state(page) {
            return Ok(None);
        }
        let mut link_is_right = self.link_is_right(&header, &guard);
        if !link_is_right {
            // The next leaf was replaced between two looks, perhaps. While this one is latched it is not.
            let latch = WordGuard::latch(self.leaves.state_word(page));
            if let State::Dead(_) = State::decode(latch.value()) {
                return Ok(None);
            }
            link_is_right = self.link_is_right(&header, &guard);
        }
        for note in &contents.notes {
            damage.push(self.note_damage(note, &header));
        }
        contents.sort();
        for pair in contents.items.windows(2) {
            let key = contents.key(&pair[0]);
            if key == contents.key(&pair[1]) {
                let note = Note::new("a key is there twice", page * PAGE, Some(key.to_vec()));
                damage.push(self.note_damage(&note, &header));
            }
        }
        let mut note = |what| damage.push(self.note_damage(&Note::new(what, page * PAGE, None), &header));
        if !link_is_right {
            note("a leaf's link does not lead to its right neighbour");
        }
        if !matches!(kind, PageUse::Used { kind: KIND_LEAF, .. }) {
            note("the page table does not say that the page is a leaf");
        }
        Ok(Some(header))
    }

    /// Whether the link of a leaf leads where the search layer leads.
    fn link_is_right(&self, header: &Header, guard: &Guard) -> bool {
        match (self.leaves.next(header.page), &header.high) {
            (Ok(None), None) => true,
            // If the next leaf is lost, that is found when it is reached.
            (Ok(Some(next)), Some(high)) => self.locate(&high.bytes, guard).map_or(true, |page| page == next),
            _ => false,
        }
    }

    /// What a note about a leaf says of keys.
    pub(super) fn note_damage(&self, note: &Note, header: &Header) -> Damage {
        let high = header.high.as_ref().map(|high| high.bytes.as_slice());
        let keys = note
            .key
            .as_ref()
            .map_or_else(|| range(&header.low.bytes, high), |key| KeyRange::one(key.clone()));
        let place = Some(self.leaves.pool.place(note.at));
        Damage { what: note.what.to_string(), place, keys: Some(keys) }
    }
}

/// An error that concerns all keys from `low` to before `high`.
pub(super) fn range_damage(error: &Error, low: &[u8], high: Option<&[u8]>) -> Damage {
    let (what, place) = match error {
        Error::Corrupt { what, place, .. } => (what.clone(), Some(place.clone())),
        other => (other.to_string(), None),
    };
    Damage { what, place, keys: Some(range(low, high)) }
}

/// The keys between two fences. The lowest one is empty.
fn range(low: &[u8], high: Option<&[u8]>) -> KeyRange {
    let start = if low.is_empty() { Bound::Unbounded } else { Bound::Included(low.to_vec()) };
    KeyRange { start, end: high.map_or(Bound::Unbounded, |high| Bound::Excluded(high.to_vec())) }
}
