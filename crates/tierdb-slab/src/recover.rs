//! Creating and opening a store (PrismDB §5.4).
//!
//! There is no log to replay. In this order, each step of which may be interrupted and done again:
//! 1. Header; the class of each slab; groups that were complete are installed ([`crate::commit`]).
//! 2. All slabs are scanned, in parallel: of the versions of a key on the fast tier, the newest counts.
//! 3. What range tombstones removed, and older versions, are freed.
//! 4. The slots of what counts are claimed; all others are free.
//! 5. The tables that records name are opened; other tables' files are removed.
//! 6. The key space is divided: partitions are rebuilt with about as many keys each.

use crate::batch::decode_range;
use crate::cache::Cache;
use crate::commit::CommitSlots;
use crate::config::Options;
use crate::core::{Core, Router, STEP_BITS};
use crate::counters::Counters;
use crate::divide::divide;
use crate::flash::{Flash, TableRecord, TableSet};
use crate::heap::{Heap, Slots};
use crate::layout::{Layout, SEQNO_LIMIT};
use crate::lost::Lost;
use crate::partition::{Entry, Partition, RangeTombstone};
use crate::read_trigger::ReadTrigger;
use crate::record::{Head, Kind};
use crate::slabs::{Commit, Mark, Slabs};
use crate::snapshots::Snapshots;
use crate::tracker::Tracker;
use crate::tune::{PinnedShare, WearBudget};
use crate::work::Work;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tierdb_base::{Error, Result, Seqno, TierRole};
use tierdb_device::Dir;
use tierdb_engine::{Latencies, Media};
use tierdb_pmem::{Pool, Stage, unseal};
use tierdb_sync::CommitClock;

/// A live record that was found, in its slot.
type Found = (u64, Head);

/// What the scan of slabs found.
#[derive(Default)]
struct Scan {
    records: Vec<Found>,
    /// Slots with a record that cannot be read, or may be live.
    lost: Vec<(u64, Mark)>,
    /// Slots of which nothing is known.
    unknown: Vec<u64>,
}

fn check_media<P: Pool, D: Dir>(media: &Media<P, D>) -> Result<()> {
    match media.flash.len() {
        1..=16 => Ok(()),
        other => {
            Err(Error::invalid(format!("{other} flash directories are configured: 1 to 16 are supported")))
        }
    }
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
    // About as many keys as half of the fast tier holds of 1 KiB, within a tenth of the memory at 4 bytes a key: most
    // of what is tracked is pinned, and what is pinned must fit.
    let tracked = (heap.pool.len() / 2048).min(options.memory / 10 / 4).max(1 << 10);
    Core {
        commits: CommitSlots::new(),
        router: RwLock::new(router),
        mode: media.mode,
        latch: media.latch,
        fast_meter: media.fast_meter,
        clock: CommitClock::new(last),
        snapshots: Snapshots::default(),
        tracker: Tracker::new(tracked),
        cache: Cache::new(),
        read_trigger: ReadTrigger::new(),
        pinned: PinnedShare::new(options.pinned_pct),
        budget: WearBudget::new(options.flash_bytes_per_day),
        lost,
        counters: Counters::default(),
        latencies: Latencies::new(),
        work: Work::new(options.background),
        closed: AtomicBool::new(false),
        seqno_limit: AtomicU64::new(last),
        raising: Mutex::new(()),
        ordered: Core::<P, D>::is_ordered(&heap.pool),
        options,
        heap,
        flash,
    }
}

/// Makes an empty store.
pub fn create<P: Pool, D: Dir>(mut media: Media<P, D>, options: Options) -> Result<Core<P, D>> {
    check_media(&media)?;
    let layout = Layout::new(media.pool.len(), media.flash.len(), &options)?;
    if Layout::is_formatted(&*media.pool) {
        return Err(Error::invalid("the pool holds a store: open it instead"));
    }
    let flash = Arc::new(Flash::new(std::mem::take(&mut media.flash), media.seed, options.table_bytes));
    flash.remove_orphans(|_| false)?;
    let slabs = Slabs::format(media.pool.clone(), media.seed, &layout);
    layout.format(&*media.pool, media.seed)?;
    let heap = Heap { pool: media.pool.clone(), seed: media.seed, slabs };
    let part = Arc::new(Partition::new(TableSet::new(Vec::new()), Vec::new()));
    let router = Router { bounds: Vec::new(), parts: vec![part] };
    Ok(core_of(media, options, heap, flash, router, 0, Lost::default()))
}

