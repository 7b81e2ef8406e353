//! How large the parts of a new store are, and which hardware mode it has.
//!
//! A mapped pool is the fast tiers, one after another. A logged pool lives in DRAM and needs two files on block
//! devices, over which they are striped: the log ring, and the image with room for a second copy of what a checkpoint
//! writes, so that it never overwrites the last. A paged pool is nearly as long as its devices, and DRAM has a part of it.

use crate::config::{
    Config, EngineKind, FastKind, FastTier, MIN_TIER, Records, Slab, Valuelog, drain_latency_ns, exact,
    unknown_device,
};
use crate::identity::{Mode, Shape};
use crate::tiers::PROBE_NAME;
use std::path::Path;
use tierdb_base::{ByteSize, Error, Result};
use tierdb_device::Emulation;
use tierdb_log::{LARGEST_POOL, LoggedOptions};
use tierdb_pmem::MappedPool;

const PAGE: u64 = 4096;
/// The least pool: what any tier of the least size, and the least memory, give.
const LEAST_POOL: u64 = 4 << 20;
/// The longest log: at 1 GB/s it is replayed in a quarter of a second, and written with zeros at creation
/// in as much.
const LOG_MAX: u64 = 256 << 20;
/// The shortest: 32 blocks of 128 KiB, the least that a ring must hold.
const LOG_MIN: u64 = 4 << 20;
/// The ring takes at most this share of the capacity and, beyond [`LOG_WANTED`], of memory, so that small stores stay small.
const LOG_SHARE: u64 = 8;
/// With a shorter ring the same pages are written again and again by checkpoints: of 300,000 keys that are loaded, each put synced, they
/// took 1.9 bytes for each byte with a ring of 16 MiB, and 0.4 to 0.7 with one of 64 MiB.
const LOG_WANTED: u64 = 64 << 20;
/// A logged pool takes at most this share of memory. The other half is cache, and what the engine needs.
const POOL_MEMORY_SHARE: u64 = 2;
/// Of a fast block tier that has tables beside it, at most this share: its image takes more than that, and holds nothing that DRAM does not.
const POOL_FAST_SHARE: u64 = 6;
/// Of a paged pool, so much of memory may be pages that a checkpoint is to write, and these take at least so much.
pub(crate) const DIRTY_MEMORY_SHARE: u64 = 8;
const LEAST_DIRTY: u64 = 1 << 20;
/// What else DRAM has of a paged pool at the least, as a share of it: the words of its slabs, and what is known of each page.
const RESIDENT_SHARE: u64 = 24;
/// What the image of a paged pool has beyond it, as a share of it: a checkpoint of more than that is made in rounds.
const PAGED_SPARE_SHARE: u64 = 12;
/// A logged pool on one SSD takes at most this share of the capacity: its image is twice as large, and the
/// values are to get most of it.
const POOL_CAPACITY_SHARE: u64 = 8;
/// For a copy of a store whose index needs more it takes this share, so that at least half is left to the values.
const COPY_CAPACITY_SHARE: u64 = 4;
/// The least that is left for values on one SSD: some chunks, or tables.
const LEAST_VALUES: u64 = 2 << 20;
/// A group commit carries at most this much; two buffers of it, and a block, are in DRAM.
const LOG_BUFFER_MAX: u64 = 1 << 20;
/// A ring holds at least so many of the largest blocks.
const LOG_BLOCKS: u64 = 32;
/// What `TIER`, the lock file and rounding, to stripes too, take of a tier.
const RESERVE: u64 = 1 << 20;
/// Of several mapped tiers each gives a multiple of this, so that all begin where the largest pages may.
const MAPPED_UNIT: u64 = 2 << 20;

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE * PAGE
}

