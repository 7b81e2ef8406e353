//! The image and the table files: pages in slots, and which table is the newest.
//!
//! Invariants
//! 1. A slot that the newest durable table names is never written. A slot is free again only after a table
//!    without it is durable. (Writes of a process that was killed end before the next one writes; see [`BlockFile::write_pieces`].)
//! 2. A table is written to the area after that of the newest one. So at any moment one whole table is on
//!    media, with all its pages.
//! 3. The newest table found at open may not be durable: the write of it may have failed. Until the next one is,
//!    no slot is written and nothing is logged, so the table before it has its pages and its log.
//! 4. The same holds for the last log block found at open. A copy of it, the *spare*, is stored with the next table,
//!    and with every later one whose log begins at that block or before. A block that was found last was durable if
//!    another was begun after it, so there is never more than one to be kept: an open that finds a spare in
//!    use first makes a checkpoint up to its own last block.
//! 5. A copy that an open has written, and a crash has kept from getting a table, lies in the area of the next one. If the block itself
//!    was lost with it, readers of the next open have seen that it is not there. So the first table after an open without a
//!    spare is written when that place is empty.

use crate::block::Cursor;
use crate::layout::PAGE;
use crate::log::{Ring, with_patience};
use crate::memory::Memory;
use crate::slots::Slots;
use crate::table::{AREAS, PageEntry, TableHeader, area_len, page_sum};
use std::io::ErrorKind as IoKind;
use std::sync::Arc;
use tierdb_base::{Error, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Metered, Piece};

/// Most pages read or written at once: 1 MiB.
pub(crate) const RUN_PAGES: u32 = 256;

/// A checkpoint copies one in so many pages at the most before it writes these.
const MOST_COPIED: u64 = 8;

/// Pages in slots, as the newest durable table has them.
pub(crate) struct PageStore<F> {
    image: Arc<Metered<F>>,
    table: Metered<F>,
    seed: u64,
    pool_len: u64,
    ring: Ring,
    capacity: u64,
    entries: Vec<PageEntry>,
    slots: Slots,
    generation: u64,
    area: u64,
    log: Cursor,
    spare: Option<Spare>,
    /// Whether no table was written since it was opened.
    untouched: bool,
    /// The page whose copy the last checkpoint could not read.
    unread: Option<u64>,
}

/// A copy of a log block whose write may have failed.
pub(crate) struct Spare {
    pub(crate) sequence: u64,
    pub(crate) block: AlignedBuf,
}

/// A page written to a slot that no table names yet.
pub(crate) struct Written {
    pub(crate) page: u64,
    pub(crate) entry: PageEntry,
}

/// The newest table, as it was found or is to be created.
pub(crate) struct Newest {
    pub(crate) pool_len: u64,
    pub(crate) ring: Ring,
    pub(crate) entries: Vec<PageEntry>,
    pub(crate) slots: Slots,
    pub(crate) generation: u64,
    /// Which area it is in.
    pub(crate) area: u64,
    pub(crate) log: Cursor,
    /// The log block stored with it, if its log still needs it.
    pub(crate) spare: Option<Spare>,
}

impl<F: BlockFile> PageStore<F> {
    /// Goes on from `newest`; the image may grow to `capacity` bytes.
    pub(crate) fn new(
        image: Arc<Metered<F>>,
        table: Metered<F>,
        seed: u64,
        capacity: u64,
        newest: Newest,
    ) -> Self {
        let Newest { pool_len, ring, entries, slots, generation, area, log, spare } = newest;
        PageStore {
            image,
            table,
            seed,
            pool_len,
            ring,
            capacity,
            entries,
            slots,
            generation,
            area,
            log,
            spare,
            untouched: true,
            unread: None,
        }
    }

    /// The log position that the newest durable table names.
    pub(crate) fn log(&self) -> Cursor {
        self.log
    }

    /// Whether the newest table needs the log block stored with it.
    pub(crate) fn has_spare(&self) -> bool {
        self.spare.is_some()
    }

    /// Stores `spare` with the next table, in place of the one before.
    pub(crate) fn set_spare(&mut self, spare: Option<Spare>) {
        self.spare = spare;
    }

    /// Bytes of the image file.
    pub(crate) fn image_bytes(&self) -> u64 {
        u64::from(self.slots.count()) * PAGE
    }

