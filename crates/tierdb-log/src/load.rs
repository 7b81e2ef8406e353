//! Reading a table and its pages at open.

use crate::block::Header;
use crate::layout::PAGE;
use crate::options::LostPage;
use crate::slots::Slots;
use crate::store::{RUN_PAGES, Spare};
use crate::table::{AREAS, Area, PageEntry, TableHeader, area_len, entries_len, page_sum};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tierdb_base::{Error, Location, Result, TierRole, matches};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Metered};
use tierdb_pmem::Arena;

/// Pages above which a second thread reads along.
const PARALLEL_PAGES: usize = 2048;

/// The newest whole table.
pub(crate) struct FoundTable {
    pub(crate) header: TableHeader,
    pub(crate) entries: Vec<PageEntry>,
    /// The area it is in.
    pub(crate) area: u64,
    /// The area after it still holds an older table, so no newer one was ever begun.
    pub(crate) is_last: bool,
}

/// What could not be read, for salvage; `None` if a read that fails is a failure of the open.
pub(crate) type Unreadable = Option<Vec<Error>>;

/// Whether `read` succeeded; if not, it is listed in `unreadable`, or an error.
pub(crate) fn was_read(read: Result<()>, unreadable: &mut Unreadable) -> Result<bool> {
    match (read, unreadable) {
        (Ok(()), _) => Ok(true),
        (Err(error), Some(list)) => {
            list.push(error);
            Ok(false)
        }
        (Err(error), None) => Err(error),
    }
}

/// Reads the newest whole table of `file`. One that cannot be read counts as damaged in a salvage.
pub(crate) fn newest_table<F: BlockFile>(
    file: &Metered<F>,
    seed: u64,
    unreadable: &mut Unreadable,
) -> Result<FoundTable> {
    let name = file.file().name();
    let len = file.file().len()?;
    let corrupt = |what: String, at| {
        Error::corrupt(TierRole::Fast, format!("page table: {what}"), Location::new(name.clone(), at))
    };
    let area = len / AREAS;
    if area < 2 * BLOCK || !area.is_multiple_of(BLOCK) {
        return Err(corrupt(format!("a file of {len} bytes was cut short"), len));
    }
    let mut found = Vec::new();
    for index in 0..AREAS {
        let mut head = AlignedBuf::zeroed(BLOCK as usize)?;
        if !was_read(file.read(index * area, &mut head, Cause::Recovery), unreadable)? {
            continue;
        }
        let place = Location::new(name.clone(), index * area);
        if let Area::Table(header) = TableHeader::decode(&head, area, seed, &place)? {
            found.push((header, index));
        }
    }
    found.sort_by_key(|(header, _)| std::cmp::Reverse(header.generation));
    for (header, index) in &found {
        let mut body = AlignedBuf::zeroed(entries_len(header.pages) as usize)?;
        if header.pages > 0
            && !was_read(file.read(index * area + BLOCK, &mut body, Cause::Recovery), unreadable)?
        {
            continue;
        }
        if let Some(entries) = header.entries(&body, seed) {
            let next = (index + 1) % AREAS;
            let is_last = found.iter().any(|(h, at)| *at == next && h.generation + 2 == header.generation);
            return Ok(FoundTable { header: *header, entries, area: *index, is_last });
        }
    }
    Err(corrupt("not one of them is whole".into(), 0))
}

/// The log block stored in area `area` of the table, if there is one that checks. One that cannot be read does not,
/// in a salvage.
pub(crate) fn load_spare<F: BlockFile>(
    file: &Metered<F>,
    area: u64,
    header: &TableHeader,
    seed: u64,
    unreadable: &mut Unreadable,
) -> Result<Option<Spare>> {
    let at = (area + 1) * area_len(header.pool_len, header.largest_block) - header.largest_block;
    let mut block = AlignedBuf::zeroed(BLOCK as usize)?;
    if !was_read(file.read(at, &mut block, Cause::Recovery), unreadable)? {
        return Ok(None);
    }
    let Some(found) = Header::decode(&block, header.largest_block) else { return Ok(None) };
    if found.block_len() > BLOCK {
        block = AlignedBuf::zeroed(found.block_len() as usize)?;
        if !was_read(file.read(at, &mut block, Cause::Recovery), unreadable)? {
            return Ok(None);
        }
    }
    let needed = found.sequence >= header.log.sequence && found.checks(&block, seed);
    Ok(needed.then_some(Spare { sequence: found.sequence, block }))
}

