//! The pool's memory: all of it in DRAM, or what was written lately of a pool that is longer than that.
//!
//! A *paged* memory has of each page the *grains* (64 bytes) that its mask names. What is not there is read from the page's slot of
//! the image. Once a table names a copy of a page that has all that was written to it, the page leaves DRAM.
//!
//! * Pages of which single words are used (a word that is loaded, stored or published) stay in DRAM from then on, whole: they are
//!   *pinned*. So words are as fast as in a pool that is all in DRAM, and no read is waited for while the log's latch is held, but where
//!   what is flushed has left DRAM since it was written.
//! * Grains are there before they can be seen, and leave under the page's latch, held for writing, if the page has not been written
//!   since the checkpoint copied it. Whoever writes a page says so under the latch, held for reading.
//! * A reader that has read a slot looks under the latch whether it still is the page's: if not, a table has named another one
//!   meanwhile, and what was read may lack what has left DRAM since.
//!
//! Latches, in the order in which they are taken: a page's; the map of slots, which is held while a slot is read, and written only when a
//! table is durable, before its old slots are used again.

use crate::bits::Bits;
use crate::dirty::DirtyPages;
use crate::layout::PAGE;
use crate::table::{PageEntry, page_sum};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, FailureLatch, Location, Result, TierRole, matches, mutant};
use tierdb_device::{AlignedBuf, BlockFile, Cause, FileRead, Metered};
use tierdb_pmem::Arena;

/// Bytes of a grain: one bit of a page's mask.
const GRAIN: u64 = 64;
const WHOLE: u64 = u64::MAX;
const LATCHES: usize = 256;
/// Slots that are read at once.
const AT_ONCE: usize = 64;

/// The memory of a pool.
pub(crate) struct Memory<F> {
    arena: Arena,
    paging: Option<Paging<F>>,
}

/// What a paged memory knows of its pages.
struct Paging<F> {
    image: Arc<Metered<F>>,
    seed: u64,
    latch: FailureLatch,
    masks: Box<[AtomicU64]>,
    /// Pages that stay.
    pinned: Bits,
    /// Pages that were written since a checkpoint began to copy them.
    written: Bits,
    latches: Box<[RwLock<()>]>,
    /// The slot of each page, as the newest durable table has it.
    map: RwLock<Vec<PageEntry>>,
    /// Pages of which DRAM has grains, and those of them that stay.
    resident: AtomicU64,
    staying: AtomicU64,
}

/// The grains of a page that `from..to` (bytes of it) touches.
fn touched(from: u64, to: u64) -> u64 {
    let (first, last) = (from / GRAIN, (to - 1) / GRAIN);
    (WHOLE << first) & (WHOLE >> (63 - last))
}

/// The grains of a page that `from..to` covers.
fn covered(from: u64, to: u64) -> u64 {
    let (first, end) = (from.div_ceil(GRAIN), to / GRAIN);
    if first < end { touched(first * GRAIN, end * GRAIN) } else { 0 }
}

/// The parts of `at..at + len` by page: page, and the bytes of it.
fn parts(at: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let end = at + len;
    (at / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let start = page * PAGE;
        (page, at.max(start) - start, end.min(start + PAGE) - start)
    })
}

impl<F: BlockFile> Memory<F> {
    /// Memory that holds all of the pool.
    pub(crate) fn whole(arena: Arena) -> Self {
        Memory { arena, paging: None }
    }

    /// Memory of a pool of `len` bytes whose pages are in the slots of `image` that `entries` name, and not read yet.
    ///
    /// # Errors
    /// `Io` (out of memory).
    pub(crate) fn paged(
        len: u64,
        image: Arc<Metered<F>>,
        entries: &[PageEntry],
        seed: u64,
        latch: FailureLatch,
    ) -> Result<Self> {
        let pages = len / PAGE;
        let mut map = entries.to_vec();
        map.resize(pages as usize, PageEntry::NONE);
        let paging = Paging {
            image,
            seed,
            latch,
            masks: map.iter().map(|_| AtomicU64::new(0)).collect(),
            pinned: Bits::new(pages),
            written: Bits::new(pages),
            latches: (0..LATCHES).map(|_| RwLock::new(())).collect(),
            map: RwLock::new(map),
            resident: AtomicU64::new(0),
            staying: AtomicU64::new(0),
        };
        Ok(Memory { arena: Arena::try_discardable(len)?, paging: Some(paging) })
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.arena.len()
    }

