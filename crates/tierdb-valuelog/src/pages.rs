//! Pages of the pool: which are in use, what for, and which are free.
//!
//! The page table holds a word for each page that is handed out:
//!
//! ```text
//! bit 0      8                         48              64
//! ├──────────┼─────────────────────────┼───────────────┤
//! │ kind     │ info                    │ check         │     all zero: free
//! └──────────┴─────────────────────────┴───────────────┘
//! ```
//!
//! * A page's word is published after the page was initialised, or written with it before anything refers to it, and set to zero when
//!   nothing on media refers to the page any more.
//! * *check* is 16 bits of a checksum of page number, kind and info, so that a damaged word is noticed.
//! * For pages that something else refers to (leaves, blobs) the word is a hint: it says what a page
//!   was used for if the reference to it is lost. For pages that only the table names it is the truth.
//!
//! The free list is in DRAM. On open the owners claim the pages they use, and [`Pages::settle`] makes
//! all others free; a page whose word outlived its use in a crash is free as well.
//!
//! Some pages are kept for changes that give back more than they take ([`Purpose::Shrink`]), or a full
//! pool could never become emptier.
//!
//! Since format 1.

use crossbeam_epoch::Guard;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result, TierRole, checksum, matches};
use tierdb_pmem::{Drained, Pool, Stage};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Kind of a page that nothing uses.
pub const KIND_FREE: u8 = 0;
/// Kind of a page of the HSIT.
pub const KIND_HSIT: u8 = 1;
/// Kind of a leaf of the key index.
pub const KIND_LEAF: u8 = 2;
/// Kind of a page of long keys.
pub const KIND_BLOB: u8 = 3;

/// Number of a page: its first byte in the pool, divided by [`PAGE`].
pub type PageNo = u64;

const INFO_BITS: u32 = 40;

/// What the page table says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// Nothing uses it.
    Free,
    /// In use.
    Used {
        /// What for: one of the `KIND_` constants.
        kind: u8,
        /// The owner's word, below 2^40.
        info: u64,
    },
    /// Its word is not one that was written.
    Damaged,
}

/// What a page is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To hold more than before. Refused when only the reserve is left.
    Grow,
    /// For a change after which fewer pages, or as many, are in use.
    Shrink,
}

/// The pages of a pool that are handed out.
pub struct Pages<P: Pool> {
    pool: Arc<P>,
    table_at: u64,
    first: PageNo,
    count: u64,
    seed: u64,
    reserve: u64,
    free: Arc<FreeList>,
}

/// The free pages. Apart from the pool, so that what waits for an epoch does not keep the pool open.
struct FreeList {
    first: PageNo,
    lists: Mutex<Lists>,
    /// A bit for each page that is in use or waits for an epoch.
    taken: Box<[AtomicU64]>,
    /// Pages that wait for one.
    waiting: AtomicU64,
}

#[derive(Default)]
struct Lists {
    /// Pages never used since the pool was opened.
    fresh: Range<PageNo>,
    returned: Vec<PageNo>,
}

impl Lists {
    fn len(&self) -> u64 {
        self.fresh.end - self.fresh.start + self.returned.len() as u64
    }
}

impl FreeList {
    fn new(first: PageNo, count: u64) -> Self {
        let taken = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        FreeList { first, lists: Mutex::default(), taken, waiting: AtomicU64::new(0) }
    }

