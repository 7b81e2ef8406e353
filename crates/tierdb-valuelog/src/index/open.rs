//! Opening: the chain is walked and checked, the search layer and all other DRAM state rebuilt.
//!
//! The link and the fences say the same thing twice: the leaf that a link leads to must begin where the
//! leaf before it ends. Where that fails, the page table says which pages are leaves, and the walk goes on
//! with the first whole one that begins at or after the break; the range in between is lost, and every
//! access to it says so. So one damaged leaf costs its own keys only.

use super::format::*;
use super::leaf::{Contents, Header, Leaves, Note};
use super::search::Tree;
use super::verify::range_damage;
use super::{EntryId, Index, LOST};
use crate::pages::{KIND_BLOB, KIND_LEAF, PAGE, PageNo, PageUse, Pages};
use crossbeam_epoch as epoch;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result, checksum_parts};
use tierdb_engine::{Damage, in_parallel};
use tierdb_pmem::{Pool, Stage};

/// What the walk along the chain has found.
#[derive(Default)]
struct Walk {
    /// Low fences end to end, and where each ends.
    anchors: Vec<u8>,
    ends: Vec<usize>,
    /// The leaf of each, or [`LOST`].
    pages: Vec<PageNo>,
    damage: Vec<Damage>,
    generation: u32,
}

impl Walk {
    fn push(&mut self, low: &[u8], page: PageNo) {
        self.anchors.extend_from_slice(low);
        self.ends.push(self.anchors.len());
        self.pages.push(page);
    }

    fn leaves(&self) -> impl Iterator<Item = (&[u8], PageNo)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .zip(&self.pages)
            .map(|((start, end), page)| (&self.anchors[start..*end], *page))
    }
}

impl<P: Pool> Index<P> {
    /// The index that was created with the same pages and head word, and what is damaged in its chain.
    /// Claims its pages; the caller then settles the pages before it inserts. Uses `threads` threads.
    ///
    /// Damaged leaves do not fail the call; access to their keys does.
    ///
    /// # Errors
    /// `Corrupt` if the medium reports damage that hides which keys are affected.
    pub fn open(
        pool: Arc<P>,
        pages: Arc<Pages<P>>,
        head_at: u64,
        threads: usize,
    ) -> Result<(Self, Vec<Damage>)> {
        let index = Self::new(pool, pages, head_at);
        let mut walk = index.walk();
        let live = Mutex::new(0u64);
        let leaves: Vec<_> = walk.pages.iter().copied().filter(|page| *page != LOST).collect();
        let may_be_blob = |of| matches!(of, PageUse::Used { kind: KIND_BLOB, .. } | PageUse::Damaged);
        // The table may have lost the word of a page of blobs, and a leaf that has some may be unreadable: either has to say so.
        let has_blobs = index.pages.kinds().any(|(_, of)| may_be_blob(of));
        let found = in_parallel(&leaves, threads, |part| {
            let mut damage = Vec::new();
            let mut contents = Contents::default();
            let mut sum = 0;
            for page in part {
                let geometry = index.leaves.geometry(*page)?;
                let (state, has_long) = index.leaves.fill(*page, geometry);
                index.leaves.state_word(*page).store(state.encode(), Ordering::Release);
                sum += index.leaves.live(*page) as u64;
                if (has_blobs || has_long)
                    && let Err(e) = index.claim_blobs(*page, &mut contents, &mut damage)
                {
                    damage.push(range_damage(&e, b"", None));
                }
            }
            *live.lock() += sum;
            Ok(damage)
        })?;
        walk.damage.extend(found.into_iter().flatten());
        index.blobs.settle();
        index.repair_kinds(&leaves);
        if !walk.damage.is_empty() {
            // What is lost may be found by a repair: its pages are not used again.
            for (page, of) in index.pages.kinds() {
                if is_leaf(of) || matches!(of, PageUse::Used { kind: KIND_BLOB, .. }) {
                    let _evidence = index.pages.claim(page);
                }
            }
        }
        index.search.set(Tree::build(walk.leaves()));
        index.generation.store(walk.generation.wrapping_add(1), Ordering::Relaxed);
        index.leaf_count.store(leaves.len() as u64, Ordering::Relaxed);
        index.inserted.add(live.into_inner());
        Ok((index, walk.damage))
    }

