//! The Persistent Key Index (PRISM §4.1): keys in order, each with the number of its HSIT entry.
//!
//! The data layer is a chain of leaves in the pool ([`format`]), the search layer a tree of their low
//! fences in DRAM ([`search`]), as in PACTree: an insert touches one leaf and publishes one word, and the
//! tree learns of splits later. Leaves change shape in one way only ([`change`]).
//!
//! Invariants
//! 1. The fences of the leaves in the chain tile the key space, and each key is in the leaf whose range
//!    holds it, in one live slot.
//! 2. A key's id does not change while the key is in the index.
//! 3. What an operation has changed is ordered before anything that is flushed after it returns, by any
//!    thread; on memory it is durable then. So nobody can act on a key that a crash takes away.
//! 4. A latch is held across stores, flushes and fences, never across I/O.
//!
//! A million random keys of 16 bytes take about 37 MB of the pool and 0.4 MB of DRAM (measured by
//! `cargo run --release --example index_cost`).
//!
//! Read in this order: [`format`], [`leaf`] (reading), [`search`], this file, [`change`] with [`build`]
//! and [`blob`], [`scan`], then [`open`] and [`verify`].

mod blob;
mod build;
mod change;
mod format;
mod leaf;
mod open;
mod scan;
mod search;
mod verify;

use crate::pages::{KIND_LEAF, PageNo, Pages, Purpose};
use blob::Blobs;
use build::Part;
use change::{Before, Update};
use crossbeam_epoch::{self as epoch, Guard};
use format::*;
use leaf::{Contents, Fence, Found, Header, Leaves, State};
use parking_lot::Mutex;
use search::Tree;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tierdb_base::{Error, ErrorKind, MAX_KEY_BYTES, Result};
use tierdb_pmem::{Pool, Stage};
use tierdb_sync::{Counter, EpochCell, LATCHED, WordGuard};

use crate::pages::PAGE;

/// Number of an HSIT entry, below 2^40.
pub type EntryId = u64;

/// Most bytes that one call flushes, to be admitted to the pool before it (`Pool::admit`).
pub const ADMIT_BYTES: u64 = 6 * PAGE;

/// Changes that may wait for the search layer before a writer brings it up to date itself; fewer in a
/// small pool, since each keeps a page from being used again.
const MOST_QUEUED: u64 = 64;

/// Leaves that are remembered to be joined later; one that is not stays sparse until it changes again.
const MOST_TO_JOIN: usize = 1024;

/// How often a writer lets others run, so that pages come back, before it says that there is no space.
const PATIENCE: usize = 64;

/// The page that the search layer names for a range whose leaf is lost.
const LOST: PageNo = 0;

/// An ordered map from keys to ids, in the pages of a pool.
pub struct Index<P: Pool> {
    leaves: Leaves<P>,
    pages: Arc<Pages<P>>,
    blobs: Blobs<P>,
    head_at: u64,
    search: EpochCell<Tree>,
    updates: Mutex<Vec<Update>>,
    queued: AtomicUsize,
    most_queued: usize,
    applying: Mutex<()>,
    /// Keys of leaves that are to be joined with a neighbour as soon as there is a page for it.
    to_join: Mutex<Vec<Vec<u8>>>,
    /// Calls that have taken such keys, and whose pages do not wait for readers yet.
    joining: AtomicU64,
    generation: AtomicU32,
    leaf_count: AtomicU64,
    inserted: Counter,
    removed: Counter,
}

impl<P: Pool> Index<P> {
    fn new(pool: Arc<P>, pages: Arc<Pages<P>>, head_at: u64) -> Self {
        let numbers = pages.numbers();
        Index {
            leaves: Leaves::new(pool, pages.clone()),
            blobs: Blobs::new(pages.clone()),
            pages,
            head_at,
            search: EpochCell::new(Tree::build([(&b""[..], LOST)])),
            updates: Mutex::default(),
            queued: AtomicUsize::new(0),
            most_queued: ((numbers.end - numbers.start) / 32).clamp(1, MOST_QUEUED) as usize,
            applying: Mutex::default(),
            to_join: Mutex::default(),
            joining: AtomicU64::new(0),
            generation: AtomicU32::new(1),
            leaf_count: AtomicU64::new(0),
            inserted: Counter::default(),
            removed: Counter::default(),
        }
    }

