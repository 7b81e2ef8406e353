//! TierDB itself: two engines, in three modes each.

use crate::knobs::Knobs;
use crate::store::{Counts, Durability, FAST, FLASH, Fast, Needs, Setup, Store, StoreError, System, TierIo};
use crate::tuned;
use std::ops::Bound;
use tierdb::{
    ByteSize, Config, Db, Engine, EngineKind, FastKind, FastTier, FlashTier, IoStats, KeyRange, Records,
    Slab, TierRole, Valuelog,
};

/// Bytes of the fast tier that index and HSIT take for a key beside the key itself, which takes half as much again as
/// it is long: leaves are seven tenths full where keys come in random order.
const KEY_BYTES: u64 = 32;
/// What the identity of a tier, a header and roundings take, and is left of a pool for a few keys.
const FIXED_BYTES: u64 = 2 << 20;

/// How TierDB is arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A byte-addressable fast tier, emulated in shared memory, and flash.
    Byte,
    /// A fast block device, and flash.
    Block,
    /// Everything on one SSD.
    Ssd,
}

/// TierDB with one engine in one mode.
#[derive(Clone, Copy, Debug)]
pub struct TierDb {
    /// How data is laid out.
    pub engine: EngineKind,
    /// On what.
    pub mode: Mode,
    /// Whether values go through the page cache, beyond the memory limit.
    pub page_cache: bool,
    /// Whether records are read from the fast block device (`slab.records = "device"`).
    pub device_records: bool,
}

impl System for TierDb {
    fn name(&self) -> &'static str {
        match (self.engine, self.mode) {
            (EngineKind::Slab, Mode::Byte) => "slab-byte",
            (EngineKind::Slab, Mode::Block) if self.device_records => "slab-device",
            (EngineKind::Slab, Mode::Block) => "slab-block",
            (EngineKind::Slab, Mode::Ssd) => "slab-ssd",
            (_, Mode::Byte) => "tierdb-byte",
            (_, Mode::Block) => "tierdb-block",
            (_, Mode::Ssd) if self.page_cache => "tierdb-ssd-cached",
            (_, Mode::Ssd) => "tierdb-ssd",
        }
    }

    fn about(&self) -> &'static str {
        match (self.engine, self.mode) {
            (EngineKind::Slab, Mode::Byte) => {
                "TierDB, slab engine: all writes to a byte-addressable fast tier emulated in shared memory, cold keys to flash"
            }
            (EngineKind::Slab, Mode::Block) if self.device_records => {
                "TierDB, slab engine: all writes to slots of a fast block device by way of a log, which they are read from; cold keys to flash"
            }
            (EngineKind::Slab, Mode::Block) => {
                "TierDB, slab engine: all writes to memory that is logged to a fast block device, then to tables there, cold keys to flash"
            }
            (EngineKind::Slab, Mode::Ssd) => {
                "TierDB, slab engine, all on one SSD: writes to memory that is logged, cold keys to tables"
            }
            (_, Mode::Byte) => {
                "TierDB, byte-addressable fast tier emulated in shared memory, values on flash"
            }
            (_, Mode::Block) => {
                "TierDB, index and write buffer logged to a fast block device, values on flash"
            }
            (_, Mode::Ssd) if self.page_cache => {
                "TierDB, all on one SSD; values through the page cache, which is beyond the limit"
            }
            (_, Mode::Ssd) => "TierDB, all on one SSD",
        }
    }

    fn fast(&self) -> Fast {
        match self.mode {
            Mode::Byte => Fast::Memory,
            Mode::Block => Fast::Block,
            Mode::Ssd => Fast::None,
        }
    }

    fn needs(&self, keys: u64, key_bytes: usize) -> Needs {
        // Of the slab engine all but what is hot may go to flash.
        if self.engine == EngineKind::Slab {
            return Needs::default();
        }
        // A third of a pool at most is the write buffer (a fifth where it is byte-addressable), a word for each of its pages its page table.
        let pool = keys * (key_bytes as u64 * 3 / 2 + KEY_BYTES) * 1506 / 1000 + FIXED_BYTES;
        match self.mode {
            Mode::Byte => Needs { memory: 0, fast_bytes: pool + FIXED_BYTES },
            // Half of memory is the pool. On its device are two images and a page table, of 65 / 32 of it, and a log
            // of at most an eighth of the whole.
            Mode::Block => Needs { memory: pool * 2, fast_bytes: (pool * 65 / 32 + FIXED_BYTES) * 8 / 7 },
            Mode::Ssd => Needs { memory: pool * 2, fast_bytes: 0 },
        }
    }

    fn lacks(&self, knobs: &Knobs) -> Option<&'static str> {
        if self.engine == EngineKind::Slab {
            let no_knobs = self.device_records && knobs.are_internal();
            return knobs.of_valuelog().or(no_knobs.then_some("settings of the engine's own"));
        }
        let no_rings = self.page_cache && knobs.batching.is_some();
        knobs.of_slab().or(no_rings.then_some("how reads go together"))
    }

    fn imitates_flash(&self) -> bool {
        true
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Store>, StoreError> {
        let handle = if setup.knobs.are_internal() {
            Handle::Engine(tuned::open(self.engine, self.mode, setup)?)
        } else {
            Handle::Db(Db::open_config(&self.config(setup))?)
        };
        Ok(Box::new(Open { handle, one_device: self.mode == Mode::Ssd }))
    }
}