    /// Marks `page` as taken, and says whether it was not.
    fn take(&self, page: PageNo) -> bool {
        let index = page - self.first;
        let bit = 1 << (index % 64);
        self.taken[(index / 64) as usize].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    fn is_taken(&self, page: PageNo) -> bool {
        let index = page - self.first;
        self.taken[(index / 64) as usize].load(Ordering::Acquire) >> (index % 64) & 1 == 1
    }

    fn give_back(&self, page: PageNo) {
        let index = page - self.first;
        let bit = 1 << (index % 64);
        let mut lists = self.lists.lock();
        let before = self.taken[(index / 64) as usize].fetch_and(!bit, Ordering::AcqRel);
        assert!(before & bit != 0, "page {page} is given back once");
        lists.returned.push(page);
    }
}

impl<P: Pool> Pages<P> {
    fn new(pool: Arc<P>, table_at: u64, first: PageNo, count: u64, seed: u64) -> Self {
        let end = first.checked_add(count).and_then(|end| end.checked_mul(PAGE));
        assert!(first > 0 && end.is_some_and(|end| end <= pool.len()), "the pages lie inside the pool");
        assert!(table_at.is_multiple_of(8) && table_at + count * 8 <= pool.len(), "so does their table");
        let reserve = (count / 64).clamp(4, 64).min(count / 4);
        let free = Arc::new(FreeList::new(first, count));
        Pages { pool, table_at, first, count, seed, reserve, free }
    }

    /// Makes pages `first..first + count` of the pool free, with their table at byte `table_at`, which is staged.
    /// `seed` identifies the store.
    ///
    /// # Panics
    /// If the pages or the table lie outside the pool, or page 0 is among them.
    pub fn format(
        pool: Arc<P>,
        stage: &mut Stage<'_, P>,
        table_at: u64,
        first: PageNo,
        count: u64,
        seed: u64,
    ) -> Self {
        let pages = Self::new(pool, table_at, first, count, seed);
        for at in (table_at..table_at + count * 8).step_by(8) {
            if pages.pool.load(at) != 0 {
                stage.word(at, 0);
            }
        }
        pages.settle();
        pages
    }

    /// The pages of a pool that was formatted earlier. None can be had before [`Pages::settle`].
    ///
    /// # Panics
    /// As [`Pages::format`].
    pub fn open(pool: Arc<P>, table_at: u64, first: PageNo, count: u64, seed: u64) -> Self {
        Self::new(pool, table_at, first, count, seed)
    }

    /// What the table says of each page.
    pub fn kinds(&self) -> impl Iterator<Item = (PageNo, PageUse)> + '_ {
        self.numbers().map(|page| (page, self.usage(page)))
    }

    /// What the table says of `page`.
    pub fn usage(&self, page: PageNo) -> PageUse {
        let word = self.pool.load(self.word_at(page));
        if word == 0 {
            return PageUse::Free;
        }
        let (kind, info) = (word as u8, word >> 8 & ((1 << INFO_BITS) - 1));
        if kind != KIND_FREE && matches(word >> 48, self.check(page, word)) {
            PageUse::Used { kind, info }
        } else {
            PageUse::Damaged
        }
    }

    /// The numbers of the pages that are handed out.
    pub fn numbers(&self) -> Range<PageNo> {
        self.first..self.first + self.count
    }

    /// Whether `page` is one of those that are handed out.
    #[inline]
    pub fn contains(&self, page: PageNo) -> bool {
        page.wrapping_sub(self.first) < self.count
    }

    /// Marks `page` as in use, before [`Pages::settle`]. `false` if it is not one of the pages, or
    /// somebody has claimed it already: one of the two references to it is damaged.
    #[must_use]
    pub fn claim(&self, page: PageNo) -> bool {
        self.contains(page) && self.free.take(page)
    }

    /// Whether `page` was claimed or allocated.
    pub fn is_taken(&self, page: PageNo) -> bool {
        self.contains(page) && self.free.is_taken(page)
    }

    /// Makes all pages that nobody claimed free. Called once, after the owners have claimed theirs.
    pub fn settle(&self) {
        let end = self.first + self.count;
        let fresh_from =
            self.numbers().rev().find(|page| self.free.is_taken(*page)).map_or(self.first, |p| p + 1);
        let holes = (self.first..fresh_from).rev().filter(|page| !self.free.is_taken(*page)).collect();
        *self.free.lists.lock() = Lists { fresh: fresh_from..end, returned: holes };
    }

