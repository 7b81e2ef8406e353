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
use crate::frames::Frames;
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
pub(crate) enum Memory<F> {
    /// All of it.
    Whole(Arena),
    Paged(Box<Paging<F>>),
}

/// What a paged memory knows of its pages.
pub(crate) struct Paging<F> {
    frames: Frames,
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

/// A part of a read, of one page, that is not all in DRAM.
struct Absent<'o> {
    /// The number of the read.
    read: usize,
    page: u64,
    /// Bytes of the page.
    from: u64,
    to: u64,
    out: &'o mut [u8],
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
    let pages = if len == 0 { 0..0 } else { at / PAGE..end.div_ceil(PAGE) };
    pages.map(move |page| {
        let start = page * PAGE;
        (page, at.max(start) - start, end.min(start + PAGE) - start)
    })
}

impl<F: BlockFile> Memory<F> {
    /// Memory of a pool of `len` bytes whose pages are in the slots of `image` that `entries` name, and not read yet. About `passing` bytes
    /// of pages wait for a checkpoint.
    ///
    /// # Errors
    /// `Io` (out of memory).
    pub(crate) fn paged(
        len: u64,
        passing: u64,
        image: Arc<Metered<F>>,
        entries: &[PageEntry],
        seed: u64,
        latch: FailureLatch,
    ) -> Result<Self> {
        let pages = len / PAGE;
        let mut map = entries.to_vec();
        map.resize(pages as usize, PageEntry::NONE);
        Ok(Memory::Paged(Box::new(Paging {
            frames: Frames::new(pages, passing)?,
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
        })))
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self {
            Memory::Whole(arena) => arena.len(),
            Memory::Paged(paging) => paging.masks.len() as u64 * PAGE,
        }
    }

    /// Whether pages leave DRAM.
    #[inline]
    pub(crate) fn is_paged(&self) -> bool {
        matches!(self, Memory::Paged(_))
    }

