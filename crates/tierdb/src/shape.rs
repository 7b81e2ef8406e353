//! How large the parts of a new store are, and which hardware mode it has.
//!
//! A mapped pool is the fast tier. A logged pool lives in DRAM and needs two files on a block device: the log
//! ring, and the image with room for a second copy of every page, so that a checkpoint never overwrites the last.

use crate::config::{Config, EngineKind, FastKind, drain_latency_ns, unknown_device};
use crate::identity::{Mode, Shape};
use crate::tiers::PROBE_NAME;
use std::path::Path;
use tierdb_base::{Error, Result};
use tierdb_device::Emulation;
use tierdb_log::LoggedOptions;
use tierdb_pmem::MappedPool;

const PAGE: u64 = 4096;
/// The longest log: at 1 GB/s it is replayed in a quarter of a second, and written with zeros at creation
/// in as much.
const LOG_MAX: u64 = 256 << 20;
/// The shortest: 32 blocks of 128 KiB, the least that a ring must hold.
const LOG_MIN: u64 = 4 << 20;
/// The ring takes at most this share of the capacity and of memory, so that small stores stay small.
const LOG_SHARE: u64 = 8;
/// A logged pool takes at most this share of memory. The other half is cache, and what the engine needs.
const POOL_MEMORY_SHARE: u64 = 2;
/// A logged pool on one SSD takes at most this share of the capacity: its image is twice as large, and the
/// values are to get most of it.
const POOL_CAPACITY_SHARE: u64 = 8;
/// A group commit carries at most this much; two buffers of it are in DRAM.
const LOG_BUFFER_MAX: u64 = 1 << 20;
/// A ring holds at least so many of the largest blocks.
const LOG_BLOCKS: u64 = 32;
/// What `TIER`, the lock file and rounding take of a tier.
const RESERVE: u64 = 1 << 20;

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE * PAGE
}

/// Decides what is fixed for a new store whose first tier (fast, or flash where there is no other) has `capacity`
/// bytes, with `memory` bytes of DRAM and room for at least `least_pool` bytes of index.
pub(crate) fn decide(config: &Config, capacity: u64, memory: u64, least_pool: u64) -> Result<Shape> {
    let mode = match config.fast.first() {
        None => Mode::OneDirectory,
        Some(tier) => mode_of(tier.kind, &tier.path)?,
    };
    let shape = match mode {
        Mode::Byte | Mode::Emulated => Shape {
            engine: config.engine,
            mode,
            pool_len: whole_pages(capacity.saturating_sub(RESERVE)),
            log_len: 0,
        },
        Mode::Block => {
            let log_len = log_len(capacity, memory);
            // The pool's image and table take 2 and 1/32 of it.
            let room = capacity.saturating_sub(log_len + RESERVE) / 65 * 32;
            Shape {
                engine: config.engine,
                mode,
                pool_len: whole_pages((memory / POOL_MEMORY_SHARE).min(room)),
                log_len,
            }
        }
        Mode::OneDirectory => {
            let wanted = (memory / POOL_MEMORY_SHARE).min(capacity / POOL_CAPACITY_SHARE).max(least_pool);
            Shape {
                engine: config.engine,
                mode,
                pool_len: whole_pages(wanted),
                log_len: log_len(capacity, memory),
            }
        }
    };
    Ok(shape)
}

fn log_len(capacity: u64, memory: u64) -> u64 {
    whole_pages((capacity / LOG_SHARE).min(memory / LOG_SHARE).clamp(LOG_MIN, LOG_MAX))
}

/// Bytes that a logged pool of this shape may take on its device.
pub(crate) fn logged_bytes(shape: &Shape) -> u64 {
    shape.log_len + shape.pool_len * 2 + shape.pool_len / 32 + RESERVE
}