/// Decides what is fixed for a new store whose fast tiers have room for `room` bytes each, or whose first flash tier
/// has where there is no other, with `memory` bytes of DRAM. A logged pool has at least `least_pool` bytes, as far as
/// the fast tiers have room; where no memory is configured, as far as a quarter of the only tier.
///
/// # Errors
/// `Invalid` if some of the fast tiers are byte-addressable and others are not, or one of several has less room
/// than it is to give; `NoSpace` if they have hardly any.
pub(crate) fn decide(config: &Config, room: &[u64], memory: u64, least_pool: u64) -> Result<Shape> {
    agree_with(config.engine, config)?;
    let mode = match mode_of_all(config)? {
        Mode::Block if config.engine == EngineKind::Slab && config.slab.records == Some(Records::Device) => {
            Mode::Paged
        }
        mode => mode,
    };
    let smallest = room.iter().copied().min().unwrap_or(0);
    let (pool_len, log_len) = match mode {
        Mode::Byte | Mode::Emulated if config.fast.len() > 1 => {
            // What each gives is known again from its capacity, so it cannot be cut to what is free now.
            if let Some((tier, has)) =
                config.fast.iter().zip(room).find(|(tier, has)| tier.capacity.bytes() > **has)
            {
                return Err(Error::invalid(format!(
                    "fast.capacity of {}: {}, but only {} is free there",
                    tier.path.display(),
                    tier.capacity,
                    ByteSize(*has)
                )));
            }
            (config.fast.iter().map(|tier| share(tier.capacity.bytes())).sum(), 0)
        }
        Mode::Byte | Mode::Emulated => (whole_pages(smallest.saturating_sub(RESERVE)), 0),
        Mode::Block => {
            let tiers = room.len() as u64;
            on_block_tiers(config.engine, smallest.saturating_mul(tiers), RESERVE * tiers, memory, least_pool)
        }
        Mode::Paged => {
            let tiers = room.len() as u64;
            paged_on(smallest.saturating_mul(tiers).saturating_sub(RESERVE * tiers), memory)
        }
        Mode::OneDirectory if config.memory.is_none() => {
            beside_values(smallest, memory, least_pool.min(smallest / COPY_CAPACITY_SHARE))
        }
        Mode::OneDirectory => beside_values(smallest, memory, least_pool),
    };
    if pool_len < LEAST_POOL {
        return Err(too_little_room(config, room, MIN_TIER));
    }
    let shape = Shape { engine: config.engine, mode, pool_len, log_len };
    // Of a copy, whose index may take more than its share.
    let with_values = ByteSize(logged_bytes(&shape).saturating_add(LEAST_VALUES));
    if mode == Mode::OneDirectory && with_values.bytes() > smallest {
        return Err(too_little_room(config, room, with_values.max(MIN_TIER)));
    }
    Ok(shape)
}

/// The refusal to create a store whose first tiers have only `room` bytes, and need `least_room`.
fn too_little_room(config: &Config, room: &[u64], least_room: ByteSize) -> Error {
    let tiers = room.iter().copied().zip(config.tiers());
    let least = tiers.min_by_key(|(room, _)| *room);
    let (capacity, (tier, path, _)) = least.expect("there is a tier");
    let place = format!("{} (a new store needs {least_room} that are free there)", path.display());
    Error::NoSpace { tier, place, used: 0, capacity }
}

/// Lengths of a logged pool and its log on block tiers of `capacity` bytes in all, of which `reserve` are not theirs. What is left is for
/// tables, if the engine has any.
fn on_block_tiers(
    engine: EngineKind,
    capacity: u64,
    reserve: u64,
    memory: u64,
    least_pool: u64,
) -> (u64, u64) {
    let log_len = log_len(capacity, memory);
    // The pool's image and table take 2 and 1/32 of it, or less, and the table copies of three blocks of the log.
    let room = capacity.saturating_sub(log_len + 3 * log_buffer(log_len) + reserve) / 65 * 32;
    let share = match engine {
        EngineKind::Valuelog => u64::MAX,
        EngineKind::Slab => (capacity / POOL_FAST_SHARE).max(LEAST_POOL),
    };
    let wanted = (memory / POOL_MEMORY_SHARE).min(share).max(least_pool);
    (whole_pages(wanted.min(room)), log_len)
}

/// The same where values have the same device.
fn beside_values(capacity: u64, memory: u64, least_pool: u64) -> (u64, u64) {
    let wanted = (memory / POOL_MEMORY_SHARE).min(capacity / POOL_CAPACITY_SHARE).max(least_pool);
    (whole_pages(wanted), log_len(capacity, memory))
}