    /// Bytes of DRAM that it takes, if not all of it.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let Memory::Paged(paging) = self else { return None };
        let masks_and_map = paging.masks.len() * (size_of::<u64>() + size_of::<PageEntry>());
        let bits = paging.pinned.memory_bytes() + paging.written.memory_bytes();
        let pages = paging.resident.load(Ordering::Relaxed) * PAGE;
        Some(pages + paging.frames.other_bytes() + masks_and_map as u64 + bits)
    }

    /// Bytes of pages that a checkpoint lets leave DRAM: none where all of the pool stays.
    #[inline]
    pub(crate) fn passing_bytes(&self) -> u64 {
        let Memory::Paged(paging) = self else { return 0 };
        let staying = paging.staying.load(Ordering::Relaxed);
        paging.resident.load(Ordering::Relaxed).saturating_sub(staying) * PAGE
    }

    /// The word at `at`, whose page stays from now on.
    #[inline]
    pub(crate) fn word(&self, at: u64) -> &AtomicU64 {
        match self {
            Memory::Whole(arena) => arena.word(at),
            Memory::Paged(paging) => {
                paging.pin(at / PAGE);
                paging.frames.word(at)
            }
        }
    }

    /// Copies `out.len()` bytes from `at`.
    ///
    /// # Errors
    /// Those of the image.
    #[inline]
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Memory::Whole(arena) => {
                arena.read(at, out);
                Ok(())
            }
            Memory::Paged(paging) => paging.read(at, out),
        }
    }

    /// Copies from each place what it is beside; what is read from the image is read at once.
    pub(crate) fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Vec<Result<()>> {
        match self {
            Memory::Whole(arena) => {
                let each = |(at, out): &mut (u64, &mut [u8])| {
                    arena.read(*at, out);
                    Ok(())
                };
                reads.iter_mut().map(each).collect()
            }
            Memory::Paged(paging) => paging.read_many(reads),
        }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// Those of the image, where grains are written in part: nothing of the page is changed then.
    #[inline]
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Memory::Whole(arena) => {
                arena.write(at, bytes);
                Ok(())
            }
            Memory::Paged(paging) => paging.write(at, bytes),
        }
    }

    /// Brings all of `at..at + len`, in which whole pages are read at once.
    ///
    /// # Errors
    /// Those of the image.
    pub(crate) fn fetch(&self, at: u64, len: u64) -> Result<()> {
        match self {
            Memory::Whole(_) => Ok(()),
            Memory::Paged(paging) => paging.fetch(at, len),
        }
    }

    /// Says that nobody is about to read `at..at + len`: what was not written since the last checkpoint leaves DRAM.
    pub(crate) fn release(&self, at: u64, len: u64, dirty: &DirtyPages) {
        if let Memory::Paged(paging) = self {
            parts(at, len).for_each(|(page, ..)| paging.evict(page, dirty));
        }
    }

    /// Copies of `pages`, for a checkpoint, one of which is at work at a time: what is written to them from now on keeps them in DRAM.
    ///
    /// # Errors
    /// Those of the image.
    pub(crate) fn copy_pages(&self, pages: &[u64], out: &mut [u8]) -> Result<()> {
        match self {
            Memory::Paged(paging) => paging.copy_pages(pages, out),
            Memory::Whole(arena) => {
                for (page, bytes) in pages.iter().zip(out.chunks_exact_mut(PAGE as usize)) {
                    arena.read(page * PAGE, bytes);
                }
                Ok(())
            }
        }
    }

    /// A durable table names these slots of pages. Called before their old ones are used again. The pages that were not written since
    /// they were copied leave DRAM.
    pub(crate) fn named(&self, entries: impl Iterator<Item = (u64, PageEntry)> + Clone, dirty: &DirtyPages) {
        let Memory::Paged(paging) = self else { return };
        {
            let mut map = paging.map.write();
            entries.clone().for_each(|(page, entry)| map[page as usize] = entry);
        }
        for (page, _) in entries {
            paging.evict(page, dirty);
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

    /// Adds grains, which were written to its frame, to those that DRAM has.
    fn add(&self, page: u64, grains: u64) {
        if self.masks[page as usize].fetch_or(grains, Ordering::Release) == 0 {
            self.resident.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let mut absent = Vec::new();
        self.read_present(0, at, out, &mut absent);
        match &mut absent[..] {
            [] => Ok(()),
            [part] => self.read_absent(part),
            parts => self.read_absents(parts, |_, error| Err(error)),
        }
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = reads.iter().map(|_| Ok(())).collect();
        let mut absent = Vec::new();
        for (number, (at, out)) in reads.iter_mut().enumerate() {
            self.read_present(number, *at, out, &mut absent);
        }
        let each = |number: usize, error| {
            results[number] = Err(error);
            Ok(())
        };
        // It goes on after each error.
        let _ = self.read_absents(&mut absent, each);
        results
    }

    /// Copies what DRAM has of the bytes at `at` by page, and notes the other pages in `absent`, as parts of the read with this number.
    fn read_present<'o>(&self, read: usize, at: u64, out: &'o mut [u8], absent: &mut Vec<Absent<'o>>) {
        let mut rest = out;
        for (page, from, to) in parts(at, rest.len() as u64) {
            let (out, later) = rest.split_at_mut((to - from) as usize);
            rest = later;
            let _shared = self.latch_of(page).read();
            if touched(from, to) & !self.mask(page) == 0 {
                self.frames.read(page * PAGE + from, out);
            } else {
                absent.push(Absent { read, page, from, to, out });
            }
        }
    }

    /// Reads each of `parts`; as many at once as there may be. An error is given to `failed` with the number of the read, which says
    /// whether to go on.
    fn read_absents(
        &self,
        parts: &mut [Absent<'_>],
        mut failed: impl FnMut(usize, Error) -> Result<()>,
    ) -> Result<()> {
        for parts in parts.chunks_mut(AT_ONCE) {
            let pages: Vec<u64> = parts.iter().map(|part| part.page).collect();
            // Without memory for all of them at once they are read one by one.
            let slots = self.read_slots(&pages, Cause::Foreground).unwrap_or_default();
            let mut slots = slots.into_iter().peekable();
            for part in parts {
                let read = match slots.next_if(|(page, ..)| *page == part.page) {
                    Some((_, entry, Ok(slot))) if self.take_from(part, entry, &slot) => Ok(()),
                    Some((.., Err(error))) => Err(error),
                    // It was never written, or has another slot by now.
                    Some((.., Ok(_))) | None => self.read_absent(part),
                };
                read.or_else(|error| failed(part.read, error))?;
            }
        }
        Ok(())
    }

    fn read_absent(&self, part: &mut Absent<'_>) -> Result<()> {
        loop {
            let (entry, slot) = self.read_slot(part.page)?;
            if self.take_from(part, entry, &slot) {
                return Ok(());
            }
        }
    }

    /// Takes the bytes of `part` from `slot`, which was read where `entry` says, with what DRAM has over it. Says whether the page still is there.
    fn take_from(&self, part: &mut Absent<'_>, entry: PageEntry, slot: &[u8]) -> bool {
        let Absent { page, from, to, out, .. } = part;
        let _shared = self.latch_of(*page).read();
        let is_in = self.is_in(*page, entry);
        if is_in {
            out.copy_from_slice(&slot[*from as usize..*to as usize]);
            self.lay_over(*page, *from, *to, out);
        }
        is_in
    }

    /// Puts those grains of `from..to` of `page` that DRAM has over `out`, which has these bytes as the image has them.
    fn lay_over(&self, page: u64, from: u64, to: u64, out: &mut [u8]) {
        let mut there = touched(from, to) & self.mask(page);
        while there != 0 {
            let first = u64::from(there.trailing_zeros());
            let count = u64::from((there >> first).trailing_ones());
            let (start, end) = ((first * GRAIN).max(from), ((first + count) * GRAIN).min(to));
            self.frames.read(page * PAGE + start, &mut out[(start - from) as usize..(end - from) as usize]);
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
    fn load(&self, page: u64) -> Result<()> {
        while self.mask(page) != WHOLE {
            let (entry, slot) = self.read_slot(page)?;
            let _alone = self.latch_of(page).write();
            if !self.is_in(page, entry) {
                continue;
            }
            self.fill(page, &slot);
        }
        Ok(())
    }

    /// Adds what DRAM has not got of `page`, of which `slot` is the copy. Under its latch, held for writing.
    fn fill(&self, page: u64, slot: &[u8]) {
        self.lay_under(page, slot);
        self.add(page, WHOLE);
    }

    /// Puts those grains of `slot` into the frame of `page` that DRAM has not got. Under its latch, held for writing.
    fn lay_under(&self, page: u64, slot: &[u8]) {
        self.frames.take(page);
        let there = self.mask(page);
        for grain in (0..64).filter(|grain| there >> grain & 1 == 0) {
            let from = (grain * GRAIN) as usize;
            self.frames.write(page * PAGE + grain * GRAIN, &slot[from..from + GRAIN as usize]);
        }
    }

    fn fetch(&self, at: u64, len: u64) -> Result<()> {
        let absent: Vec<u64> =
            parts(at, len).map(|(page, ..)| page).filter(|page| self.mask(*page) != WHOLE).collect();
        for pages in absent.chunks(AT_ONCE) {
            for (page, entry, slot) in self.read_slots(pages, Cause::Recovery)? {
                let slot = slot?;
                let _alone = self.latch_of(page).write();
                if self.is_in(page, entry) {
                    self.fill(page, &slot);
                }
            }
            // Those that were never written, and those that have another slot by now.
            pages.iter().try_for_each(|page| self.load(*page))?;
        }
        Ok(())
    }

    /// What the slots of those of `pages` hold that have one.
    ///
    /// # Errors
    /// `Io` (out of memory).
    fn read_slots(&self, pages: &[u64], cause: Cause) -> Result<Vec<(u64, PageEntry, Result<AlignedBuf>)>> {
        let map = self.map.read();
        let entries = pages.iter().map(|page| (*page, map[*page as usize]));
        let named: Vec<_> = entries.filter(|(_, entry)| *entry != PageEntry::NONE).collect();
        let mut reads = Vec::with_capacity(named.len());
        for (_, entry) in &named {
            let (at, buf) = (u64::from(entry.slot) * PAGE, AlignedBuf::zeroed(PAGE as usize)?);
            reads.push(FileRead { file: &*self.image, at, buf });
        }
        let results = Metered::read_many(&mut reads, cause);
        drop(map);
        let read = named.into_iter().zip(reads).zip(results).map(|(((page, entry), read), result)| {
            let checked = result.and_then(|()| self.check(page, entry, &read.buf));
            (page, entry, checked.map(|()| read.buf))
        });
        Ok(read.collect())
    }

    #[inline]
    fn pin(&self, page: u64) {
        if !self.pinned.get(page) {
            self.pin_now(page);
        }
    }

    /// A page that cannot be read stays zeros, and nothing more is written: whoever uses the word cannot be refused.
    #[cold]
    fn pin_now(&self, page: u64) {
        loop {
            if let Err(error) = self.load(page) {
                self.latch.set(error);
                let _alone = self.latch_of(page).write();
                if !self.pinned.get(page) {
                    self.lay_under(page, &[0; PAGE as usize]);
                    self.pinned.set(page);
                }
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

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for (page, from, to) in parts(at, bytes.len() as u64) {
            let (now, later) = rest.split_at((to - from) as usize);
            rest = later;
            let (all, whole) = (touched(from, to), covered(from, to));
            loop {
                let shared = self.latch_of(page).read();
                if all & !whole & !self.mask(page) == 0 {
                    self.written.set(page);
                    self.frames.take(page);
                    self.frames.write(page * PAGE + from, now);
                    self.add(page, all);
                    break;
                }
                drop(shared);
                self.load(page)?;
            }
        }
        Ok(())
    }

    fn copy_pages(&self, pages: &[u64], out: &mut [u8]) -> Result<()> {
        for page in pages {
            let _alone = self.latch_of(*page).write();
            self.written.clear(*page);
        }
        // Until the checkpoint's table is durable no page gets another slot, and none leaves DRAM: who releases one waits for its latch.
        let absent: Vec<u64> = pages.iter().copied().filter(|page| self.mask(*page) != WHOLE).collect();
        let mut slots = self.read_slots(&absent, Cause::Checkpoint)?.into_iter().peekable();
        for (page, bytes) in pages.iter().zip(out.chunks_exact_mut(PAGE as usize)) {
            if let Some((.., slot)) = slots.next_if(|(of, ..)| of == page) {
                bytes.copy_from_slice(&slot?);
            }
            let _shared = self.latch_of(*page).read();
            self.lay_over(*page, 0, PAGE, bytes);
        }
        Ok(())
    }

    fn evict(&self, page: u64, dirty: &DirtyPages) {
        let _alone = self.latch_of(page).write();
        let is_written = self.written.get(page) && mutant::keep("resident");
        if self.pinned.get(page) || is_written || dirty.is_marked(page) {
            return;
        }
        if self.masks[page as usize].swap(0, Ordering::AcqRel) != 0 {
            self.frames.leave(page);
            self.resident.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
