//! Engines opened on tiers directly, with knobs that no configuration sets: the papers' experiments turn them.
//!
//! Sizes are shared out as the configuration would. There is no identity and no lock on the tiers, so this is for
//! stores that nobody else knows of and that go when the case ends.

use crate::knobs::{Metric, Pinned};
use crate::ours::Mode;
use crate::store::Setup;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tierdb::{EngineKind, Error, Result, logged_layout};
use tierdb_base::FailureLatch;
use tierdb_device::{Emulation, Meter, ReadBatching, RealDir, RealOptions, Striped};
use tierdb_engine::{Engine, Media, TierDir};
use tierdb_log::LoggedPool;
use tierdb_media::{Directory, Options, StoreDir, StoreMedia};
use tierdb_pmem::{MappedPool, Pool};

const PAGE: u64 = 4096;
/// What a drain takes on byte-addressable Optane, in nanoseconds.
const OPTANE_DRAIN_NS: u64 = 300;
/// What seeds the checksums of these stores.
const SEED: u64 = 0x7e57;

/// Opens or creates the store of `setup`.
///
/// # Errors
/// As the engine's own.
pub(crate) fn open(kind: EngineKind, mode: Mode, setup: &Setup) -> Result<Box<dyn Engine>> {
    let (latch, meter) = (FailureLatch::new(), Meter::new());
    if mode == Mode::Byte {
        let path = setup.fast_dir.join("pool");
        let fresh = !path.exists();
        let pool = MappedPool::open(&path, setup.fast_bytes / PAGE * PAGE, true)?;
        let drain = if setup.emulate_fast.is_some() { OPTANE_DRAIN_NS } else { 0 };
        return start(kind, mode, setup, pool.with_drain_latency(drain), fresh, latch, meter);
    }
    let at = if mode == Mode::Block { &setup.fast_dir } else { &setup.flash_dir };
    let emulated = if mode == Mode::Block { &setup.emulate_fast } else { &setup.emulate_flash };
    let dir = Striped::new(vec![StoreDir::Plain(RealDir::open(at)?)])?;
    let fresh = !at.join("pool.log").exists();
    let options = logged_layout(kind, setup.memory, (mode == Mode::Block).then_some(setup.fast_bytes));
    let emulation = device(emulated.as_deref())?;
    let pool = if fresh {
        LoggedPool::create(dir, options, SEED, latch.clone(), meter.clone(), emulation)?
    } else {
        LoggedPool::open(dir, options, SEED, latch.clone(), meter.clone(), emulation)?
    };
    start(kind, mode, setup, pool, fresh, latch, meter)
}

fn device(name: Option<&str>) -> Result<Option<Emulation>> {
    let Some(name) = name else { return Ok(None) };
    match Emulation::named(name) {
        Some(emulation) => Ok(Some(emulation)),
        None => Err(Error::invalid(format!("{name:?} does not name a block device that can be imitated"))),
    }
}