    /// Whether pages leave DRAM.
    #[inline]
    pub(crate) fn is_paged(&self) -> bool {
        self.paging.is_some()
    }

    /// Bytes of DRAM that it takes, if not all of it.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let paging = self.paging.as_ref()?;
        let masks_and_map = paging.masks.len() * (size_of::<u64>() + size_of::<PageEntry>());
        let bits = paging.pinned.memory_bytes() + paging.written.memory_bytes();
        Some(paging.resident.load(Ordering::Relaxed) * PAGE + masks_and_map as u64 + bits)
    }

    /// Bytes of pages that a checkpoint lets leave DRAM: none where all of the pool stays.
    #[inline]
    pub(crate) fn passing_bytes(&self) -> u64 {
        let pages = |paging: &Paging<F>| {
            let staying = paging.staying.load(Ordering::Relaxed);
            paging.resident.load(Ordering::Relaxed).saturating_sub(staying)
        };
        self.paging.as_ref().map_or(0, pages) * PAGE
    }

    /// The word at `at`, whose page stays from now on.
    #[inline]
    pub(crate) fn word(&self, at: u64) -> &AtomicU64 {
        if let Some(paging) = &self.paging {
            paging.pin(&self.arena, at / PAGE);
        }
        self.arena.word(at)
    }

    /// Copies `out.len()` bytes from `at`.
    ///
    /// # Errors
    /// Those of the image.
    #[inline]
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        match &self.paging {
            None => {
                self.arena.read(at, out);
                Ok(())
            }
            Some(paging) => paging.read(&self.arena, at, out),
        }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// Those of the image, where grains are written in part: nothing of the page is changed then.
    #[inline]
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        match &self.paging {
            None => {
                self.arena.write(at, bytes);
                Ok(())
            }
            Some(paging) => paging.write(&self.arena, at, bytes),
        }
    }

    /// Brings all of `at..at + len`, in which whole pages are read at once.
    ///
    /// # Errors
    /// Those of the image.
    pub(crate) fn fetch(&self, at: u64, len: u64) -> Result<()> {
        match &self.paging {
            None => Ok(()),
            Some(paging) => paging.fetch(&self.arena, at, len),
        }
    }

    /// Says that nobody is about to read `at..at + len`: what was not written since the last checkpoint leaves DRAM.
    pub(crate) fn release(&self, at: u64, len: u64, dirty: &DirtyPages) {
        if let Some(paging) = &self.paging {
            parts(at, len).for_each(|(page, ..)| paging.evict(&self.arena, page, dirty));
        }
    }

    /// Copies of `pages`, for a checkpoint, one of which is at work at a time: what is written to them from now on keeps them in DRAM.
    ///
    /// # Errors
    /// Those of the image.
    pub(crate) fn copy_pages(&self, pages: &[u64], out: &mut [u8]) -> Result<()> {
        match &self.paging {
            Some(paging) => paging.copy_pages(&self.arena, pages, out),
            None => {
                for (page, bytes) in pages.iter().zip(out.chunks_exact_mut(PAGE as usize)) {
                    self.arena.read(page * PAGE, bytes);
                }
                Ok(())
            }
        }
    }

    /// A durable table names these slots of pages. Called before their old ones are used again. The pages that were not written since
    /// they were copied leave DRAM.
    pub(crate) fn named(&self, entries: impl Iterator<Item = (u64, PageEntry)> + Clone, dirty: &DirtyPages) {
        let Some(paging) = &self.paging else { return };
        {
            let mut map = paging.map.write();
            entries.clone().for_each(|(page, entry)| map[page as usize] = entry);
        }
        for (page, _) in entries {
            paging.evict(&self.arena, page, dirty);
        }
    }
}

impl<F: BlockFile> Paging<F> {
    fn latch_of(&self, page: u64) -> &RwLock<()> {
        &self.latches[page as usize % LATCHES]
    }

    fn mask(&self, page: u64) -> u64 {
        self.masks[page as usize].load(Ordering::Acquire)
    }