    /// Follows the chain from the head word.
    fn walk(&self) -> Walk {
        let mut walk = Walk::default();
        let mut salvage = None;
        let mut link = match decode_next(self.leaves.pool.load(self.head_at)) {
            Ok(next) => Ok(next),
            Err(()) => Err(self.leaves.damage("the head of the leaf chain is damaged", self.head_at)),
        };
        let mut from = Some(Vec::new());
        while let Some(low) = from {
            let header = self.follow(link, &low).or_else(|(why, bad_page)| {
                let rest = salvage.get_or_insert_with(|| whole_leaves(&self.leaves));
                let start =
                    if bad_page { Bound::Excluded(low.clone()) } else { Bound::Included(low.clone()) };
                let found = rest.range((start, Bound::Unbounded)).next().map(|(_, header)| header.clone());
                let found = found.filter(|header| self.pages.claim(header.page));
                let end = found.as_ref().map(|header| header.low.bytes.as_slice());
                walk.damage.push(range_damage(&why, &low, end));
                if end != Some(&low) {
                    walk.push(&low, LOST);
                }
                found.ok_or(())
            });
            let Ok(header) = header else { break };
            walk.push(&header.low.bytes, header.page);
            walk.generation = walk.generation.max(header.generation);
            link = self.leaves.next(header.page);
            from = header.high.map(|high| high.bytes);
        }
        walk
    }

    /// The leaf that a link leads to, claimed, if it begins at `low`. The error says whether there is a
    /// damaged leaf there, or the link itself is wrong.
    fn follow(&self, link: Result<Option<PageNo>>, low: &[u8]) -> Result<Header, (Error, bool)> {
        let wrong = |e| (e, false);
        let ends_early = || wrong(self.leaves.damage("the leaf chain ends early", self.head_at));
        let page = link.map_err(wrong)?.ok_or_else(ends_early)?;
        if !self.pages.contains(page) || self.pages.is_taken(page) {
            return Err(wrong(
                self.leaves.damage("a link of the leaf chain leads nowhere", page.saturating_mul(PAGE)),
            ));
        }
        let header = self.leaves.header(page);
        if let Ok(header) = &header
            && header.low.bytes != low
        {
            return Err(wrong(
                self.leaves.damage("a link of the leaf chain leads to another leaf", page * PAGE),
            ));
        }
        let _claimed = self.pages.claim(page);
        header.map_err(|e| (e, true))
    }

    fn claim_blobs(&self, page: PageNo, contents: &mut Contents, damage: &mut Vec<Damage>) -> Result<()> {
        let header = self.leaves.header(page)?;
        self.leaves.contents(&header, contents)?;
        for item in &contents.items {
            if let Some(blob) = contents.blob(item)
                && !self.blobs.claim(blob)
            {
                let key = Some(contents.key(item).to_vec());
                let what = "a long key's place is used for something else";
                let note = Note::new(what, page * PAGE, key);
                damage.push(self.note_damage(&note, &header));
            }
        }
        // The boundary's blob is named on both sides of it.
        let high = header.high.as_ref().and_then(|high| high.blob);
        for blob in [header.low.blob, high].into_iter().flatten() {
            let _named_before = self.blobs.claim(blob);
        }
        Ok(())
    }

    /// A leaf's kind word and the link to it are published in no particular order: a crash may have kept
    /// the link alone. A word of either kind may be damaged.
    fn repair_kinds(&self, leaves: &[PageNo]) {
        let mut unnamed = self.blobs.unnamed();
        let others = leaves.iter().filter(|page| !is_leaf(self.pages.usage(**page)));
        unnamed.extend(others.map(|page| (*page, KIND_LEAF, 0)));
        if !unnamed.is_empty() {
            let mut stage = Stage::new(&*self.leaves.pool);
            for (page, kind, info) in unnamed {
                self.pages.stage_kind(&mut stage, page, kind, info);
            }
            let _named = stage.drain();
        }
    }

