//! Creating a pool's files, and opening them after anything.
//!
//! 1. Take the newest whole table, and load its pages.
//! 2. Replay the log from its position.
//! 3. Look for blocks after the tail; one means acknowledged data is missing.
//! 4. Make certain what was found, with a new table; see [`LoggedPool::settle`].
//!
//! Nothing is written before step 4, so a crash inside leaves what was there.

use crate::block::Cursor;
use crate::dirty::DirtyPages;
use crate::layout::PAGE;
use crate::load::{Unreadable, load_pages, load_spare, newest_table, take_slots};
use crate::log::{Log, Ring};
use crate::memory::Memory;
use crate::options::{LoggedOptions, LostPage, Salvage};
use crate::pool::LoggedPool;
use crate::replay::{Reader, Replayed, latest_after, replay};
use crate::slots::Slots;
use crate::store::{Newest, PageStore};
use crate::table::{AREAS, area_len};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tierdb_base::{Error, FailureLatch, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BlockFile, Cause, Dir, Emulation, Meter, Metered, OpenMode};
use tierdb_pmem::Arena;

/// Bytes of zeros written at once at creation.
const ZEROS: u64 = 1 << 20;

/// Opens or creates the log, the image and the table.
fn open_files<D: Dir>(
    dir: &D,
    options: &LoggedOptions,
    mode: OpenMode,
    meter: &Meter,
    emulation: Option<Emulation>,
) -> Result<[Metered<D::File>; 3]> {
    let [log, image, table] = options.file_names();
    let open = |name: &str| Ok(Metered::new(dir.open(name, mode)?, meter.clone(), emulation));
    Ok([open(&log)?, open(&image)?, open(&table)?])
}

/// Allocates `len` bytes of `file` and writes zeros to them once, so that no later write has to change the
/// file's metadata.
fn fill_with_zeros<F: BlockFile>(file: &Metered<F>, len: u64) -> Result<()> {
    file.file().set_len(len)?;
    let mut at = 0;
    while at < len {
        let zeros = AlignedBuf::zeroed(ZEROS.min(len - at) as usize)?;
        file.write(at, &zeros, Cause::Foreground)?;
        at += zeros.len() as u64;
    }
    file.sync(Cause::Foreground)
}

/// See [`LoggedPool::create`].
pub(crate) fn create<D: Dir>(
    dir: &D,
    options: &LoggedOptions,
    seed: u64,
    latch: FailureLatch,
    meter: Meter,
    emulation: Option<Emulation>,
) -> Result<LoggedPool<D>> {
    options.check()?;
    let [log, image, table] = open_files(dir, options, OpenMode::CreateNew, &meter, emulation)?;
    let ring = Ring { len: options.log_len, largest: options.largest_block() };
    fill_with_zeros(&log, ring.len)?;
    fill_with_zeros(&table, AREAS * area_len(options.pool_len, ring.largest))?;
    let newest = Newest {
        pool_len: options.pool_len,
        ring,
        entries: Vec::new(),
        slots: Slots::new(0),
        generation: 0,
        area: AREAS - 1,
        log: Cursor { sequence: 1, ..Cursor::default() },
        spare: None,
    };
    let image = Arc::new(image);
    let mut store = PageStore::new(image.clone(), table, seed, options.image_capacity, newest);
    store.write_table(&[], store.log(), false)?;
    dir.sync()?;
    let dirty = DirtyPages::new(options.pool_len / PAGE);
    let start = Replayed { head: store.log(), ..Replayed::default() };
    let memory = if let Some(passing) = options.paged {
        Memory::paged(options.pool_len, passing, image, &[], seed, latch.clone())?
    } else {
        Memory::Whole(Arena::try_zeroed(options.pool_len)?)
    };
    let (name, salvage) = (dir.name(), Salvage::default());
    let most_dirty = options.paged.unwrap_or(u64::MAX);
    Ok(assemble(Parts { name, memory, dirty, log, store, start, salvage, seed, latch, ring, most_dirty }))
}