    /// Adds grains to those that DRAM has.
    fn add(&self, page: u64, grains: u64) {
        if self.masks[page as usize].fetch_or(grains, Ordering::Release) == 0 {
            self.resident.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self, arena: &Arena, at: u64, out: &mut [u8]) -> Result<()> {
        let mut rest = out;
        for (page, from, to) in parts(at, rest.len() as u64) {
            let (now, later) = rest.split_at_mut((to - from) as usize);
            rest = later;
            let there = {
                let _shared = self.latch_of(page).read();
                let there = touched(from, to) & !self.mask(page) == 0;
                if there {
                    arena.read(page * PAGE + from, now);
                }
                there
            };
            if !there {
                self.read_absent(arena, page, from, to, now)?;
            }
        }
        Ok(())
    }

    fn read_absent(&self, arena: &Arena, page: u64, from: u64, to: u64, out: &mut [u8]) -> Result<()> {
        loop {
            let (entry, slot) = self.read_slot(page)?;
            let _shared = self.latch_of(page).read();
            if self.is_in(page, entry) {
                out.copy_from_slice(&slot[from as usize..to as usize]);
                self.lay_over(arena, page, from, to, out);
                return Ok(());
            }
        }
    }

    /// Puts those grains of `from..to` of `page` that DRAM has over `out`, which has these bytes as the image has them.
    fn lay_over(&self, arena: &Arena, page: u64, from: u64, to: u64, out: &mut [u8]) {
        let mut there = touched(from, to) & self.mask(page);
        while there != 0 {
            let first = u64::from(there.trailing_zeros());
            let count = u64::from((there >> first).trailing_ones());
            let (start, end) = ((first * GRAIN).max(from), ((first + count) * GRAIN).min(to));
            arena.read(page * PAGE + start, &mut out[(start - from) as usize..(end - from) as usize]);
            there &= !touched(first * GRAIN, (first + count) * GRAIN);
        }
    }

    /// Where `page` is, and what its slot holds: zeros where it has none. It may have another slot by now.
    fn read_slot(&self, page: u64) -> Result<(PageEntry, AlignedBuf)> {
        let mut buf = AlignedBuf::zeroed(PAGE as usize)?;
        let map = self.map.read();
        let entry = map[page as usize];
        if entry == PageEntry::NONE {
            return Ok((entry, buf));
        }
        let at = u64::from(entry.slot) * PAGE;
        self.image.read(at, &mut buf, Cause::Foreground)?;
        drop(map);
        self.check(page, entry, &buf)?;
        Ok((entry, buf))
    }

    /// Whether `bytes`, from its slot, are what was written there.
    fn check(&self, page: u64, entry: PageEntry, bytes: &[u8]) -> Result<()> {
        if matches(entry.sum, page_sum(self.seed, page, bytes)) {
            return Ok(());
        }
        let what = format!("page {page} of the pool does not match its checksum");
        let place = Location::new(self.image.file().name(), u64::from(entry.slot) * PAGE);
        Err(Error::corrupt(TierRole::Fast, what, place))
    }

    /// Whether `entry` still is where `page` is. Under its latch.
    fn is_in(&self, page: u64, entry: PageEntry) -> bool {
        self.map.read()[page as usize] == entry
    }

    /// Brings the grains of `page` that DRAM has not got.
    fn load(&self, arena: &Arena, page: u64) -> Result<()> {
        while self.mask(page) != WHOLE {
            let (entry, slot) = self.read_slot(page)?;
            let _alone = self.latch_of(page).write();
            if !self.is_in(page, entry) {
                continue;
            }
            self.fill(arena, page, &slot);
        }
        Ok(())
    }

    /// Adds what DRAM has not got of `page`, of which `slot` is the copy. Under its latch, held for writing.
    fn fill(&self, arena: &Arena, page: u64, slot: &[u8]) {
        let there = self.mask(page);
        for grain in (0..64).filter(|grain| there >> grain & 1 == 0) {
            let from = (grain * GRAIN) as usize;
            arena.write(page * PAGE + grain * GRAIN, &slot[from..from + GRAIN as usize]);
        }
        self.add(page, WHOLE);
    }

    fn fetch(&self, arena: &Arena, at: u64, len: u64) -> Result<()> {
        let absent: Vec<u64> =
            parts(at, len).map(|(page, ..)| page).filter(|page| self.mask(*page) != WHOLE).collect();
        for pages in absent.chunks(AT_ONCE) {
            for (page, entry, slot) in self.read_slots(pages, Cause::Recovery)? {
                let _alone = self.latch_of(page).write();
                if self.is_in(page, entry) {
                    self.fill(arena, page, &slot);
                }
            }
            // Those that were never written, and those that have another slot by now.
            pages.iter().try_for_each(|page| self.load(arena, *page))?;
        }
        Ok(())
    }

    /// What the slots of those of `pages` hold that have one.
    fn read_slots(&self, pages: &[u64], cause: Cause) -> Result<Vec<(u64, PageEntry, AlignedBuf)>> {
        let map = self.map.read();
        let entries = pages.iter().map(|page| (*page, map[*page as usize]));
        let named: Vec<_> = entries.filter(|(_, entry)| *entry != PageEntry::NONE).collect();
        let mut reads = Vec::with_capacity(named.len());
        for (_, entry) in &named {
            let (at, buf) = (u64::from(entry.slot) * PAGE, AlignedBuf::zeroed(PAGE as usize)?);
            reads.push(FileRead { file: &*self.image, at, buf });
        }
        for read in Metered::read_many(&mut reads, cause) {
            read?;
        }
        drop(map);
        let read = named.into_iter().zip(reads).map(|((page, entry), read)| {
            self.check(page, entry, &read.buf)?;
            Ok((page, entry, read.buf))
        });
        read.collect()
    }

    #[inline]
    fn pin(&self, arena: &Arena, page: u64) {
        if !self.pinned.get(page) {
            self.pin_now(arena, page);
        }
    }

    /// A page that cannot be read stays zeros, and nothing more is written: whoever uses the word cannot be refused.
    #[cold]
    fn pin_now(&self, arena: &Arena, page: u64) {
        loop {
            if let Err(error) = self.load(arena, page) {
                self.latch.set(error);
                return;
            }
            let _alone = self.latch_of(page).write();
            if self.mask(page) == WHOLE {
                if !self.pinned.get(page) {
                    self.pinned.set(page);
                    self.staying.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
        }
    }

    fn write(&self, arena: &Arena, at: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for (page, from, to) in parts(at, bytes.len() as u64) {
            let (now, later) = rest.split_at((to - from) as usize);
            rest = later;
            let (all, whole) = (touched(from, to), covered(from, to));
            loop {
                let shared = self.latch_of(page).read();
                if all & !whole & !self.mask(page) == 0 {
                    self.written.set(page);
                    arena.write(page * PAGE + from, now);
                    self.add(page, all);
                    break;
                }
                drop(shared);
                self.load(arena, page)?;
            }
        }
        Ok(())
    }

    fn copy_pages(&self, arena: &Arena, pages: &[u64], out: &mut [u8]) -> Result<()> {
        for page in pages {
            let _alone = self.latch_of(*page).write();
            self.written.clear(*page);
        }
        // Until the checkpoint's table is durable no page gets another slot, and none leaves DRAM: who releases one waits for its latch.
        let absent: Vec<u64> = pages.iter().copied().filter(|page| self.mask(*page) != WHOLE).collect();
        let slots = self.read_slots(&absent, Cause::Checkpoint)?;
        let mut slots = slots.iter().peekable();
        for (page, bytes) in pages.iter().zip(out.chunks_exact_mut(PAGE as usize)) {
            if let Some((.., slot)) = slots.next_if(|(of, ..)| of == page) {
                bytes.copy_from_slice(slot);
            }
            let _shared = self.latch_of(*page).read();
            self.lay_over(arena, *page, 0, PAGE, bytes);
        }
        Ok(())
    }

    fn evict(&self, arena: &Arena, page: u64, dirty: &DirtyPages) {
        let _alone = self.latch_of(page).write();
        let is_written = self.written.get(page) && mutant::keep("resident");
        if self.pinned.get(page) || is_written || dirty.is_marked(page) {
            return;
        }
        if self.mask(page) != 0 && arena.discard(page * PAGE, PAGE) {
            self.masks[page as usize].store(0, Ordering::Release);
            self.resident.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