impl TierDb {
    fn config(&self, setup: &Setup) -> Config {
        let mut config = Config::new().with_engine(self.engine).with_memory(ByteSize(setup.memory));
        for path in setup.knobs.flash_dirs(&setup.flash_dir) {
            let mut flash = FlashTier::new(path);
            flash.emulate = setup.emulate_flash.clone();
            flash.page_cache = self.page_cache;
            flash.capacity = setup.knobs.flash_bytes.map(ByteSize);
            config = config.with_flash(flash);
        }
        if self.fast() != Fast::None {
            let kind = if self.mode == Mode::Byte { FastKind::Emulated } else { FastKind::Block };
            let mut fast = FastTier::new(&setup.fast_dir, ByteSize(setup.fast_bytes)).with_kind(kind);
            fast.emulate = setup.emulate_fast.clone();
            config = config.with_fast(fast);
        }
        let mut valuelog = Valuelog::default();
        if self.engine == EngineKind::Valuelog {
            valuelog.write_buffer = setup.knobs.write_buffer.map(ByteSize);
            valuelog.gc_garbage_pct = setup.knobs.garbage_pct;
        }
        let mut slab = Slab::default();
        slab.records = self.device_records.then_some(Records::Device);
        config.with_valuelog(valuelog).with_slab(slab)
    }
}

enum Handle {
    Db(Db),
    Engine(Box<dyn Engine>),
}

struct Open {
    handle: Handle,
    /// The fast tier's I/O and that of flash are one device's, and counted together.
    one_device: bool,
}

impl Store for Open {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        let value = match &self.handle {
            Handle::Db(db) => db.get(key)?,
            Handle::Engine(engine) => engine.get(key)?,
        };
        see(value.as_deref());
        Ok(())
    }

    fn multi_get(&self, keys: &[Vec<u8>], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        let values = match &self.handle {
            Handle::Db(db) => db.multi_get(keys),
            Handle::Engine(engine) => engine.multi_get(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        };
        for value in values {
            see(value?.as_deref());
        }
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), StoreError> {
        let durability = match durability {
            Durability::Durable => tierdb::Durability::Durable,
            Durability::Grouped => tierdb::Durability::Grouped,
        };
        match &self.handle {
            Handle::Db(db) => db.put_with(key, value, durability)?,
            Handle::Engine(engine) => engine.put(key, value, durability)?,
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        match &self.handle {
            Handle::Db(db) => {
                for entry in db.range(from..)?.take(count) {
                    let (key, value) = entry?;
                    see(&key, &value);
                }
            }
            Handle::Engine(engine) => {
                let range = KeyRange { start: Bound::Included(from.to_vec()), end: Bound::Unbounded };
                let mut cursor = engine.cursor(range, None)?;
                for _ in 0..count {
                    let Some((key, value)) = cursor.next()? else { break };
                    see(&key, &value);
                }
            }
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        let stats = match &self.handle {
            Handle::Db(db) => db.stats(),
            Handle::Engine(engine) => engine.stats(),
        };
        // What the fast tier has beside: values that the cache gave up, tables of the first level.
        let second_level = ["second_level_hits", "reads_fast_tables"];
        let second_level: u64 = second_level.into_iter().filter_map(|name| stats.figure(name)).sum();
        // A cache that is asked for each of several tables misses as often.
        let misses = stats.cache.misses.saturating_sub(second_level);
        let misses = stats.figure("reads_flash").unwrap_or(misses);
        let mut counts = Counts {
            mode: stats.mode,
            hits: stats.cache.hits + stats.write_buffer_hits + second_level,
            misses,
            stall_ns: stats.stall_ns,
            tells_of_flash: true,
            counters: stats.counters.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..Counts::default()
        };
        for tier in &stats.tiers {
            let name = if tier.role == TierRole::Fast { FAST } else { FLASH };
            counts.parts.extend(tier.parts.iter().map(|(part, bytes)| (format!("{name}: {part}"), *bytes)));
            if self.one_device && tier.role == TierRole::Fast {
                continue;
            }
            for (cause, io) in &tier.io {
                add(&mut counts.io, name, cause, io);
            }
        }
        counts.parts.extend(stats.memory.iter().map(|(part, bytes)| (format!("memory: {part}"), *bytes)));
        counts
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        match &self.handle {
            Handle::Db(db) => db.close()?,
            Handle::Engine(engine) => engine.close()?,
        }
        Ok(())
    }
}

/// Counts the I/O of one of several devices of a tier.
fn add(all: &mut Vec<TierIo>, tier: &str, cause: &str, io: &IoStats) {
    let at = all.iter().position(|own| own.tier == tier && own.cause == cause).unwrap_or_else(|| {
        all.push(TierIo { tier: tier.to_owned(), cause: cause.to_owned(), ..TierIo::default() });
        all.len() - 1
    });
    let own = &mut all[at];
    own.reads += io.reads;
    own.read_bytes += io.read_bytes;
    own.writes += io.writes;
    own.written_bytes += io.written_bytes;
    own.syncs += io.syncs;
}