/// Lengths of a paged pool and its log on block tiers that have `room` bytes for both.
fn paged_on(room: u64, memory: u64) -> (u64, u64) {
    let log_len = log_len(room, memory);
    // The spare part of the image and the table of pages take 1/12 and 1/113 of it, and copies of three blocks of the log.
    let room = room.saturating_sub(log_len + 3 * log_buffer(log_len) + 20 * PAGE);
    (whole_pages(room / 71 * 64).min(LARGEST_POOL), log_len)
}

/// How a new store of `engine` with `memory` bytes of DRAM lays out its logged pool, on a fast block tier of `fast` bytes, or where
/// there is none, beside its values on one SSD with room for anything: for who opens an engine on its tiers without a
/// [`Db`](crate::Db).
pub fn logged_layout(engine: EngineKind, memory: u64, fast: Option<u64>) -> LoggedOptions {
    let (pool_len, log_len) = match fast {
        Some(capacity) => on_block_tiers(engine, capacity, RESERVE, memory, 0),
        None => beside_values(u64::MAX, memory, 0),
    };
    let mode = if fast.is_some() { Mode::Block } else { Mode::OneDirectory };
    logged_options(&Shape { engine, mode, pool_len, log_len })
}

/// What a mapped tier of `capacity` gives where there are several.
fn share(capacity: u64) -> u64 {
    capacity.saturating_sub(RESERVE) / MAPPED_UNIT * MAPPED_UNIT
}

/// Bytes of a mapped pool of this shape in each fast tier, whose capacities are these as far as they are known.
/// `None` if too little is known, or it does not fit the shape.
pub(crate) fn mapped_parts(shape: &Shape, capacities: &[Option<u64>]) -> Option<Vec<u64>> {
    if capacities.len() == 1 {
        return Some(vec![shape.pool_len]);
    }
    let shares = capacities.iter().flatten().map(|capacity| share(*capacity));
    let known = shares.fold(0, u64::saturating_add);
    let rest = shape.pool_len.checked_sub(known)?;
    let unknown = capacities.iter().filter(|capacity| capacity.is_none()).count();
    let fits = if unknown == 0 { rest == 0 } else { unknown == 1 && rest > 0 };
    fits.then(|| capacities.iter().map(|capacity| capacity.map_or(rest, share)).collect())
}

fn log_len(capacity: u64, memory: u64) -> u64 {
    whole_pages((capacity / LOG_SHARE).min((memory / LOG_SHARE).max(LOG_WANTED)).clamp(LOG_MIN, LOG_MAX))
}

/// The largest block of a log of `log_len` bytes.
fn log_buffer(log_len: u64) -> u64 {
    whole_pages(log_len / LOG_BLOCKS).clamp(PAGE, LOG_BUFFER_MAX)
}

/// Bytes that a logged pool of this shape may take on its device, with what else a tier has.
pub(crate) fn logged_bytes(shape: &Shape) -> u64 {
    logged_options(shape).most_bytes() + RESERVE
}

/// What the image of a pool may take: twice as much, so that a checkpoint is never made in rounds. Where the engine has tables beside it
/// that want the room, a quarter more than the pool, which is the least: what has changed is written in up to five rounds.
fn image_capacity(engine: EngineKind, mode: Mode, pool_len: u64) -> u64 {
    match (engine, mode) {
        (EngineKind::Slab, Mode::Block) => pool_len + whole_pages(pool_len / 4) + 16 * PAGE,
        (_, Mode::Paged) => pool_len + whole_pages(pool_len / PAGED_SPARE_SHARE) + 16 * PAGE,
        _ => pool_len * 2,
    }
}

/// How the logged pool of a store of this shape is laid out.
pub(crate) fn logged_options(shape: &Shape) -> LoggedOptions {
    let &Shape { engine, mode, pool_len, log_len } = shape;
    LoggedOptions {
        log_len,
        buffer_bytes: log_buffer(log_len),
        image_capacity: image_capacity(engine, mode, pool_len),
        paged: (mode == Mode::Paged).then_some(LEAST_DIRTY),
        ..LoggedOptions::new(pool_len)
    }
}