    /// Bytes of DRAM it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.entries.capacity() * size_of::<PageEntry>()) as u64 + self.slots.memory_bytes()
    }

    /// How many of `pages` pages can be written now, growing the file if it may.
    ///
    /// # Errors
    /// `NoSpace` if not one can; other errors of growing.
    pub(crate) fn room_for(&mut self, pages: usize) -> Result<usize> {
        self.grow(pages as u64)?;
        let room = pages.min(self.slots.free() as usize);
        if room == 0 && pages > 0 { Err(self.no_space()) } else { Ok(room) }
    }

    /// Makes sure that checkpoints have room in rounds until `pages` are in slots that are in none yet, or all that
    /// there are.
    ///
    /// # Errors
    /// `NoSpace` if they may not; other errors of growing.
    pub(crate) fn reserve(&mut self, pages: u64) -> Result<()> {
        let used = u64::from(self.slots.count() - self.slots.free());
        let free = pages.min((self.pool_len / PAGE).saturating_sub(used)) + 1;
        self.grow(free)?;
        if u64::from(self.slots.free()) < free { Err(self.no_space()) } else { Ok(()) }
    }

    /// Grows the file, if it may, so that `free` slots are free.
    fn grow(&mut self, free: u64) -> Result<()> {
        let short = free.saturating_sub(u64::from(self.slots.free()));
        if short == 0 {
            return Ok(());
        }
        let have = u64::from(self.slots.count());
        let most = (self.capacity / PAGE).min(u64::from(u32::MAX - 1)).saturating_sub(have);
        // In steps, so that the file system is not asked at every checkpoint of a growing pool.
        let step = (have / 16).max(u64::from(RUN_PAGES));
        let mut more = short.max(step).min(most);
        while more > 0 {
            match self.image.file().set_len((have + more) * PAGE) {
                Ok(()) => {
                    self.slots.grow((have + more) as u32);
                    break;
                }
                // What is asked for, at least; and less as long as that spares a checkpoint rounds.
                Err(Error::Io { source, .. }) if source.kind() == IoKind::StorageFull => {
                    more = match more {
                        _ if more > short => short,
                        _ if more / 2 > u64::from(self.slots.free()) => more / 2,
                        _ => 0,
                    };
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn no_space(&self) -> Error {
        Error::NoSpace {
            tier: TierRole::Fast,
            place: self.image.file().name().to_string(),
            used: self.image_bytes(),
            capacity: self.capacity,
        }
    }

    /// Writes `pages` of `memory` to free slots, of which there are enough, and syncs them.
    ///
    /// # Errors
    /// Those of writes. What is not read of `memory` is the inner one: then no slot is taken.
    pub(crate) fn write_pages(&mut self, memory: &Memory<F>, pages: &[u64]) -> Result<Result<Vec<Written>>> {
        // As long as it cannot be read, nothing is written for nothing.
        if let Some(page) = self.unread.filter(|page| pages.contains(page))
            && let Err(error) = memory.copy_pages(&[page], &mut [0; PAGE as usize])
        {
            return Ok(Err(error));
        }
        let mut written = Vec::with_capacity(pages.len());
        let most = (self.pool_len / PAGE / MOST_COPIED).clamp(1, RUN_PAGES.into()) as usize;
        let mut rest = pages;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(most));
            let mut batch = AlignedBuf::zeroed(now.len() * PAGE as usize)?;
            if let Err(error) = memory.copy_pages(now, &mut batch) {
                let is_unread = |page: &&u64| memory.copy_pages(&[**page], &mut [0; PAGE as usize]).is_err();
                self.unread = now.iter().find(is_unread).copied();
                self.discard(written);
                return Ok(Err(error));
            }
            let runs = self.take_runs(now.len() as u32)?;
            let slots = runs.iter().flat_map(|(first, count)| *first..first + count);
            for ((page, bytes), slot) in now.iter().zip(batch.chunks_exact(PAGE as usize)).zip(slots) {
                let entry = PageEntry { slot, sum: page_sum(self.seed, *page, bytes) };
                written.push(Written { page: *page, entry });
            }
            let piece = |(first, count): &(u32, u32)| Piece {
                at: u64::from(*first) * PAGE,
                len: *count as usize * PAGE as usize,
            };
            let pieces: Vec<_> = runs.iter().map(piece).collect();
            with_patience(|| self.image.write_pieces(&batch, &pieces, Cause::Checkpoint))?;
            rest = later;
        }
        if !written.is_empty() {
            self.image.sync(Cause::Checkpoint)?;
        }
        Ok(Ok(written))
    }

    /// Takes `count` free slots, in runs: the first of each, and how many.
    fn take_runs(&mut self, count: u32) -> Result<Vec<(u32, u32)>> {
        let (mut runs, mut left) = (Vec::new(), count);
        while left > 0 {
            let (first, taken) = self
                .slots
                .take_run(left)
                .ok_or_else(|| Error::invalid("a checkpoint found fewer free slots than it had counted"))?;
            runs.push((first, taken));
            left -= taken;
        }
        Ok(runs)
    }

    /// Gives the slots of `written` back: no table will name them.
    pub(crate) fn discard(&mut self, written: Vec<Written>) {
        for page in written {
            self.slots.release(page.entry.slot);
        }
    }

    /// Makes a table durable in which `written` are where they were written and the log begins at `log`.
    ///
    /// # Persistence
    /// A crash inside leaves the tables before it, with the slots they name. On return this one is the newest.
    pub(crate) fn write_table(&mut self, written: &[Written], log: Cursor, clean: bool) -> Result<()> {
        let mut replaced = Vec::with_capacity(written.len());
        for Written { page, entry } in written {
            let page = *page as usize;
            if self.entries.len() <= page {
                self.entries.resize(page + 1, PageEntry::NONE);
            }
            replaced.push(std::mem::replace(&mut self.entries[page], *entry));
        }
        let generation = self.generation + 1;
        let lens = (self.pool_len, self.ring.len, self.ring.largest);
        let table = TableHeader::encode(generation, clean, lens, &log, &self.entries, self.seed)?;
        let area = (self.area + 1) % AREAS;
        let area_len = area_len(self.pool_len, self.ring.largest);
        let start = area * area_len;
        self.spare.take_if(|spare| spare.sequence < log.sequence);
        let beside = start + area_len - self.ring.largest;
        match &self.spare {
            Some(Spare { block, .. }) => {
                with_patience(|| self.table.write_durable(beside, block, Cause::Checkpoint))?;
            }
            None if self.untouched => {
                let nothing = AlignedBuf::zeroed(BLOCK as usize)?;
                with_patience(|| self.table.write_durable(beside, &nothing, Cause::Checkpoint))?;
            }
            None => {}
        }
        with_patience(|| self.table.write_durable(start, &table, Cause::Checkpoint))?;
        (self.generation, self.area, self.log, self.untouched) = (generation, area, log, false);
        for old in replaced.into_iter().filter(|old| *old != PageEntry::NONE) {
            self.slots.release(old.slot);
        }
        Ok(())
    }
}