/// The slots of an image of `count` that `entries` name. An entry that names no slot of the image, or one that is
/// taken, is lost.
///
/// Slots after the last that is named are left out, so that they are allocated again before they are used: the
/// write that made the file so long may have failed.
pub(crate) fn take_slots(entries: &mut [PageEntry], count: u32, image: &Arc<str>) -> (Slots, Vec<LostPage>) {
    let named = entries.iter().filter(|entry| entry.slot < count);
    let count = named.map(|entry| entry.slot + 1).max().unwrap_or(0);
    let mut slots = Slots::new(count);
    let mut lost = Vec::new();
    for (page, entry) in (0u64..).zip(entries) {
        if *entry != PageEntry::NONE && !slots.take(entry.slot) {
            let place = Location::new(image.clone(), u64::from(entry.slot) * PAGE);
            let what = format!("page {page} is not in the image of {count} slots, or shares its slot");
            lost.push(LostPage { at: page * PAGE, place, what });
            *entry = PageEntry::NONE;
        }
    }
    (slots, lost)
}

/// Copies the pages that `entries` name from `image` to `arena`, and returns those that do not check.
///
/// # Errors
/// A failed read, unless `salvage` is set: then its pages are lost.
pub(crate) fn load_pages<F: BlockFile>(
    image: &Metered<F>,
    entries: &[PageEntry],
    slots: u32,
    arena: &Arena,
    seed: u64,
    salvage: bool,
) -> Result<Vec<LostPage>> {
    let mut owners = vec![None; slots as usize];
    let mut pages = 0;
    for (page, entry) in (0u64..).zip(entries) {
        if let Some(owner) = owners.get_mut(entry.slot as usize) {
            *owner = Some((page, entry.sum));
            pages += 1;
        }
    }
    let loader = Loader {
        image,
        owners: &owners,
        arena,
        seed,
        salvage,
        next: AtomicUsize::new(0),
        lost: Mutex::new(Vec::new()),
    };
    if pages < PARALLEL_PAGES {
        loader.run()?;
    } else {
        std::thread::scope(|scope| {
            // One that cannot be started leaves its part to this one.
            let other = std::thread::Builder::new().spawn_scoped(scope, || loader.run());
            let own = loader.run();
            let joined = other.map_or(Ok(Ok(())), |other| other.join());
            own.and(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
    }
    Ok(loader.lost.into_inner())
}

struct Loader<'l, F> {
    image: &'l Metered<F>,
    /// Page and checksum of what is in each slot.
    owners: &'l [Option<(u64, u64)>],
    arena: &'l Arena,
    seed: u64,
    salvage: bool,
    next: AtomicUsize,
    lost: Mutex<Vec<LostPage>>,
}

impl<F: BlockFile> Loader<'_, F> {
    /// Loads run after run until none is left.
    fn run(&self) -> Result<()> {
        let run = RUN_PAGES as usize;
        let mut buf = AlignedBuf::zeroed(run.min(self.owners.len()) * PAGE as usize)?;
        loop {
            let start = self.next.fetch_add(1, Ordering::Relaxed) * run;
            if start >= self.owners.len() {
                return Ok(());
            }
            let owners = &self.owners[start..self.owners.len().min(start + run)];
            if owners.iter().all(Option::is_none) {
                continue;
            }
            if let Err(e) = self.load(start, owners, &mut buf) {
                if !self.salvage {
                    return Err(e);
                }
                // Slot by slot, so that only those are lost that cannot be read.
                let mut page_buf = AlignedBuf::zeroed(PAGE as usize)?;
                for (slot, owner) in (start..).zip(owners) {
                    let Some((page, _)) = owner else { continue };
                    if let Err(e) = self.load(slot, std::slice::from_ref(owner), &mut page_buf) {
                        self.lose(*page, slot, e.to_string());
                    }
                }
            }
        }
    }

    /// Loads the slots from `first`, through `buf`, which is made anew if it has another length.
    fn load(&self, first: usize, owners: &[Option<(u64, u64)>], buf: &mut AlignedBuf) -> Result<()> {
        if buf.len() != owners.len() * PAGE as usize {
            *buf = AlignedBuf::zeroed(owners.len() * PAGE as usize)?;
        }
        self.image.read(first as u64 * PAGE, buf, Cause::Recovery)?;
        for ((slot, owner), bytes) in (first..).zip(owners).zip(buf.chunks_exact(PAGE as usize)) {
            let Some((page, sum)) = owner else { continue };
            if matches(*sum, page_sum(self.seed, *page, bytes)) {
                self.arena.write(page * PAGE, bytes);
            } else {
                self.lose(*page, slot, format!("page {page} of the pool does not match its checksum"));
            }
        }
        Ok(())
    }

    fn lose(&self, page: u64, slot: usize, what: String) {
        let place = Location::new(self.image.file().name(), slot as u64 * PAGE);
        self.lost.lock().push(LostPage { at: page * PAGE, place, what });
    }
}