/// Bytes of DRAM that the logged pool of a store of this shape takes at the least.
pub(crate) fn dram_bytes(shape: &Shape) -> u64 {
    match shape.mode {
        Mode::Paged => shape.pool_len / RESIDENT_SHARE + LEAST_DIRTY,
        _ => shape.pool_len,
    }
}

/// The mode of a new store with the fast tiers of `config`.
fn mode_of_all(config: &Config) -> Result<Mode> {
    let mut found: Option<(Mode, &Path)> = None;
    for tier in &config.fast {
        let mode = mode_of(tier.kind, &tier.path)?;
        match found {
            Some((other, path)) if other != mode => {
                let (byte, block) =
                    if mode == Mode::Byte { (&*tier.path, path) } else { (path, &*tier.path) };
                return Err(Error::invalid(format!(
                    "fast: {} is byte-addressable, and {} is not; all fast tiers must be of one kind (set `kind = \
                     \"block\"` to use them as block devices)",
                    byte.display(),
                    block.display()
                )));
            }
            _ => found = Some((mode, &tier.path)),
        }
    }
    Ok(found.map_or(Mode::OneDirectory, |(mode, _)| mode))
}

/// The mode of a new store with a fast tier of this kind in the directory `path`.
fn mode_of(kind: FastKind, path: &Path) -> Result<Mode> {
    match kind {
        FastKind::Block => Ok(Mode::Block),
        FastKind::Emulated => Ok(Mode::Emulated),
        FastKind::Byte => probe(path).map(|()| Mode::Byte),
        FastKind::Auto => match probe(path) {
            Ok(()) => Ok(Mode::Byte),
            Err(Error::Unsupported { .. }) => Ok(Mode::Block),
            Err(other) => Err(other),
        },
    }
}