    /// A free page, whatever its content and kind word.
    ///
    /// # Errors
    /// `NoSpace` if there is none for this purpose. Pages that wait for readers may come back soon:
    /// unpin, let the index run its structure updates, and ask again.
    pub fn allocate(&self, purpose: Purpose) -> Result<PageNo> {
        let mut lists = self.free.lists.lock();
        if purpose == Purpose::Grow && lists.len() <= self.reserve {
            return Err(self.no_space(lists.len()));
        }
        let page = lists.returned.pop().or_else(|| lists.fresh.next());
        let Some(page) = page else { return Err(self.no_space(0)) };
        let taken = self.free.take(page);
        assert!(taken, "page {page} is handed out once");
        Ok(page)
    }

    /// Says what the initialised `page` is used for.
    ///
    /// # Panics
    /// If `kind` is that of a free page, or `info` has more than 40 bits.
    #[track_caller]
    pub fn publish_kind(&self, page: PageNo, kind: u8, info: u64, drained: &Drained<'_, P>) {
        drained.publish(self.word_at(page), self.encode(page, kind, info));
    }

    /// Says what `page` is used for, together with what is staged in it. Only for kinds whose pages mean
    /// nothing unless something refers to them.
    ///
    /// # Panics
    /// As [`Pages::publish_kind`].
    #[track_caller]
    pub fn stage_kind(&self, stage: &mut Stage<'_, P>, page: PageNo, kind: u8, info: u64) {
        stage.word(self.word_at(page), self.encode(page, kind, info));
    }

    fn encode(&self, page: PageNo, kind: u8, info: u64) -> u64 {
        assert!(kind != KIND_FREE && info >> INFO_BITS == 0, "kind {kind} with info {info}");
        let word = info << 8 | u64::from(kind);
        word | self.check(page, word) << 48
    }

    /// Gives back a page that was allocated and not used: nothing refers to it, and no kind was published.
    pub fn give_back(&self, page: PageNo) {
        self.free.give_back(page);
    }

    /// Gives back a page that nothing on media refers to any more, and that no reader can be in.
    #[track_caller]
    pub fn release(&self, page: PageNo) {
        self.pool.publish(self.word_at(page), 0);
        self.free.give_back(page);
    }

    /// Gives back a page that nothing on media refers to any more, once all readers that are pinned now
    /// have gone.
    #[track_caller]
    pub fn retire(&self, page: PageNo, guard: &Guard) {
        self.pool.publish(self.word_at(page), 0);
        let free = self.free.clone();
        free.waiting.fetch_add(1, Ordering::Relaxed);
        guard.defer(move || {
            free.give_back(page);
            free.waiting.fetch_sub(1, Ordering::Release);
        });
    }

    /// Number of pages that wait for readers.
    pub fn waiting(&self) -> u64 {
        self.free.waiting.load(Ordering::Acquire)
    }

    /// Number of pages in use, those that wait for readers included.
    pub fn used(&self) -> u64 {
        self.count - self.free()
    }

    /// Number of free pages, the reserve included.
    pub fn free(&self) -> u64 {
        self.free.lists.lock().len()
    }

    /// Number of pages kept for [`Purpose::Shrink`].
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// The bytes of the pages that were never used since the pool was opened: the last ones.
    pub fn unused(&self) -> Range<u64> {
        let fresh = self.free.lists.lock().fresh.clone();
        fresh.start * PAGE..fresh.end * PAGE
    }

    /// Writes to unused pages, of which nothing is durable, and which are handed out all the same. `false` if some
    /// of them were.
    pub fn write_unused(&self, at: u64, bytes: &[u8]) -> bool {
        let lists = self.free.lists.lock();
        let end = at + bytes.len() as u64;
        let is_unused = lists.fresh.start * PAGE <= at && end <= lists.fresh.end * PAGE;
        if is_unused {
            self.pool.write(at, bytes);
        }
        is_unused
    }