/// Opens a store after a close or a crash.
pub fn open<P: Pool, D: Dir>(mut media: Media<P, D>, mut options: Options) -> Result<Core<P, D>> {
    check_media(&media)?;
    let pool = media.pool.clone();
    let layout = Layout::open(&*pool, media.seed)?;
    options.slab_bytes = layout.slab_bytes;
    options.validate()?;
    if layout.flash as usize != media.flash.len() {
        return Err(Error::invalid(format!(
            "the store was created with {} flash directories, and {} are configured",
            layout.flash,
            media.flash.len()
        )));
    }
    let flash = Arc::new(Flash::new(std::mem::take(&mut media.flash), media.seed, options.table_bytes));
    let last = unseal(&*pool, media.seed, SEQNO_LIMIT)? << STEP_BITS;
    let (slabs, unknown_slabs) = Slabs::open(pool.clone(), media.seed, &layout);
    let heap = Heap { pool: pool.clone(), seed: media.seed, slabs };
    heap.replay_groups()?;
    let scan = scan(&heap, options.recovery_threads);
    let whole = unknown_slabs.is_empty() && scan.unknown.is_empty() && scan.lost.is_empty();
    let lost = Lost::new(scan.lost);
    if let Some(at) = lost.hides(b"", None) {
        let what = "a record that names a table, or a range that was removed, is damaged";
        return Err(Error::corrupt(TierRole::Fast, what, pool.place(at)));
    }
    let sorted = Sorted::of(scan.records, &heap)?;
    let mut stage = Stage::new(&*pool);
    sorted.unneeded.iter().for_each(|at| heap.stage_free(&mut stage, *at));
    let _drained = stage.drain();
    sorted.claim(&heap)?;
    lost.places().into_iter().chain(scan.unknown).for_each(|at| {
        heap.slabs.claim(at);
    });
    heap.slabs.settle();
    let mut tables = Vec::new();
    for (record, slots) in sorted.tables {
        tables.push(Arc::new(flash.open(&record, slots)?));
    }
    if whole {
        let live: HashSet<TableRecord> = tables.iter().map(|table| table.record()).collect();
        flash.remove_orphans(|table| live.contains(&table))?;
    }
    tables.sort_by(|one, other| one.smallest().cmp(other.smallest()));
    if let Some(pair) = tables.windows(2).find(|pair| pair[0].largest() >= pair[1].smallest()) {
        let place = pool.place(pair[1].slots.at);
        return Err(Error::corrupt(TierRole::Fast, "two tables claim the same keys", place));
    }
    let newest: Vec<_> = sorted
        .newest
        .into_iter()
        .filter(|(key, entry)| lost.hides(key, Some(entry.seqno)).is_none())
        .collect();
    let router = divide(newest, tables, sorted.ranges, options.partitions);
    let core = core_of(media, options, heap, flash, router, last, lost);
    core.heap.pool.wait(core.heap.pool.lsn())?;
    if core.router.read().parts.iter().any(|part| !part.read().ranges.is_empty()) {
        core.work.want_cleaning();
    }
    Ok(core)
}

/// Reads all live records' heads.
fn scan<P: Pool>(heap: &Heap<P>, threads: usize) -> Scan {
    let next = AtomicU32::new(0);
    let all = Mutex::new(Scan::default());
    let work = || {
        let mut found = Scan::default();
        loop {
            let slab = next.fetch_add(1, Ordering::Relaxed);
            if slab >= heap.slabs.count() {
                break;
            }
            for (at, commit) in heap.slabs.words(slab) {
                match (commit, heap.head(at)) {
                    (Commit::Live(mark), Ok(head)) if mark == Mark::new(&head.key, head.seqno) => {
                        found.records.push((at, head));
                    }
                    (Commit::Live(mark), _) => found.lost.push((at, mark)),
                    // The record says whose it is; whether it was live, nobody.
                    (_, Ok(head)) if matches!(head.kind, Kind::Value | Kind::Tombstone) => {
                        found.lost.push((at, Mark::new(&head.key, head.seqno)));
                    }
                    _ => found.unknown.push(at),
                }
            }
        }
        let mut all = all.lock();
        all.records.append(&mut found.records);
        all.lost.append(&mut found.lost);
        all.unknown.append(&mut found.unknown);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    all.into_inner()
}

/// The live records, by what they are.
struct Sorted {
    /// The newest version of each key.
    newest: BTreeMap<Box<[u8]>, Entry>,
    slots: Vec<Slots>,
    tables: Vec<(TableRecord, Slots)>,
    ranges: Vec<Arc<RangeTombstone>>,
    /// Head slots of older versions and of what was removed.
    unneeded: Vec<u64>,
}

impl Sorted {
    fn of<P: Pool>(records: Vec<Found>, heap: &Heap<P>) -> Result<Self> {
        let mut sorted = Sorted {
            newest: BTreeMap::new(),
            slots: Vec::new(),
            tables: Vec::new(),
            ranges: Vec::new(),
            unneeded: Vec::new(),
        };
        let mut versions: Vec<(Vec<u8>, Entry, Slots)> = Vec::new();
        for (at, head) in records {
            let slots = Slots { at, parts: head.parts.as_slice().into() };
            match head.kind {
                Kind::Value | Kind::Tombstone => {
                    let entry =
                        Entry::new(at, head.seqno, head.kind == Kind::Tombstone, !head.parts.is_empty());
                    versions.push((head.key, entry, slots));
                }
                Kind::Table => {
                    let (_, value) = heap.read(at)?;
                    let record = TableRecord::decode(&value).ok_or_else(|| heap.damaged(at))?;
                    sorted.slots.push(slots.clone());
                    sorted.tables.push((record, slots));
                }
                Kind::RangeTombstone => {
                    let (head, value) = heap.read(at)?;
                    let range = decode_range(&value).ok_or_else(|| heap.damaged(at))?;
                    sorted.slots.push(slots.clone());
                    sorted.ranges.push(Arc::new(RangeTombstone { seqno: head.seqno, range, slots }));
                }
                Kind::Redo => return Err(heap.damaged(at)),
            }
        }
        // The newest first; of two copies of one version either will do, so long as it is always the same.
        versions.sort_by(|one, other| {
            one.0.cmp(&other.0).then(other.1.seqno.cmp(&one.1.seqno)).then(one.1.at().cmp(&other.1.at()))
        });
        for (key, entry, slots) in versions {
            let removed = sorted.ranges.iter().any(|range| range.removes(&key, entry.seqno, Seqno::MAX));
            if removed || sorted.newest.contains_key(&*key) {
                sorted.unneeded.push(entry.at());
            } else {
                sorted.newest.insert(key.into(), entry);
                sorted.slots.push(slots);
            }
        }
        Ok(sorted)
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