/// Whether stores to a file in the directory `path` can be made durable.
fn probe(path: &Path) -> Result<()> {
    let file = path.join(PROBE_NAME);
    let remove = || std::fs::remove_file(&file);
    let failed = |e| Error::io("remove", file.display().to_string(), 0, e);
    match remove() {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let mapped = MappedPool::open(&file, PAGE, false).map(drop);
    remove().map_err(failed)?;
    mapped
}

/// Refuses a configuration that disagrees with what was fixed when the store was created; `capacities` are those of
/// the fast tiers then, in the order in which they are configured now.
pub(crate) fn agree(config: &Config, shape: &Shape, capacities: &[u64]) -> Result<()> {
    if config.engine != EngineKind::default() && config.engine != shape.engine {
        return Err(Error::invalid(
            "engine was fixed as \"valuelog\" when the store was created; to change it, make a checkpoint and restore it",
        ));
    }
    agree_with(shape.engine, config)?;
    let records = match shape.mode {
        Mode::Paged => Some((Records::Device, "device")),
        Mode::Block if shape.engine == EngineKind::Slab => Some((Records::Memory, "memory")),
        _ => None,
    };
    if let (Some((was, name)), Some(now)) = (records, config.slab.records)
        && was != now
    {
        return Err(Error::invalid(format!(
            "slab.records was fixed as \"{name}\" when the store was created; to change it, make a checkpoint and restore it"
        )));
    }
    for (tier, capacity) in config.fast.iter().zip(capacities) {
        agree_on(tier, shape, *capacity)?;
    }
    Ok(())
}

/// Refuses a write buffer that leaves no room for an index in a new pool.
pub(crate) fn write_buffer_fits(config: &Config, shape: &Shape) -> Result<()> {
    let most = shape.pool_len / 8 * 7;
    match config.valuelog.write_buffer {
        Some(buffer) if buffer.bytes() > most => Err(Error::invalid(format!(
            "valuelog.write_buffer: {buffer} leaves too little for the index: at most {} of the {} that they share",
            ByteSize(most),
            ByteSize(shape.pool_len)
        ))),
        _ => Ok(()),
    }
}

/// Refuses what `engine` does not know.
fn agree_with(engine: EngineKind, config: &Config) -> Result<()> {
    let unknown = match engine {
        EngineKind::Valuelog => (config.slab != Slab::default()).then_some(("slab", "valuelog")),
        EngineKind::Slab => (config.valuelog != Valuelog::default()).then_some(("valuelog", "slab")),
    };
    if let Some((section, name)) = unknown {
        return Err(Error::invalid(format!(
            "[{section}]: the store's engine is {name}, to which these settings mean nothing"
        )));
    }
    if engine == EngineKind::Valuelog && config.flash.iter().any(|tier| tier.write_budget.is_some()) {
        return Err(Error::invalid(
            "flash.write_budget: the store's engine is valuelog, which knows no write budget; the slab engine does",
        ));
    }
    Ok(())
}

fn agree_on(tier: &FastTier, shape: &Shape, capacity: u64) -> Result<()> {
    let fixed = |what: &str, was: &str| {
        Err(Error::invalid(format!(
            "fast.{what} of {} was fixed as {was} when the store was created; to change it, make a checkpoint and \
             restore it",
            tier.path.display()
        )))
    };
    let (kind, name) = match shape.mode {
        Mode::Byte => (FastKind::Byte, "\"byte\""),
        Mode::Emulated => (FastKind::Emulated, "\"emulated\""),
        Mode::Block | Mode::Paged | Mode::OneDirectory => (FastKind::Block, "\"block\""),
    };
    if tier.kind != FastKind::Auto && tier.kind != kind {
        return fixed("kind", name);
    }
    let device = tier.emulate.as_deref();
    let known = |device: &str| match shape.mode {
        Mode::Block | Mode::Paged | Mode::OneDirectory => Emulation::named(device).is_some(),
        Mode::Byte | Mode::Emulated => drain_latency_ns(device).is_some(),
    };
    if let Some(device) = device.filter(|device| !known(device)) {
        return Err(unknown_device("fast", device));
    }
    if capacity != tier.capacity.bytes() {
        return fixed("capacity", &format!("{:?}", exact(ByteSize(capacity))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FlashTier, MIN_MEMORY};

    #[test]
    fn parts_fit_their_tiers_and_the_memory_at_every_size() {
        for memory_mib in [16, 17, 100, 1024, 65536] {
            for capacity_mib in [32, 33, 64, 100, 1000, 100_000, 4_000_000] {
                let (memory, capacity) = (ByteSize::mib(memory_mib), ByteSize::mib(capacity_mib));
                assert!(memory >= MIN_MEMORY && capacity >= MIN_TIER);
                let one = Config::new().with_flash(FlashTier::new("a").with_capacity(capacity));
                let two = Config::one_directory("a")
                    .with_fast(FastTier::new("b", capacity).with_kind(FastKind::Block));
                let three = two.clone().with_fast(FastTier::new("c", capacity).with_kind(FastKind::Block));
                let paged = Slab { records: Some(Records::Device), ..Slab::default() };
                let four = three.clone().with_engine(EngineKind::Slab).with_slab(paged);
                for config in [one, two, three, four] {
                    let tiers = config.fast.len().max(1);
                    let shape =
                        decide(&config, &vec![capacity.bytes(); tiers], memory.bytes(), 0).expect("shape");
                    let what = format!("{config:?} with {memory}: {shape:?}");
                    assert!(shape.pool_len >= 4 << 20 && shape.pool_len.is_multiple_of(PAGE), "{what}");
                    assert!(shape.pool_len <= memory.bytes() / 2 || shape.mode == Mode::Paged, "{what}");
                    let values = shape.mode == Mode::OneDirectory;
                    let room = if values { capacity.bytes() / 2 } else { capacity.bytes() };
                    assert!(
                        logged_bytes(&shape) + (tiers as u64 - 1) * RESERVE <= room * tiers as u64,
                        "{what}"
                    );
                    let options = logged_options(&shape);
                    assert!(options.log_len >= options.buffer_bytes * LOG_BLOCKS, "{what}");
                }
            }
        }
    }

    /// Nothing is written then, so the directory can be used once there is room.
    #[test]
    fn a_store_is_not_created_where_there_is_no_room() {
        let flash = Config::one_directory("flash");
        let emulated = FastTier::new("fast", ByteSize::gib(1)).with_kind(FastKind::Emulated);
        let block = emulated.clone().with_kind(FastKind::Block);
        for config in [flash.clone(), flash.clone().with_fast(emulated), flash.with_fast(block)] {
            for room in [0, 4096, 1 << 20, 4 << 20] {
                let refused = decide(&config, &[room], 1 << 30, 0).expect_err("no room");
                let place = if config.fast.is_empty() { "flash" } else { "fast" };
                let named = matches!(&refused, Error::NoSpace { place: named, capacity, .. }
                    if named.starts_with(place) && *capacity == room);
                assert!(named, "{refused}");
            }
        }
    }

    /// A copy of a store whose index is large, with a memory that is configured.
    #[test]
    fn a_pool_that_leaves_no_room_for_values_is_refused() {
        let config = Config::one_directory("flash").with_memory(ByteSize::mib(256));
        let refused = decide(&config, &[64 << 20], 256 << 20, 40 << 20).expect_err("80 MiB of image");
        assert!(matches!(&refused, Error::NoSpace { capacity, .. } if *capacity == 64 << 20), "{refused}");
        decide(&config, &[128 << 20], 256 << 20, 40 << 20).expect("there is room");
    }

    #[test]
    fn mapped_tiers_give_their_shares() {
        let mapped = |capacities: &[u64]| {
            capacities.iter().fold(Config::one_directory("a"), |config, mib| {
                let tier = FastTier::new(format!("fast of {mib}"), ByteSize::mib(*mib));
                config.with_fast(tier.with_kind(FastKind::Emulated))
            })
        };
        let bytes = |capacities: &[u64]| capacities.iter().map(|mib| mib << 20).collect::<Vec<_>>();
        let one = decide(&mapped(&[64]), &bytes(&[64]), 16 << 20, 0).expect("one");
        assert_eq!(one.pool_len, 63 << 20);
        assert_eq!(mapped_parts(&one, &[Some(64 << 20)]), Some(vec![63 << 20]));
        let two = decide(&mapped(&[64, 33]), &bytes(&[100, 33]), 16 << 20, 0).expect("two");
        assert_eq!(two.pool_len, (62 + 32) << 20);
        let (first, second) = (Some(64 << 20), Some(33 << 20));
        let parts = Some(vec![62 << 20, 32 << 20]);
        for known in [[first, second], [None, second], [first, None]] {
            assert_eq!(mapped_parts(&two, &known), parts, "{known:?}");
        }
        for unfit in [[None, None], [second, second], [first, first], [Some(u64::MAX); 2]] {
            assert_eq!(mapped_parts(&two, &unfit), None, "{unfit:?}");
        }
        let full = decide(&mapped(&[64, 33]), &bytes(&[64, 20]), 16 << 20, 0).expect_err("no room");
        assert!(full.to_string().contains("fast of 33"), "{full}");
    }

    #[test]
    fn a_directory_that_cannot_be_mapped_is_a_block_tier_and_keeps_no_trace() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(mode_of(FastKind::Auto, dir.path()).expect("auto"), Mode::Block);
        assert!(matches!(mode_of(FastKind::Byte, dir.path()), Err(Error::Unsupported { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn what_was_fixed_at_creation_cannot_be_configured_away() {
        let shape =
            Shape { engine: EngineKind::Valuelog, mode: Mode::Block, pool_len: 4 << 20, log_len: LOG_MIN };
        let config = |kind, mib| {
            Config::one_directory("a").with_fast(FastTier::new("b", ByteSize::mib(mib)).with_kind(kind))
        };
        assert!(agree(&config(FastKind::Auto, 64), &shape, &[64 << 20]).is_ok());
        assert!(agree(&config(FastKind::Block, 64), &shape, &[64 << 20]).is_ok());
        let kind = agree(&config(FastKind::Byte, 64), &shape, &[64 << 20]).expect_err("kind");
        assert!(kind.to_string().contains("fast.kind"), "{kind}");
        let capacity = agree(&config(FastKind::Auto, 128), &shape, &[64 << 20]).expect_err("capacity");
        assert!(capacity.to_string().contains("64 MiB"), "{capacity}");
        let mut other = config(FastKind::Auto, 64);
        other.fast[0].emulate = Some("optane-pmem".into());
        assert!(other.validate().is_ok(), "it might become a byte-addressable tier");
        assert!(agree(&other, &shape, &[64 << 20]).is_err());
    }
}