    /// What identifies the store, for checksums of what is in the pages.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bytes of DRAM in use.
    pub fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.free.taken) as u64 + self.free.lists.lock().returned.capacity() as u64 * 8
    }

    fn word_at(&self, page: PageNo) -> u64 {
        assert!(self.contains(page), "page {page} is not one that is handed out");
        self.table_at + (page - self.first) * 8
    }

    /// Of the 48 bits of `word` that say kind and info.
    fn check(&self, page: PageNo, word: u64) -> u64 {
        let parts = [page, word & 0xffff_ffff_ffff].map(u64::to_le_bytes);
        checksum(self.seed, parts.as_flattened()) >> 48
    }

    #[cold]
    fn no_space(&self, free: u64) -> Error {
        Error::NoSpace {
            tier: TierRole::Fast,
            place: self.pool.place(0).file.to_string(),
            used: (self.count - free) * PAGE,
            capacity: self.count * PAGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_pmem::MappedPool;

    const TABLE: u64 = 4096;

    fn formatted(pool: Arc<MappedPool>) -> Pages<MappedPool> {
        let mut stage = Stage::new(&*pool);
        let pages = Pages::format(pool.clone(), &mut stage, TABLE, 2, 62, 9);
        let _drained = stage.drain();
        pages
    }

    fn pool() -> Arc<MappedPool> {
        Arc::new(MappedPool::in_memory(64 * PAGE))
    }

    fn publish(pages: &Pages<MappedPool>, page: PageNo, kind: u8, info: u64) {
        let drained = Stage::new(&*pages.pool).drain();
        pages.publish_kind(page, kind, info, &drained);
    }

    #[test]
    fn pages_come_back_and_the_reserve_is_for_shrinking() {
        let pages = formatted(pool());
        let mut held = Vec::new();
        while let Ok(page) = pages.allocate(Purpose::Grow) {
            held.push(page);
        }
        assert_eq!((pages.free(), pages.reserve()), (4, 4));
        held.push(pages.allocate(Purpose::Shrink).expect("from the reserve"));
        assert!(matches!(pages.allocate(Purpose::Grow), Err(Error::NoSpace { tier: TierRole::Fast, .. })));
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len(), 59, "each page once");
        for page in held {
            pages.release(page);
        }
        assert_eq!((pages.free(), pages.used()), (62, 0));
    }

    #[test]
    fn on_open_unclaimed_pages_are_free_and_kinds_are_as_published() {
        let pool = pool();
        let pages = formatted(pool.clone());
        let used: Vec<_> = (0..5).map(|_| pages.allocate(Purpose::Grow).expect("page")).collect();
        for (i, page) in used.iter().enumerate() {
            publish(&pages, *page, KIND_HSIT, i as u64);
        }
        pages.release(used[4]);
        let pages = Pages::open(pool.clone(), TABLE, 2, 62, 9);
        let named: Vec<_> = pages.kinds().filter(|(_, of)| *of != PageUse::Free).collect();
        let expected = |i: usize| (used[i], PageUse::Used { kind: KIND_HSIT, info: i as u64 });
        assert_eq!(named, (0..4).map(expected).collect::<Vec<_>>());
        assert!(pages.claim(used[0]) && pages.claim(used[3]));
        assert!(!pages.claim(used[3]) && !pages.claim(64) && !pages.claim(1), "claimed, or not ours");
        pages.settle();
        assert_eq!(pages.used(), 2);
        let mut rest = Vec::new();
        while let Ok(page) = pages.allocate(Purpose::Shrink) {
            rest.push(page);
        }
        assert_eq!(rest.len(), 60);
        assert!(!rest.contains(&used[0]) && !rest.contains(&used[3]) && rest.contains(&used[1]));
    }

    #[test]
    fn a_flipped_bit_of_a_kind_word_is_noticed() {
        let pool = pool();
        let pages = formatted(pool.clone());
        publish(&pages, 2, KIND_LEAF, 77);
        let word = pool.load(TABLE);
        for bit in 0..64 {
            pool.store(TABLE, word ^ 1 << bit);
            assert_eq!(pages.usage(2), PageUse::Damaged, "bit {bit}");
        }
        pool.store(TABLE, 0);
        pool.store(TABLE + 8, word);
        assert_eq!(pages.usage(3), PageUse::Damaged, "the word of another page");
    }
}