    /// A sum of all leaves: two indexes with the same sum hold the same keys and ids, whole. `None` if a leaf is
    /// lost or known to be damaged. Called while nobody else uses the index.
    pub fn sum(&self, threads: usize) -> Option<u64> {
        self.run_structure_updates();
        let leaves = self.search.get(&epoch::pin()).pages();
        if leaves.contains(&LOST) {
            return None;
        }
        let sum = AtomicU64::new(0);
        let summed = in_parallel(&leaves, threads, |part| {
            let mut bytes = [0; PAGE as usize];
            for page in part {
                self.leaves.pool.read(page * PAGE, &mut bytes)?;
                let of_leaf = checksum_parts(self.pages.seed(), &[&page.to_le_bytes(), &bytes]);
                sum.fetch_add(of_leaf, Ordering::Relaxed);
            }
            Ok(())
        });
        summed.is_ok().then(|| sum.into_inner())
    }

    /// On open: something else says that `key` was in the index. If a search for it does not say that its leaf is damaged, that is
    /// the leaf of another moment, and may lack other keys: none in it ends without a key from now on.
    pub fn doubt(&self, key: &[u8]) {
        let guard = epoch::pin();
        if let Ok((page, _)) = self.find(key, self.leaves.hash(key), &guard) {
            self.leaves.doubt(page, "a leaf lacks a key that has a value");
        }
    }

    /// Calls `f` for every key and its id, on `threads` threads, and returns what is damaged and was left
    /// out. Keys of a leaf come together, in no order. Called while nobody else uses the index.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn visit(
        &self,
        threads: usize,
        f: &(dyn Fn(&[u8], EntryId) -> Result<()> + Sync),
    ) -> Result<Vec<Damage>> {
        self.run_structure_updates();
        let leaves: Vec<_> =
            self.search.get(&epoch::pin()).pages().into_iter().filter(|page| *page != LOST).collect();
        let found = in_parallel(&leaves, threads, |part| {
            let mut damage = Vec::new();
            let mut contents = Contents::default();
            for page in part {
                let read = self.leaves.header(*page).and_then(|header| {
                    self.leaves.contents(&header, &mut contents)?;
                    Ok(header)
                });
                match read {
                    Ok(header) => {
                        if let Some(note) = contents.notes.iter().find(|note| note.hides_key) {
                            self.leaves.doubt(*page, note.what);
                        }
                        damage.extend(contents.notes.iter().map(|note| self.note_damage(note, &header)))
                    }
                    Err(e) => {
                        damage.push(range_damage(&e, b"", None));
                        continue;
                    }
                }
                for item in &contents.items {
                    f(contents.key(item), item.id)?;
                }
            }
            Ok(damage)
        })?;
        Ok(found.into_iter().flatten().collect())
    }
}

fn is_leaf(of: PageUse) -> bool {
    matches!(of, PageUse::Used { kind: KIND_LEAF, .. })
}

/// All whole leaves that nobody has claimed, by low fence. Of several with the same one the newest counts:
/// the others were replaced, and a crash kept their kind words.
fn whole_leaves<P: Pool>(leaves: &Leaves<P>) -> BTreeMap<Vec<u8>, Header> {
    let mut found = BTreeMap::<Vec<u8>, Header>::new();
    for (page, of) in leaves.pages.kinds() {
        if of == PageUse::Free || leaves.pages.is_taken(page) || !(is_leaf(of) || of == PageUse::Damaged) {
            continue;
        }
        if let Ok(header) = leaves.header(page) {
            let known = found.get(&header.low.bytes).map(|known| known.generation);
            if known.is_none_or(|known| known < header.generation) {
                found.insert(header.low.bytes.clone(), header);
            }
        }
    }
    found
}