/// See [`LoggedPool::open`].
pub(crate) fn open<D: Dir>(
    dir: &D,
    options: &LoggedOptions,
    seed: u64,
    latch: FailureLatch,
    meter: Meter,
    emulation: Option<Emulation>,
) -> Result<LoggedPool<D>> {
    latch.check()?;
    let [log, image, table] = open_files(dir, options, OpenMode::Existing, &meter, emulation)?;
    let mut unreadable: Unreadable = options.salvage.then(Vec::new);
    let found = newest_table(&table, seed, &mut unreadable)?;
    let header = found.header;
    options.check_capacity(header.pool_len)?;
    let ring = Ring { len: header.log_len, largest: header.largest_block };
    let have = log.file().len()?;
    if have < ring.len {
        let what = format!("the log has {have} bytes, but was created with {}", ring.len);
        return Err(Error::corrupt(TierRole::Fast, what, Location::new(log.file().name(), have)));
    }
    let mut salvage = Salvage::default();
    let dirty = DirtyPages::new(header.pool_len / PAGE);

    let mut entries = found.entries;
    let count = (image.file().len()? / PAGE).min(u64::from(u32::MAX - 1)) as u32;
    let (slots, lost) = take_slots(&mut entries, count, &image.file().name());
    lose(&mut salvage, lost, options.salvage)?;
    let image = Arc::new(image);
    let memory = match options.paged {
        Some(passing) if !options.salvage => {
            Memory::paged(header.pool_len, passing, image.clone(), &entries, seed, latch.clone())?
        }
        _ => {
            let arena = Arena::try_zeroed(header.pool_len)?;
            let lost = load_pages(&image, &entries, slots.count(), &arena, seed, options.salvage)?;
            lose(&mut salvage, lost, options.salvage)?;
            Memory::Whole(arena)
        }
    };

    let spare = load_spare(&table, found.area, &header, seed, &mut unreadable)?;
    let mut reader = Reader::new(&log, ring, &mut unreadable)?;
    let mut start = replay(&mut reader, header.log, spare.as_ref(), seed, &memory, &dirty)?;
    // A clean table has no log after it. Where a newer table may have been lost, that is not believed.
    let no_log = header.clean && found.is_last && start.head == header.log;
    if !no_log && let Some(latest) = latest_after(&mut reader, &start.head, seed)? {
        let missing = Error::AcknowledgedDataMissing {
            what: format!(
                "log block {} is missing or damaged in {} at byte {}, but block {} was written after it and is whole: \
                 the log was durable up to LSN {}, and ends at LSN {}",
                start.head.sequence,
                log.file().name(),
                ring.offset(start.head.position),
                latest.sequence,
                latest.lsn + u64::from(latest.length),
                start.head.lsn,
            ),
        };
        if !options.salvage {
            return Err(missing);
        }
        salvage.log = Some(missing);
        // What is still on the ring belongs to a past that is given up: no number of it is used again.
        start.head.sequence = latest.sequence + 1;
    }
    salvage.unreadable = unreadable.unwrap_or_default();
    for page in &salvage.pages {
        dirty.mark(page.at, PAGE);
    }
    let newest = Newest {
        pool_len: header.pool_len,
        ring,
        entries,
        slots,
        generation: header.generation,
        area: found.area,
        log: header.log,
        spare,
    };
    let store = PageStore::new(image, table, seed, options.image_capacity, newest);
    let (name, last) = (dir.name(), start.last.take());
    let most_dirty = options.paged.unwrap_or(u64::MAX);
    let pool =
        assemble(Parts { name, memory, dirty, log, store, start, salvage, seed, latch, ring, most_dirty });
    pool.settle(last)?;
    Ok(pool)
}

/// Refuses at the first of `lost`, or lists them if `salvage` is asked for.
fn lose(list: &mut Salvage, mut lost: Vec<LostPage>, salvage: bool) -> Result<()> {
    lost.sort_by_key(|page| page.at);
    if !salvage && let Some(first) = lost.first() {
        return Err(Error::corrupt(TierRole::Fast, first.what.clone(), first.place.clone()));
    }
    list.pages.append(&mut lost);
    Ok(())
}

struct Parts<F> {
    name: std::sync::Arc<str>,
    memory: Memory<F>,
    dirty: DirtyPages,
    log: Metered<F>,
    store: PageStore<F>,
    start: Replayed,
    salvage: Salvage,
    seed: u64,
    latch: FailureLatch,
    ring: Ring,
    most_dirty: u64,
}

fn assemble<D: Dir>(parts: Parts<D::File>) -> LoggedPool<D> {
    let Parts { name, memory, dirty, log, store, start, salvage, seed, latch, ring, most_dirty } = parts;
    let table_bytes = AREAS * area_len(memory.len(), ring.largest);
    let log = Log::new(log, seed, ring, latch.clone(), store.log(), start.head, start.marks);
    LoggedPool {
        image_bytes: AtomicU64::new(store.image_bytes()),
        store_bytes: AtomicU64::new(store.memory_bytes()),
        used_after: AtomicU64::new(0),
        first_lsn: start.head.lsn,
        memory,
        name,
        latch,
        log,
        dirty,
        store: Mutex::new(store),
        transient: Mutex::new(0..0),
        keep_from: AtomicU64::new(0),
        admitted: AtomicU64::new(0),
        closed_clean: AtomicBool::new(false),
        salvage,
        table_bytes,
        most_dirty,
        checkpoints: AtomicU64::new(0),
        checkpoint_pages: AtomicU64::new(0),
        stall_ns: AtomicU64::new(0),
    }
}
