//! Creating and opening a store (PrismDB §5.4).
//!
//! There is no log to replay. In this order, each step of which may be interrupted and done again:
//! 1. Header; the class of each slab; groups that were complete are installed ([`crate::commit`]).
//! 2. All slabs are scanned, in parallel: of the versions of a key on the fast tier, the newest counts.
//! 3. What range tombstones removed, and older versions, are freed.
//! 4. The slots of what counts are claimed; all others are free.
//! 5. The tables that records name are opened, in parallel: their footers are read, from the fast tier where it has them; other
//!    tables' files are removed.
//! 6. The key space is divided: partitions are rebuilt with about as many keys each.

use crate::batch::decode_range;
use crate::cache::Cache;
use crate::commit::CommitSlots;
use crate::config::Options;
use crate::core::{Core, Router, STEP_BITS, clock_start};
use crate::divide::divide;
use crate::flash::{Flash, TableFile, TableRecord};
use crate::heap::{Heap, Slots};
use crate::key::Key;
use crate::layout::{HEADER_PAGE, Layout, SEQNO_LIMIT};
use crate::levels::{FIRST, Level, Levels, MOST};
use crate::live::LiveTable;
use crate::lost::{Lost, LostSlot};
use crate::partition::{Entry, Partition, RangeTombstone};
use crate::parts::Places;
use crate::read_trigger::ReadTrigger;
use crate::record::{Kind, encode};
use crate::scan::{Doubtful, Found, Version, find_classes, newest_first, scan};
use crate::slabs::{Slabs, UNIT};
use crate::snapshots::Snapshots;
use crate::tracker::Tracker;
use crate::tune::{CopiedShare, PinnedShare, StayShare};
use crate::work::Work;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use tierdb_base::{Error, Result, Seqno, TierRole, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{Gate, Latencies, Media, in_parallel};
use tierdb_pmem::{Pool, Stage, unseal};
use tierdb_sync::CommitClock;

/// Bytes that a key with its value is taken to have in a store that has fewer of them than the next number says.
const USUAL_ENTRY: u64 = 1024;
const ENOUGH_KEYS: u64 = 1024;
/// Less than any record takes.
const LEAST_ENTRY: u64 = 64;

fn check_media<P: Pool, D: Dir>(media: &Media<P, D>) -> Result<()> {
    match (media.flash.len(), media.fast_dirs.len()) {
        (1..=16, ..=16) => Ok(()),
        (flash, fast) => Err(Error::invalid(format!(
            "{flash} flash directories and {fast} of fast devices are configured: 1 to 16, and up to 16, are supported"
        ))),
    }
}

fn flash_of<P: Pool, D: Dir>(media: &mut Media<P, D>, options: &Options) -> Arc<Flash<D>> {
    let (flash, fast) = (std::mem::take(&mut media.flash), std::mem::take(&mut media.fast_dirs));
    Arc::new(Flash::new(flash, fast, media.seed, options, media.latch.clone()))
}

fn core_of<P: Pool, D: Dir>(
    media: Media<P, D>,
    options: Options,
    heap: Heap<P>,
    flash: Arc<Flash<D>>,
    router: Router<D>,
    last: Seqno,
    lost: Lost,
) -> Core<P, D> {
    let levels = levels_of(&options, &heap, &flash, &router);
    let used = heap.slabs.used_bytes().saturating_sub(flash.parts_bytes());
    let fast_bytes = if levels > FIRST { flash.fast_bytes() } else { 0 };
    let entry = entry_bytes(used, &router);
    let keys_of = |bytes: u64| bytes / entry * u64::from(options.tracked_pct) / 100;
    let tracked = keys_of(heap.pool.len() + fast_bytes).min(options.memory / 10 / 4).max(1 << 10);
    let of_records = keys_of(heap.pool.len());
    let record_share = if fast_bytes > 0 { (of_records as f64 / tracked as f64).min(1.0) } else { 1.0 };
    Core {
        commits: CommitSlots::new(),
        router: RwLock::new(router),
        mode: media.mode,
        gate: Gate::new(media.latch),
        fast_meter: media.fast_meter,
        clock: CommitClock::new(clock_start(last)),
        snapshots: Snapshots::default(),
        tracker: Tracker::new(tracked),
        cache: Cache::new(),
        pool_life: Arc::new(()),
        read_trigger: ReadTrigger::new(),
        pinned: PinnedShare::new(options.pinned_pct),
        copied: CopiedShare::new(options.copied_pct),
        stay_share: StayShare::default(),
        record_share,
        lost,
        doubtful: AtomicBool::new(false),
        counters: Box::default(),
        latencies: Latencies::new(),
        work: Work::new(&options),
        levels,
        seqno_limit: AtomicU64::new(last),
        durable_limit: AtomicU64::new(last),
        stretches: AtomicU32::new(0),
        raising: Mutex::new(()),
        ordered: Core::<P, D>::is_ordered(&heap.pool),
        options,
        heap,
        flash,
    }
}

/// Bytes that a key takes on the fast tier with its value: what it does on average of `used` bytes, where there are enough to tell.
fn entry_bytes<D: Dir>(used: u64, router: &Router<D>) -> u64 {
    let keys: u64 = router.parts.iter().map(|part| part.read().index.len() as u64).sum();
    if keys < ENOUGH_KEYS { USUAL_ENTRY } else { (used / keys).max(LEAST_ENTRY) }
}

/// How many levels of tables there may be: as many as are asked for, or the capacities call for; and where tables are deeper
/// already, these.
fn levels_of<P: Pool, D: Dir>(
    options: &Options,
    heap: &Heap<P>,
    flash: &Flash<D>,
    router: &Router<D>,
) -> Level {
    let (fast, tables) = (heap.slabs.capacity(), flash.fast_bytes());
    let holds_all = |level: &Level| options.level_size(*level, fast, tables) >= flash.capacity();
    // Tables of the first level alone lie on a fast device.
    let least = if tables > 0 { FIRST + 1 } else { FIRST };
    let wanted = (least..=MOST).find(holds_all).unwrap_or(MOST);
    let states = router.parts.iter().map(|part| part.read());
    let deepest = states.filter_map(|state| state.tables.tables().map(|table| table.level()).max()).max();
    options.levels.map_or(wanted, u8::cast_signed).max(deepest.unwrap_or(FIRST))
}

/// Makes an empty store.
pub fn create<P: Pool, D: Dir>(mut media: Media<P, D>, options: Options) -> Result<Core<P, D>> {
    check_media(&media)?;
    let layout = Layout::new(media.pool.len(), media.flash.len(), &options)?;
    media.pool.fetch(0, HEADER_PAGE)?;
    if Layout::is_formatted(&*media.pool) {
        return Err(Error::invalid("the pool holds a store: open it instead"));
    }
    let flash = flash_of(&mut media, &options);
    flash.remove_orphans(&flash.files()?, |_| false)?;
    let slabs = Slabs::create(media.pool.clone(), media.seed, &layout);
    layout.format(&*media.pool, media.seed)?;
    let heap = Heap::new(media.pool.clone(), media.seed, slabs);
    let part = Arc::new(Partition::new(Levels::new(Vec::new()), Arc::default(), 1));
    let router = Router { bounds: Vec::new(), parts: vec![part] };
    Ok(core_of(media, options, heap, flash, router, 0, Lost::default()))
}

/// Opens a store after a close or a crash.
pub fn open<P: Pool, D: Dir>(mut media: Media<P, D>, mut options: Options) -> Result<Core<P, D>> {
    check_media(&media)?;
    let pool = media.pool.clone();
    // Who loads a word cannot be refused, so their pages are there before.
    pool.fetch(0, HEADER_PAGE)?;
    let layout = Layout::open(&*pool, media.seed)?;
    for slab in (0..layout.slabs() as u32).filter(|_| !pool.is_in_memory()) {
        pool.fetch(layout.slab_at(slab), 8)?;
    }
    options.slab_bytes = layout.slab_bytes;
    options.validate()?;
    if layout.flash as usize != media.flash.len() {
        return Err(Error::invalid(format!(
            "the store was created with {} flash directories, and {} are configured",
            layout.flash,
            media.flash.len()
        )));
    }
    let flash = flash_of(&mut media, &options);
    flash.restore_budgets(&*pool, media.seed);
    let last = unseal(&*pool, media.seed, SEQNO_LIMIT)? << STEP_BITS;
    let (slabs, unknown_slabs) = Slabs::open(pool.clone(), media.seed, &layout);
    let heap = Heap::new(pool.clone(), media.seed, slabs);
    heap.replay_groups()?;
    let classes = find_classes(&heap, &unknown_slabs)?;
    if let Some(slab) = classes.without.first() {
        let place = pool.place(heap.slabs.base_of(*slab));
        return Err(Error::corrupt(TierRole::Fast, "the class of a slab is damaged", place));
    }
    let scan = scan(&heap, options.recovery_threads)?;
    let knows_tables = unknown_slabs.is_empty() && scan.knows_tables();
    for mended in &scan.mended {
        pool.fetch(mended.at, mended.bytes.len() as u64)?;
    }
    heap.write_mended(&scan.mended);
    let newly = scan.newly_lost.into_iter().map(|(at, mark)| LostSlot { at, mark, bound: last });
    let newly: Vec<LostSlot> = newly.collect();
    let lost = Lost::new(scan.lost.into_iter().chain(newly.iter().copied()).collect());
    if let Some(at) = lost.hides(b"", None) {
        let what = "a record that names a table, or a range that was removed, is damaged";
        return Err(Error::corrupt(TierRole::Fast, what, pool.place(at)));
    }
    let mut sorted = Sorted::of(scan.records, &heap, last)?;
    let files = flash.files()?;
    if let Some(file) = files.iter().find(|file| file.number > last) {
        // What is written now would not be newer than that, and the table may be one of a later state of the fast tier.
        return Err(Error::corrupt(TierRole::Fast, LIMIT_IS_OLD, flash.place(*file)));
    }
    // Of a table without a copy on the fast tier flash is read, which waits for the device.
    let opened = in_parallel(&std::mem::take(&mut sorted.tables), options.recovery_threads, |part| {
        let open = |(record, slots, places): &(TableRecord, Slots, Places)| {
            if !files.contains(&record.file) && flash.dir(record.file.dir).is_some() {
                return Err(flash.missing(record.file));
            }
            let table = flash.open(record, slots.clone(), heap.home_of(places))?;
            if table.footer().highest_seqno > last {
                return Err(limit_is_old(&*pool, table.record_at()));
            }
            Ok(Arc::new(table))
        };
        part.iter().map(open).collect::<Result<Vec<_>>>()
    })?;
    let mut tables: Vec<Arc<LiveTable<D>>> = opened.into_iter().flatten().collect();
    for (at, record) in scan.tables {
        // Its file goes after its record.
        if files.contains(&record.file) {
            return Err(heap.damaged(at));
        }
        sorted.unneeded.push(at);
    }
    for doubtful in scan.doubtful {
        sorted.doubt(doubtful, &heap, &tables, last);
    }
    let mut stage = Stage::new(&*pool);
    classes.words.into_iter().for_each(|(at, word)| stage.word(at, word));
    sorted.unneeded.iter().for_each(|at| heap.stage_free(&mut stage, *at));
    sorted.claim(&heap)?;
    for at in scan.unknown {
        // A part of a value has a word that says *free*.
        if heap.slabs.claim(at) {
            return Err(heap.damaged(at));
        }
        heap.stage_free(&mut stage, at);
    }
    for slot in &newly {
        // Of what is written in part the rest is read, and that cannot be refused.
        pool.fetch(slot.at, UNIT)?;
        let record = encode(media.seed, slot.at, Kind::Lost, 0, &[], &slot.encode(), &[]);
        stage.write(slot.at, &record);
    }
    let _drained = stage.drain();
    for slot in lost.slots() {
        // Where two claim it, neither has it.
        let _ = heap.slabs.claim(slot.at);
    }
    heap.slabs.settle();
    tables.sort_by(|one, other| (one.level(), one.smallest()).cmp(&(other.level(), other.smallest())));
    let overlap = |pair: &&[Arc<LiveTable<D>>]| {
        pair[0].level() == pair[1].level() && pair[0].largest() >= pair[1].smallest()
    };
    if let Some(pair) = tables.windows(2).find(overlap) {
        let place = pool.place(pair[1].record_at());
        return Err(Error::corrupt(TierRole::Fast, "two tables claim the same keys", place));
    }
    if knows_tables {
        let live: HashSet<TableFile> = tables.iter().map(|table| table.file()).collect();
        flash.remove_orphans(&files, |table| live.contains(table))?;
    }
    // What a lost record may hide is not read, and stays, lest an older version that flash has pass for the newest. It is none that flash
    // has, as far as is known: whatever is written from now on is newer.
    let newest = sorted.newest.into_iter().map(|(key, entry)| match lost.hides(&key, Some(entry.seqno)) {
        None => (key, entry),
        Some(_) => (key, Entry::new(entry.at(), last, false, entry.is_long()).doubtful()),
    });
    let newest: Vec<_> = newest.collect();
    let doubtful = newest.iter().any(|(_, entry)| entry.is_doubtful());
    let mut ranges = sorted.ranges;
    ranges.sort_unstable_by_key(|range| range.seqno);
    let router = divide(newest, tables, ranges, options.partitions);
    let core = Core { doubtful: doubtful.into(), ..core_of(media, options, heap, flash, router, last, lost) };
    if core.router.read().parts.iter().any(|part| !part.read().ranges.is_empty()) {
        core.work.want_cleaning();
    }
    Ok(core)
}

/// The live records, by what they are.
struct Sorted {
    /// The newest version of each key.
    newest: BTreeMap<Key, Entry>,
    slots: Vec<Slots>,
    tables: Vec<(TableRecord, Slots, Places)>,
    ranges: Vec<Arc<RangeTombstone>>,
    /// Head slots of older versions and of what was removed.
    unneeded: Vec<u64>,
}

/// Something was written later than the limit of seqnos says: new writes would come before it.
const LIMIT_IS_OLD: &str = "the limit of seqnos is below what was written, as of an earlier moment";

/// That what is said at `at` was.
fn limit_is_old<P: Pool>(pool: &P, at: u64) -> Error {
    Error::corrupt(TierRole::Fast, LIMIT_IS_OLD, pool.place(at))
}

impl Sorted {
    fn of<P: Pool>(records: Vec<Found>, heap: &Heap<P>, limit: Seqno) -> Result<Self> {
        let mut sorted = Sorted {
            newest: BTreeMap::new(),
            slots: Vec::new(),
            tables: Vec::new(),
            ranges: Vec::new(),
            unneeded: Vec::new(),
        };
        let mut versions: Vec<(Vec<u8>, Entry, Slots)> = Vec::new();
        for (at, head) in records {
            // Of a table's it is the table's number.
            if head.kind != Kind::Table && head.seqno > limit {
                return Err(limit_is_old(&*heap.pool, at));
            }
            let slots = Slots { at, parts: head.parts.as_slice().into() };
            match head.kind {
                Kind::Value | Kind::Tombstone => {
                    let entry =
                        Entry::new(at, head.seqno, head.kind == Kind::Tombstone, !head.parts.is_empty());
                    versions.push((head.key, entry, slots));
                }
                Kind::Table => {
                    let (_, value) = heap.read(at)?;
                    let (record, places) = TableRecord::decode(&value).ok_or_else(|| heap.damaged(at))?;
                    let parts = slots.parts.iter().chain(places.slots()).copied().collect();
                    let slots = Slots { at, parts };
                    sorted.slots.push(slots.clone());
                    sorted.tables.push((record, slots, places));
                }
                Kind::RangeTombstone => {
                    let (head, value) = heap.read(at)?;
                    let range = decode_range(&value).ok_or_else(|| heap.damaged(at))?;
                    sorted.slots.push(slots.clone());
                    sorted.ranges.push(Arc::new(RangeTombstone { seqno: head.seqno, range, slots }));
                }
                Kind::Redo | Kind::Lost => return Err(heap.damaged(at)),
            }
        }
        // A few sorted runs, which are merged.
        versions.sort_by(|(key, entry, _), (other_key, other, _)| {
            newest_first((key, entry.seqno, entry.at()), (other_key, other.seqno, other.at()))
        });
        let mut newest: Vec<(Key, Entry)> = Vec::with_capacity(versions.len());
        for (key, entry, slots) in versions {
            let removed = sorted.ranges.iter().any(|range| range.removes(&key, entry.seqno, Seqno::MAX))
                && mutant::keep("tombstone");
            if removed || newest.last().is_some_and(|(newer, _)| newer[..] == key[..]) {
                sorted.unneeded.push(entry.at());
            } else {
                newest.push((key.into(), entry));
                sorted.slots.push(slots);
            }
        }
        sorted.newest = newest.into_iter().collect();
        Ok(sorted)
    }

    /// Takes a doubtful version for the newest of its key, unless there is one as new, or it was removed. Its damage must cost neither
    /// what was written after it, nor bring back what was written before.
    fn doubt<P: Pool, D: Dir>(
        &mut self,
        doubtful: Doubtful,
        heap: &Heap<P>,
        tables: &[Arc<LiveTable<D>>],
        last: Seqno,
    ) {
        let Doubtful { key, at, version } = doubtful;
        let version_in = |table: &Arc<LiveTable<D>>| {
            let whole = table.table(Cause::Recovery).ok()?;
            whole.get(&key, Seqno::MAX, Cause::Recovery).ok()?.map(|found| found.seqno)
        };
        let on_flash: Vec<Seqno> =
            tables.iter().filter(|table| table.footer().covers(&key)).filter_map(version_in).collect();
        let other = self.newest.get(&*key).map(|entry| entry.seqno);
        let ranges: Vec<Seqno> =
            self.ranges.iter().filter(|range| range.range.contains(&key)).map(|range| range.seqno).collect();
        let version = match version {
            // Its seqno is looked for only where something depends on it, and counts more than what its word has of that.
            Version::Live(mark)
                if other.is_some()
                    || !ranges.is_empty()
                    || on_flash.iter().any(|seqno| version.is_no_newer_than(*seqno)) =>
            {
                heap.seqno_of(at, mark, last).map_or(version, Version::Exact)
            }
            Version::Live(_) | Version::Exact(_) => version,
        };
        let as_new = on_flash.into_iter().chain(other).any(|seqno| version.is_no_newer_than(seqno));
        let removed = ranges.into_iter().any(|range| matches!(version, Version::Exact(own) if own < range));
        if as_new || removed {
            self.unneeded.push(at);
            return;
        }
        // Whatever is written from now on is newer.
        let entry = Entry::new(at, last, false, false).doubtful();
        if let Some(older) = self.newest.insert(key.into(), entry) {
            // It must not come back when the doubtful one goes.
            self.unneeded.push(older.at());
            self.slots.retain(|slots| slots.at != older.at());
        }
        self.slots.push(Slots { at, parts: Box::default() });
    }

    fn claim<P: Pool>(&self, heap: &Heap<P>) -> Result<()> {
        for slots in &self.slots {
            for at in std::iter::once(&slots.at).chain(&slots.parts) {
                if !heap.slabs.claim(*at) {
                    let what = "two records claim the same slot, or one that is not there";
                    return Err(Error::corrupt(TierRole::Fast, what, heap.pool.place(*at)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Options;
    use crate::engine::SlabStore;
    use crate::rig::{self, Store};
    use crate::salvage::{Salvaged, salvage};
    use crate::slabs::Mark;
    use tierdb_base::ErrorKind;
    use tierdb_device::Dir;
    use tierdb_engine::{Durability, Engine};
    use tierdb_sim::{SimDir, SimPool, World};

    const POOL: u64 = 132 << 10;

    fn opened(world: &World) -> SlabStore<SimPool, SimDir> {
        SlabStore::open(rig::media(world, 1 << 20), rig::options(POOL)).expect("it opens")
    }

    fn salvaged(world: &World) -> Vec<Salvaged> {
        let mut all = Vec::new();
        let taken = salvage(rig::media(world, 1 << 20), &mut |of| {
            all.push(of);
            Ok(())
        });
        taken.expect("no faults");
        all
    }

    #[test]
    fn the_same_bits_of_another_seqno_do_not_make_a_damaged_record_an_older_one() {
        for is_flushed in [true, false] {
            let store = Store::new(POOL, rig::options(POOL));
            store.put(b"key", 10);
            let entry_of = || store.part().read().index.get(b"key").expect("on the fast tier");
            let older = entry_of();
            if is_flushed {
                store.engine.flush().expect("room");
            }
            let core = store.core();
            while core.clock.last() + 1 < older.seqno + (1 << 20) {
                core.reserve_seqnos();
                drop(core.clock.begin());
            }
            store.put(b"key", 20);
            let newer = entry_of();
            assert_eq!(newer.seqno, older.seqno + (1 << 20));
            [0, 1].iter().for_each(|byte| store.world.flip_bit("pool", newer.at() + byte, 3));
            let Store { world, engine } = store;
            drop(engine);
            let engine = opened(&world);
            let refused = engine.get(b"key").expect_err("not what was written before it");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        }
    }

    /// After a crash that left two live versions of a key, nothing can be read of the head of the older one, of which flash has a copy.
    #[test]
    fn a_lost_older_version_does_not_bring_back_the_one_on_flash() {
        let store = Store::new(POOL, rig::options(POOL));
        store.put(b"key", 10);
        let older = store.part().read().index.get(b"key").expect("on the fast tier");
        store.engine.flush().expect("room");
        store.put(b"key", 20);
        let newer = store.part().read().index.get(b"key").expect("on the fast tier");
        let slabs = &store.core().heap.slabs;
        let beside = newer.at() + slabs.slot_bytes(newer.at()).expect("a slot");
        let word_at = slabs.word_at(beside).expect("a slot");
        let live = slabs.live_word(word_at, Mark::new(b"key", older.seqno));
        let Store { world, engine } = store;
        drop(engine);
        world.overwrite("pool", word_at, &live.to_le_bytes());
        for round in 0..2 {
            let engine = opened(&world);
            let refused = engine.get(b"key").expect_err("what was written before it");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "round {round}: {refused}");
            engine.flush().expect("room");
            let refused = engine.get(b"key").expect_err("what was written before it");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "round {round}: {refused}");
        }
        let engine = opened(&world);
        engine.put(b"key", b"newest", Durability::Durable).expect("room");
        assert_eq!(engine.get(b"key").expect("it is newer").as_deref(), Some(&b"newest"[..]));
    }

    /// Nothing can be read of the head of the newer of two live versions. Flash has a copy of the older one.
    #[test]
    fn a_lost_newer_version_does_not_bring_back_the_one_on_flash() {
        let store = Store::new(POOL, rig::options(POOL));
        store.put(b"key", 10);
        let older = store.part().read().index.get(b"key").expect("on the fast tier");
        let slabs = &store.core().heap.slabs;
        let word_at = slabs.word_at(older.at()).expect("a slot");
        let live = store.world.peek("pool", word_at, 8);
        let beside = older.at() + 4 * slabs.slot_bytes(older.at()).expect("a slot");
        let lost_at = slabs.word_at(beside).expect("a slot");
        let lost = slabs.live_word(lost_at, Mark::new(b"key", older.seqno + 1));
        store.engine.flush().expect("room");
        let Store { world, engine } = store;
        drop(engine);
        world.overwrite("pool", word_at, &live);
        world.overwrite("pool", lost_at, &lost.to_le_bytes());
        let salvaged = salvaged(&world.copy());
        assert!(salvaged.iter().all(|of| of.key == b"key" && !of.sure), "{salvaged:?}");
        let engine = opened(&world);
        for round in 0..3 {
            let refused = engine.get(b"key").expect_err("there was a newer one");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "round {round}: {refused}");
            engine.put(&[round], &[1; 400], Durability::Durable).expect("room");
            engine.compact().expect("room");
        }
    }

    /// A fast tier of an earlier moment beside the flash of now: nothing of that is removed, as it would be after a crash.
    #[test]
    fn tables_beyond_the_limit_of_seqnos_are_kept() {
        let store = Store::new(POOL, rig::options(POOL));
        store.put(b"early", 10);
        let earlier = store.world.peek("pool", 0, POOL as usize);
        let core = store.core();
        let limit = core.seqno_limit.load(std::sync::atomic::Ordering::Relaxed);
        while core.clock.last() <= limit {
            core.reserve_seqnos();
            drop(core.clock.begin());
        }
        store.put(b"key", 10);
        store.engine.flush().expect("room");
        let Store { world, engine } = store;
        drop(engine);
        let tables = |world: &World| world.dir("flash0").list().expect("no faults").len();
        let before = tables(&world);
        world.overwrite("pool", 0, &earlier);
        let refused = SlabStore::open(rig::media(&world, 1 << 20), rig::options(POOL))
            .err()
            .expect("of an earlier moment");
        assert!(refused.to_string().contains("as of an earlier moment"), "{refused}");
        assert_eq!((tables(&world), before), (before, 1));
        let salvaged = salvaged(&world);
        let found: Vec<_> = salvaged.iter().map(|of| (&of.key[..], of.sure)).collect();
        assert_eq!(found, [(&b"early"[..], false), (b"early", false), (b"key", false)]);
    }

    /// The class word of a slab that holds nothing but a part of a value.
    #[test]
    fn the_class_of_a_slab_is_told_by_parts() {
        let store = Store::new(POOL, rig::options(POOL));
        let long: Vec<u8> = (0..30_000u32).map(|number| number as u8).collect();
        store.engine.put(b"key", &long, Durability::Durable).expect("room");
        let entry = store.part().read().index.get(b"key").expect("on the fast tier");
        let heap = &store.core().heap;
        let slab_of = |at: u64| {
            (0..heap.slabs.count()).rev().map(|slab| heap.slabs.base_of(slab)).find(|base| *base <= at)
        };
        let mut slabs: Vec<u64> =
            heap.head(entry.at()).expect("whole").parts.into_iter().filter_map(slab_of).collect();
        slabs.retain(|base| Some(*base) != slab_of(entry.at()));
        slabs.dedup();
        assert!(slabs.len() > 3, "{} slabs", slabs.len());
        let Store { world, engine } = store;
        drop(engine);
        slabs.iter().for_each(|base| world.flip_bit("pool", *base, 3));
        let salvaged: Vec<_> = salvaged(&world.copy()).into_iter().map(|of| (of.value, of.sure)).collect();
        assert_eq!(salvaged, [(Some(long.clone()), true)]);
        for _ in 0..2 {
            let engine = opened(&world);
            assert_eq!(engine.get(b"key").expect("whole").as_deref(), Some(&long[..]));
            engine.put(b"other", &long, Durability::Durable).expect("room");
            assert_eq!(engine.get(b"key").expect("whole").as_deref(), Some(&long[..]));
        }
    }

    #[test]
    fn a_doubtful_record_costs_the_indexes_of_the_tables_that_its_key_may_be_in() {
        let options = Options { open_tables: 16, table_bytes: 16 << 10, ..rig::options(POOL) };
        let world = rig::world(POOL);
        let engine = SlabStore::create(rig::media(&world, 4 << 20), options.clone()).expect("an empty store");
        let store = Store { world, engine };
        for number in 0..250u8 {
            store.put(&[b'k', number], 2000);
            if number % 25 == 24 {
                store.engine.flush().expect("room");
            }
        }
        let tables = store.part().read().tables.tables().count();
        assert!(tables >= 30, "{tables} tables");
        let key = [b'k', 100];
        store.put(&key, 20);
        let at = store.part().read().index.get(&key[..]).expect("on the fast tier").at();
        [0, 1].iter().for_each(|byte| store.world.flip_bit("pool", at + byte, 3));
        let Store { world, engine } = store;
        drop(engine);
        let engine = SlabStore::open(rig::media(&world, 4 << 20), options).expect("it opens");
        assert!(engine.core().flash.loads.get() <= 1, "{} indexes", engine.core().flash.loads.get());
        engine.get(&key).expect_err("not what flash has");
    }
}