/// How the logged pool of a store of this shape is laid out.
pub(crate) fn logged_options(shape: &Shape) -> LoggedOptions {
    LoggedOptions {
        log_len: shape.log_len,
        buffer_bytes: whole_pages(shape.log_len / LOG_BLOCKS).clamp(PAGE, LOG_BUFFER_MAX),
        image_capacity: shape.pool_len * 2,
        ..LoggedOptions::new(shape.pool_len)
    }
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

/// Refuses a configuration that disagrees with what was fixed when the store was created.
pub(crate) fn agree(config: &Config, shape: &Shape, fast_capacity: Option<u64>) -> Result<()> {
    if config.engine != EngineKind::default() && config.engine != shape.engine {
        return Err(Error::invalid(
            "engine was fixed when the store was created; to change it, make a checkpoint and restore it",
        ));
    }
    let Some(tier) = config.fast.first() else { return Ok(()) };
    let fixed = |what: &str, was: &str| {
        Err(Error::invalid(format!(
            "fast.{what} was fixed as {was} when the store was created; to change it, make a checkpoint and restore it"
        )))
    };
    let (kind, name) = match shape.mode {
        Mode::Byte => (FastKind::Byte, "\"byte\""),
        Mode::Emulated => (FastKind::Emulated, "\"emulated\""),
        Mode::Block | Mode::OneDirectory => (FastKind::Block, "\"block\""),
    };
    if tier.kind != FastKind::Auto && tier.kind != kind {
        return fixed("kind", name);
    }
    let device = tier.emulate.as_deref();
    let known = |device: &str| match shape.mode {
        Mode::Block | Mode::OneDirectory => Emulation::named(device).is_some(),
        Mode::Byte | Mode::Emulated => drain_latency_ns(device).is_some(),
    };
    if let Some(device) = device.filter(|device| !known(device)) {
        return Err(unknown_device("fast", device));
    }
    match fast_capacity {
        Some(was) if was != tier.capacity.bytes() => {
            fixed("capacity", &format!("{:?}", tierdb_base::ByteSize(was).to_string()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FastTier, FlashTier, MIN_MEMORY, MIN_TIER};
    use tierdb_base::ByteSize;

    #[test]
    fn parts_fit_their_tiers_and_the_memory_at_every_size() {
        for memory_mib in [16, 17, 100, 1024, 65536] {
            for capacity_mib in [32, 33, 64, 100, 1000, 100_000, 4_000_000] {
                let (memory, capacity) = (ByteSize::mib(memory_mib), ByteSize::mib(capacity_mib));
                assert!(memory >= MIN_MEMORY && capacity >= MIN_TIER);
                let one = Config::new().with_flash(FlashTier::new("a").with_capacity(capacity));
                let two = Config::one_directory("a")
                    .with_fast(FastTier::new("b", capacity).with_kind(FastKind::Block));
                for config in [one, two] {
                    let shape = decide(&config, capacity.bytes(), memory.bytes(), 0).expect("shape");
                    let what = format!("{config:?} with {memory}: {shape:?}");
                    assert!(shape.pool_len >= 4 << 20 && shape.pool_len.is_multiple_of(PAGE), "{what}");
                    assert!(shape.pool_len <= memory.bytes() / 2, "{what}");
                    let room =
                        if shape.mode == Mode::Block { capacity.bytes() } else { capacity.bytes() / 2 };
                    assert!(logged_bytes(&shape) <= room, "{what}");
                    let options = logged_options(&shape);
                    assert!(options.log_len >= options.buffer_bytes * LOG_BLOCKS, "{what}");
                }
            }
        }
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
        assert!(agree(&config(FastKind::Auto, 64), &shape, Some(64 << 20)).is_ok());
        assert!(agree(&config(FastKind::Block, 64), &shape, Some(64 << 20)).is_ok());
        let kind = agree(&config(FastKind::Byte, 64), &shape, Some(64 << 20)).expect_err("kind");
        assert!(kind.to_string().contains("fast.kind"), "{kind}");
        let capacity = agree(&config(FastKind::Auto, 128), &shape, Some(64 << 20)).expect_err("capacity");
        assert!(capacity.to_string().contains("64 MiB"), "{capacity}");
        let mut other = config(FastKind::Auto, 64);
        other.fast[0].emulate = Some("optane-pmem".into());
        assert!(other.validate().is_ok(), "it might become a byte-addressable tier");
        assert!(agree(&other, &shape, Some(64 << 20)).is_err());
    }
}