fn start<P: Pool>(
    kind: EngineKind,
    mode: Mode,
    setup: &Setup,
    pool: P,
    fresh: bool,
    latch: FailureLatch,
    fast_meter: Meter,
) -> Result<Box<dyn Engine>>
where
    StoreMedia: From<Media<P, Directory>>,
{
    let (mut flash, mut medium) = (Vec::new(), String::new());
    for path in setup.knobs.flash_dirs(&setup.flash_dir) {
        let dir = RealDir::create_with(&path, &read_options(setup))?;
        if flash.is_empty() {
            medium = dir.medium();
        }
        flash.push(TierDir {
            dir: StoreDir::Plain(dir),
            capacity: setup.knobs.flash_bytes.map_or_else(|| file_system_bytes(&path), Ok)?,
            meter: if mode == Mode::Ssd { fast_meter.clone() } else { Meter::new() },
            emulation: device(setup.emulate_flash.as_deref())?,
        });
    }
    let mut words = format!("{} fast tier, {} flash tiers, {medium}", pool.domain(), flash.len());
    for (role, name) in [("fast", &setup.emulate_fast), ("flash", &setup.emulate_flash)] {
        words.push_str(
            &name.as_ref().map_or(String::new(), |name| format!(", EMULATED: {role} at the pace of {name}")),
        );
    }
    let pool_len = pool.len();
    let mut fast_dirs = Vec::new();
    if mode == Mode::Block {
        let logged = logged_layout(kind, setup.memory, Some(setup.fast_bytes)).most_bytes();
        fast_dirs.push(TierDir {
            dir: StoreDir::Plain(RealDir::open(&setup.fast_dir)?),
            capacity: setup.fast_bytes.saturating_sub(logged),
            meter: Meter::new(),
            emulation: device(setup.emulate_fast.as_deref())?,
        });
    }
    let pool = Arc::new(pool);
    let media =
        StoreMedia::from(Media { pool, fast_meter, fast_dirs, flash, seed: SEED, latch, mode: words });
    let options = match kind {
        EngineKind::Slab => Options::Slab(slab_options(setup, pool_len)),
        _ => {
            let options = tierdb_valuelog::Options::for_pool(setup.memory, pool_len);
            let mut options = match setup.knobs.write_buffer {
                Some(buffer) => options.with_write_buffer(buffer),
                None => match mode {
                    Mode::Byte => options.beside_second_level(pool_len),
                    Mode::Block => options,
                    Mode::Ssd => options.beside_values(logged_layout(kind, setup.memory, None).log_len),
                },
            };
            if let Some(pct) = setup.knobs.garbage_pct {
                options.gc_garbage_pct = pct;
            }
            Options::Valuelog(options)
        }
    };
    if fresh { media.create(options) } else { media.open(options) }
}

pub(crate) fn slab_options(setup: &Setup, pool_len: u64) -> tierdb_slab::Options {
    let knobs = &setup.knobs;
    let mut options = tierdb_slab::Options::for_pool(setup.memory, pool_len);
    options.choices = knobs.choices.unwrap_or(options.choices);
    options.tracked_pct = knobs.tracked_pct.unwrap_or(options.tracked_pct);
    options.partitions = knobs.partitions.unwrap_or(options.partitions);
    options.copied_pct = knobs.copied_pct.or(options.copied_pct);
    options.levels = knobs.levels.or(options.levels);
    options.unmerged_pct = knobs.unmerged_pct.unwrap_or(options.unmerged_pct);
    options.table_bytes = knobs.table_bytes.unwrap_or(options.table_bytes);
    if knobs.promotes_by_migration {
        options.promotion = tierdb_slab::Promotion::ByMigration;
    }
    match knobs.metric {
        None => {}
        Some(Metric::SampledM) => options.metric = tierdb_slab::Metric::SampledM,
        Some(Metric::ApproxM) => options.metric = tierdb_slab::Metric::ApproxM,
        Some(Metric::PreciseM) => options.metric = tierdb_slab::Metric::PreciseM,
        Some(Metric::MaxUnpop) => options.metric = tierdb_slab::Metric::MaxUnpopular,
    }
    match knobs.pinned {
        None => {}
        Some(Pinned::Percent(pct)) => options.pinned_pct = Some(pct),
        Some(Pinned::Sought) => options.pinned_pct = None,
    }
    options
}

fn read_options(setup: &Setup) -> RealOptions {
    let Some(batching) = setup.knobs.batching else { return RealOptions::default() };
    RealOptions {
        batching: match batching.window_us {
            None => ReadBatching::Combining,
            Some(us) => ReadBatching::Timeout(Duration::from_micros(us)),
        },
        // One queue, as in the paper.
        rings: 1,
        batch: batching.depth,
        ..RealOptions::default()
    }
}

/// The size of the file system that `path` is on.
fn file_system_bytes(path: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(path)
        .map_err(|error| Error::io("stat", path.display().to_string(), 0, error.into()))?;
    Ok(found.f_blocks.saturating_mul(found.f_frsize))
}