    /// An index without keys: one leaf, named by the word at byte `head_at` of the pool.
    ///
    /// # Errors
    /// `NoSpace` if there is no page.
    pub fn create(pool: Arc<P>, pages: Arc<Pages<P>>, head_at: u64) -> Result<Self> {
        let index = Self::new(pool, pages, head_at);
        let page = index.pages.allocate(Purpose::Grow)?;
        let contents = Contents::default();
        let part =
            Part::plan(Fence::new(Vec::new()), None, &contents, 0..0, None).expect("nothing fits in a leaf");
        let mut stage = Stage::new(&*index.leaves.pool);
        let state = index.leaves.stage(&mut stage, page, 0, &part, &contents, 0);
        let drained = stage.drain();
        index.pages.publish_kind(page, KIND_LEAF, 0, &drained);
        drained.publish(head_at, encode_next(Some(page)));
        index.leaves.pool.fence();
        index.leaves.state_word(page).store(state.encode(), Ordering::Release);
        index.search.set(Tree::build([(&b""[..], page)]));
        index.leaf_count.store(1, Ordering::Relaxed);
        Ok(index)
    }

    /// The id of `key`, if it is there. Takes no latch.
    ///
    /// # Errors
    /// `Corrupt` if the key is damaged, or what is damaged may have been the key.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<EntryId>> {
        let guard = epoch::pin();
        Ok(self.find(key, self.leaves.hash(key), &guard)?.1.map(|found| found.id))
    }

    /// As [`Index::get`], where something will be stored that needs the key: whoever inserted it has fenced.
    ///
    /// # Errors
    /// As [`Index::get`].
    pub fn get_fenced(&self, key: &[u8]) -> Result<Option<EntryId>> {
        let guard = epoch::pin();
        let (page, found) = self.find(key, self.leaves.hash(key), &guard)?;
        let Some(found) = found else { return Ok(None) };
        self.wait_for_fence(page);
        Ok(Some(found.id))
    }

    /// Returns when whoever inserted what was found in the leaf at `page` has fenced: under a latch that is not certain yet.
    #[inline]
    fn wait_for_fence(&self, page: PageNo) {
        let state = self.leaves.state_word(page);
        if state.load(Ordering::Acquire) & LATCHED != 0 {
            drop(WordGuard::latch(state));
        }
    }

    /// Where `key` is, at a moment at which its leaf was in the chain.
    #[inline]
    fn find(&self, key: &[u8], hash: u64, guard: &Guard) -> Result<(PageNo, Option<Found>)> {
        let mut page = self.floor(key, guard)?;
        loop {
            let found = self.leaves.find(page, key, hash);
            if let State::Alive { .. } = self.leaves.state(page) {
                return Ok((page, found.map_err(|e| e.with_key(key))?));
            }
            page = self.locate(key, guard)?;
        }
    }

    /// The id of `key`, and whether this call inserted it: if it was not there it is now, with the id
    /// that `make` returns. `make` is called at most once, under the leaf's latch: it must not block, and
    /// must not use the index.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt`, and those of `make`; nothing was changed.
    ///
    /// # Panics
    /// If the id has more than 40 bits.
    pub fn get_or_insert(
        &self,
        key: &[u8],
        make: impl FnOnce() -> Result<EntryId>,
    ) -> Result<(EntryId, bool)> {
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::TooLarge { what: "key", len: key.len() as u64, limit: MAX_KEY_BYTES as u64 });
        }
        let hash = self.leaves.hash(key);
        let mut make = Some(make);
        let mut outcome = self.try_get_or_insert(key, hash, &mut make);
        if make.is_some() && outcome.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoSpace) {
            self.reclaim();
            outcome = self.try_get_or_insert(key, hash, &mut make);
        }
        if self.queued.load(Ordering::Relaxed) > self.most_queued {
            self.apply_updates();
        }
        outcome
    }

    fn try_get_or_insert(
        &self,
        key: &[u8],
        hash: u64,
        make: &mut Option<impl FnOnce() -> Result<EntryId>>,
    ) -> Result<(EntryId, bool)> {
        let guard = epoch::pin();
        let (mut page, found) = self.find(key, hash, &guard)?;
        if let Some(found) = found {
            self.wait_for_fence(page);
            return Ok((found.id, false));
        }
        loop {
            let mut latch = WordGuard::latch(self.leaves.state_word(page));
            let State::Alive { used, bottom } = State::decode(latch.value()) else {
                drop(latch);
                page = self.locate(key, &guard)?;
                continue;
            };
            if let Some(found) = self.leaves.find(page, key, hash).map_err(|e| e.with_key(key))? {
                return Ok((found.id, false));
            }
            let leaf = self.leaves.geometry(page)?;
            if leaf.prefix > key.len() {
                let what = "a leaf's prefix is longer than a key between its fences";
                return Err(self.leaves.damage(what, page * PAGE).with_key(key));
            }
            let (low, high, _) = decode_more(self.leaves.pool.load(page * PAGE + MORE_AT));
            let heap_from = leaf.fences_at() + fence_bytes(low) + fence_bytes(high);
            let size = entry_bytes(key.len(), leaf.prefix);
            if used < leaf.slots && bottom >= heap_from + size {
                let bottom = bottom - size;
                let id = self.insert(page, leaf, used, bottom, key, hash, make)?;
                latch.set(State::Alive { used: used + 1, bottom }.encode());
                self.inserted.add(1);
                return Ok((id, true));
            }
            drop(latch);
            self.make_room(key, &guard).map_err(|e| e.with_key(key))?;
            page = self.locate(key, &guard)?;
        }
    }

    /// Puts `key` in the unused `slot`, its entry at byte `bottom` of the leaf, whose latch is held.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are known to the caller, which holds the latch"
    )]
    fn insert(
        &self,
        page: PageNo,
        leaf: Geometry,
        slot: usize,
        bottom: usize,
        key: &[u8],
        hash: u64,
        make: &mut Option<impl FnOnce() -> Result<EntryId>>,
    ) -> Result<EntryId> {
        let pool = &*self.leaves.pool;
        let blob = match key.len() > MAX_INLINE {
            true => Some(self.blobs.allocate(key.len(), blob_sum(hash))?),
            false => None,
        };
        let made = make.take().expect("called once")();
        let id = match (made, blob) {
            (Ok(id), _) => id,
            (Err(e), blob) => {
                blob.into_iter().for_each(|blob| self.blobs.give_back(blob));
                return Err(e);
            }
        };
        assert!(id >> 40 == 0, "entry {id} has more than 40 bits");
        let at = page * PAGE;
        let entry = EntryBytes::encode(key, hash, id, leaf.prefix, blob);
        let mut stage = Stage::new(pool);
        if let Some(blob) = blob {
            self.blobs.stage(&mut stage, blob, key);
        }
        stage.write(at + bottom as u64, entry.as_slice());
        stage.write(at + leaf.offset_at(slot), &(bottom as u16).to_le_bytes());
        stage.write(at + FINGERPRINTS_AT + slot as u64, &[fingerprint(hash)]);
        let drained = stage.drain();
        blob.into_iter().for_each(|blob| self.blobs.drained(blob));
        let group_at = at + GROUPS_AT + (slot / GROUP * 8) as u64;
        drained.publish(group_at, pool.load(group_at) ^ slot_bits(slot, hash));
        // Whoever finds the key, and stores something that needs it, drains on a thread of its own.
        pool.fence();
        Ok(id)
    }

    /// Removes `key` if its id is `id`, and says whether it did. Needs no page.
    ///
    /// # Errors
    /// `Corrupt` if the key or its leaf is damaged; nothing was changed.
    pub fn remove(&self, key: &[u8], id: EntryId) -> Result<bool> {
        let hash = self.leaves.hash(key);
        let guard = epoch::pin();
        let mut page = self.floor(key, &guard)?;
        let (live, slots) = loop {
            let latch = WordGuard::latch(self.leaves.state_word(page));
            if let State::Dead(_) = State::decode(latch.value()) {
                drop(latch);
                page = self.locate(key, &guard)?;
                continue;
            }
            let found = self.leaves.find(page, key, hash).map_err(|e| e.with_key(key))?;
            let Some(found) = found.filter(|found| found.id == id) else { return Ok(false) };
            let leaf = self.leaves.geometry(page)?;
            let blob = if key.len() > MAX_INLINE {
                Some(self.leaves.blob_of(page, leaf, found.slot)?)
            } else {
                None
            };
            let pool = &*self.leaves.pool;
            let group_at = page * PAGE + GROUPS_AT + (found.slot / GROUP * 8) as u64;
            pool.publish(group_at, pool.load(group_at) ^ slot_bits(found.slot, hash));
            // Before the key can be inserted in another slot, or it might be there twice after a crash.
            pool.fence();
            if let Some(blob) = blob {
                self.queue(Update { blobs: vec![blob], ..Update::default() });
            }
            self.removed.add(1);
            break (self.leaves.live(page), leaf.slots);
        };
        if live * 4 <= slots && live % (slots / 16).max(1) == 0 {
            self.join_or_note(key.to_vec(), &guard);
        }
        drop(guard);
        if self.queued.load(Ordering::Relaxed) > self.most_queued {
            // The caller may have latches: leaves are joined by who has none.
            self.apply_updates();
        }
        Ok(true)
    }

    /// Joins the leaf of `key` with a neighbour; without a page for that, notes that it is to be done. A
    /// damaged leaf stays as it is: it costs nothing but space.
    fn join_or_note(&self, key: Vec<u8>, guard: &Guard) -> bool {
        let no_page = self.join(&key, guard).is_err_and(|e| e.kind() == ErrorKind::NoSpace);
        if no_page {
            let mut to_join = self.to_join.lock();
            if to_join.len() < MOST_TO_JOIN {
                to_join.push(key);
            }
        }
        !no_page
    }

    /// Joins leaves of which two neighbours fill one to three quarters at the most. Removals alone join those that are nearly empty:
    /// where keys left here and there, and others come elsewhere, the rest would hold their pages for good. Ends early where a leaf is
    /// damaged, or there is no page for it though readers had time to leave.
    pub fn join_sparse(&self) {
        let mut key = Vec::new();
        while let Ok(Some(next)) = self.join_leaf_of(&key) {
            key = next;
        }
        self.run_structure_updates();
    }

    /// Joins the leaf of `key` with those behind it as long as that gains pages. Returns where the next one begins, if there is one.
    fn join_leaf_of(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut is_refused = false;
        loop {
            let (page, is_sparse, next) = {
                let guard = epoch::pin();
                let page = self.locate(key, &guard)?;
                let header = self.leaves.header(page)?;
                (page, self.leaves.live(page) * 4 <= header.geometry.slots * 3, header.high)
            };
            if is_sparse && next.is_some() {
                let joined = {
                    let _admitted = self.leaves.pool.admit(ADMIT_BYTES)?;
                    self.join(key, &epoch::pin())
                };
                match joined {
                    // Those that were joined before give up two pages for each that they took.
                    Err(error) if error.kind() == ErrorKind::NoSpace && !is_refused => {
                        is_refused = true;
                        self.reclaim();
                        continue;
                    }
                    joined => joined?,
                }
                if self.queued.load(Ordering::Relaxed) > self.most_queued {
                    self.run_structure_updates();
                }
                if self.locate(key, &epoch::pin())? != page {
                    continue;
                }
            }
            return Ok(next.map(|next| next.bytes));
        }
    }

    /// Brings the search layer up to date and lets what was replaced come back once its readers have
    /// gone. Called by a background thread from time to time; writers call it when much is queued.
    pub fn run_structure_updates(&self) {
        self.apply_updates();
        let to_join = {
            let mut to_join = self.to_join.lock();
            if to_join.is_empty() {
                return;
            }
            // Before another call finds none.
            self.joining.fetch_add(1, Ordering::Relaxed);
            std::mem::take(&mut *to_join)
        };
        let mut to_join = to_join.into_iter();
        while let Some(key) = to_join.next() {
            let Ok(_admitted) = self.leaves.pool.admit(ADMIT_BYTES) else {
                self.to_join.lock().extend(std::iter::once(key).chain(to_join));
                break;
            };
            if !self.join_or_note(key, &epoch::pin()) {
                self.to_join.lock().extend(to_join);
                break;
            }
        }
        self.apply_queued();
        self.joining.fetch_sub(1, Ordering::Release);
    }

    fn apply_updates(&self) {
        self.apply_queued();
        self.blobs.collect();
    }

    fn apply_queued(&self) {
        let _applying = self.applying.lock();
        let updates = {
            let mut queue = self.updates.lock();
            self.queued.store(0, Ordering::Relaxed);
            std::mem::take(&mut *queue)
        };
        if !updates.is_empty() {
            let mut tree = self.search.get(&epoch::pin()).clone();
            for update in &updates {
                update.set.iter().for_each(|(anchor, page)| tree.set(anchor, *page));
                update.removed.iter().for_each(|anchor| tree.remove(anchor));
            }
            self.search.set(tree);
            let guard = epoch::pin();
            for update in updates {
                update.pages.into_iter().for_each(|page| self.pages.retire(page, &guard));
                update.blobs.into_iter().for_each(|blob| self.blobs.retire(blob, &guard));
            }
            guard.flush();
        }
    }

    /// Tries to get back the pages that wait for readers.
    fn reclaim(&self) {
        self.run_structure_updates();
        // A split takes two.
        let before = self.pages.free();
        for _ in 0..PATIENCE {
            epoch::pin().flush();
            self.blobs.collect();
            if self.pages.free() > before.max(self.pages.reserve()) + 1 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// The leaf that the search layer names for `key`.
    #[inline]
    fn floor(&self, key: &[u8], guard: &Guard) -> Result<PageNo> {
        match self.search.get(guard).floor(key) {
            LOST => Err(self.lost().with_key(key)),
            page => Ok(page),
        }
    }

    /// The leaf in the chain whose range holds `key`, as of some moment since `guard` was pinned.
    fn locate(&self, key: &[u8], guard: &Guard) -> Result<PageNo> {
        self.settle(self.floor(key, guard)?, guard, |header| header.ends_after(key))
    }

    /// The leaf before the boundary `low`, which is not empty.
    fn locate_before(&self, low: &[u8], guard: &Guard) -> Result<Before> {
        match self.search.get(guard).before(low) {
            LOST => Ok(Before::Lost),
            page => {
                let reaches =
                    |header: &Header| header.high.as_ref().is_none_or(|high| high.bytes.as_slice() >= low);
                Ok(Before::Leaf(self.settle(page, guard, reaches)?))
            }
        }
    }

    /// The last leaf of the chain.
    fn locate_last(&self, guard: &Guard) -> Result<PageNo> {
        match self.search.get(guard).last() {
            LOST => Err(self.lost()),
            page => self.settle(page, guard, |header| header.high.is_none()),
        }
    }

    /// From a leaf that the search layer named, the one in the chain that is wanted: if the first was
    /// replaced, the ones that took its place are tried from left to right.
    ///
    /// While `_guard` is pinned no page that is met here comes back: each was in the chain, or named by
    /// the search layer, at some moment since.
    fn settle(&self, first: PageNo, _guard: &Guard, wanted: impl Fn(&Header) -> bool) -> Result<PageNo> {
        let mut page = first;
        let mut forwarded = false;
        let mut last_low: Option<Vec<u8>> = None;
        loop {
            match self.leaves.state(page) {
                State::Dead(next) => {
                    page = next;
                    forwarded = true;
                    // What took its place may begin before it, if they were joined.
                    last_low = None;
                    continue;
                }
                State::Alive { .. } if !forwarded => return Ok(page),
                State::Alive { .. } => {}
            }
            let header = self.leaves.header(page)?;
            if wanted(&header) {
                return Ok(page);
            }
            let at = page * PAGE + NEXT_AT;
            if last_low.is_some_and(|last| last > header.low.bytes) {
                return Err(self.leaves.damage("a leaf's link leads back", at));
            }
            last_low = Some(header.low.bytes);
            page =
                self.leaves.next(page)?.ok_or_else(|| self.leaves.damage("the leaf chain ends early", at))?;
        }
    }

    /// The first boundary between two leaves above `key`: where to go on behind a leaf that is damaged.
    pub fn boundary_after(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.search.get(&epoch::pin()).after(key)
    }

    #[cold]
    fn lost(&self) -> Error {
        self.leaves.damage("the leaf for a range of keys is lost", self.head_at)
    }

    /// Number of keys; exact while no call is under way.
    pub fn keys(&self) -> u64 {
        self.inserted.get().saturating_sub(self.removed.get())
    }

    /// Number of keys that were ever inserted since it was opened, and those that were there then. One that is being
    /// inserted counts before the call that does it returns.
    pub fn inserted(&self) -> u64 {
        self.inserted.get()
    }

    /// Number of leaves.
    pub fn leaves(&self) -> u64 {
        self.leaf_count.load(Ordering::Relaxed)
    }

    /// Number of changes that the search layer does not have yet, of pages and long keys' places that wait for readers,
    /// and of calls on other threads that may add to both. Waits for one that brings the search layer up to date.
    pub fn waiting(&self) -> u64 {
        self.blobs.collect();
        // In the order in which pages go from one to the next, and never between two.
        let joining = self.joining.load(Ordering::Acquire);
        let _applying = self.applying.lock();
        joining + self.updates.lock().len() as u64 + self.pages.waiting() + self.blobs.waiting() as u64
    }

    /// Bytes of the pool in use: leaves, and pages of long keys.
    pub fn pool_bytes(&self) -> u64 {
        (self.leaves() + self.blobs.pages()) * PAGE
    }

    /// Bytes of DRAM in use: search layer, leaf states, blob slots.
    pub fn memory_bytes(&self) -> u64 {
        self.search.get(&epoch::pin()).memory_bytes() + self.leaves() * 8 + self.blobs.memory_bytes()
    }
}

/// What changes in a group word when `slot` becomes live, or ceases to be.
fn slot_bits(slot: usize, hash: u64) -> u64 {
    1 << (slot % GROUP) | u64::from(fingerprint(hash)) << GROUP
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;
    use tierdb_pmem::MappedPool;

    fn empty() -> Index<MappedPool> {
        let pool = Arc::new(MappedPool::in_memory(64 * PAGE));
        let mut stage = Stage::new(&*pool);
        let pages = Arc::new(Pages::format(pool.clone(), &mut stage, PAGE, 2, 62, 9));
        let _drained = stage.drain();
        Index::create(pool, pages, 64).expect("there are pages")
    }

    /// Whoever holds the latch of a leaf may have inserted a key there that is not durable yet.
    #[test]
    fn a_key_that_something_is_stored_for_is_fenced() {
        let index = empty();
        index.get_or_insert(b"key", || Ok(7)).expect("room");
        let page = index.locate(b"key", &epoch::pin()).expect("whole");
        let latch = WordGuard::latch(index.leaves.state_word(page));
        assert_eq!(index.get(b"key").expect("whole"), Some(7));
        assert_eq!(index.get_fenced(b"other").expect("whole"), None);
        thread::scope(|scope| {
            let fenced = scope.spawn(|| index.get_fenced(b"key"));
            thread::sleep(Duration::from_millis(20));
            assert!(!fenced.is_finished(), "who inserted it has not fenced");
            drop(latch);
            assert_eq!(fenced.join().expect("no panic").expect("whole"), Some(7));
        });
    }

    /// Who finds no page waits while another thread may be about to give some up.
    #[test]
    fn what_another_thread_is_about_to_give_up_is_waited_for() {
        let index = empty();
        for key in 0..500u64 {
            index.get_or_insert(&key.to_be_bytes(), || Ok(key)).expect("room");
        }
        index.run_structure_updates();
        while index.waiting() > 0 {
            epoch::pin().flush();
        }
        index.to_join.lock().push(0u64.to_be_bytes().to_vec());

        let latch = WordGuard::latch(index.leaves.state_word(0));
        thread::scope(|scope| {
            scope.spawn(|| index.run_structure_updates());
            while !index.to_join.lock().is_empty() {
                thread::yield_now();
            }
            assert_eq!(index.waiting(), 1, "the call that joins leaves");
            drop(latch);
        });
        assert_eq!(index.joining.load(Ordering::Relaxed), 0);

        let applying = index.applying.lock();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| index.waiting());
            thread::sleep(Duration::from_millis(20));
            assert!(
                !waiting.is_finished(),
                "changes may be on their way from the queue to what waits for readers"
            );
            drop(applying);
        });
    }
}
