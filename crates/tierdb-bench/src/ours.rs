//! TierDB itself, in its three modes.

use crate::store::{Counts, Durability, Fast, Found, Needs, Setup, Store, StoreError, System, TierIo};
use tierdb::{ByteSize, Config, Db, FastKind, FastTier, FlashTier, TierRole};

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

/// TierDB in one mode.
#[derive(Clone, Copy, Debug)]
pub struct TierDb(pub Mode);

impl System for TierDb {
    fn name(&self) -> &'static str {
        match self.0 {
            Mode::Byte => "tierdb-byte",
            Mode::Block => "tierdb-block",
            Mode::Ssd => "tierdb-ssd",
        }
    }

    fn about(&self) -> &'static str {
        match self.0 {
            Mode::Byte => "TierDB, byte-addressable fast tier emulated in shared memory, values on flash",
            Mode::Block => "TierDB, index and write buffer logged to a fast block device, values on flash",
            Mode::Ssd => "TierDB, all on one SSD",
        }
    }

    fn fast(&self) -> Fast {
        match self.0 {
            Mode::Byte => Fast::Memory,
            Mode::Block => Fast::Block,
            Mode::Ssd => Fast::None,
        }
    }

    fn needs(&self, keys: u64, key_bytes: usize) -> Needs {
        // A third of a pool is the write buffer, a word for each of its pages its page table.
        let pool = keys * (key_bytes as u64 * 3 / 2 + KEY_BYTES) * 1506 / 1000 + FIXED_BYTES;
        match self.0 {
            Mode::Byte => Needs { memory: 0, fast_bytes: pool + FIXED_BYTES },
            // Half of memory is the pool. On its device are two images and a page table, of 65 / 32 of it, and a log
            // of at most an eighth of the whole.
            Mode::Block => Needs { memory: pool * 2, fast_bytes: (pool * 65 / 32 + FIXED_BYTES) * 8 / 7 },
            Mode::Ssd => Needs { memory: pool * 2, fast_bytes: 0 },
        }
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Store>, StoreError> {
        let mut flash = FlashTier::new(&setup.flash_dir);
        flash.emulate = setup.emulate_flash.clone();
        let mut config = Config::new().with_memory(ByteSize(setup.memory)).with_flash(flash);
        if self.fast() != Fast::None {
            let kind = if self.0 == Mode::Byte { FastKind::Emulated } else { FastKind::Block };
            let mut fast = FastTier::new(&setup.fast_dir, ByteSize(setup.fast_bytes)).with_kind(kind);
            fast.emulate = setup.emulate_fast.clone();
            config = config.with_fast(fast);
        }
        Ok(Box::new(Open { db: Db::open_config(&config)?, one_device: self.0 == Mode::Ssd }))
    }
}

struct Open {
    db: Db,
    /// The fast tier's I/O and that of flash are one device's, and counted together.
    one_device: bool,
}

impl Store for Open {
    fn get(&self, key: &[u8]) -> Result<Option<Found<'_>>, StoreError> {
        Ok(self.db.get(key)?.map(Found::Value))
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), StoreError> {
        let durability = match durability {
            Durability::Durable => tierdb::Durability::Durable,
            Durability::Grouped => tierdb::Durability::Grouped,
        };
        Ok(self.db.put_with(key, value, durability)?)
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        for entry in self.db.range(from..)?.take(count) {
            let (key, value) = entry?;
            see(&key, &value);
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        let stats = self.db.stats();
        let mut counts = Counts {
            mode: stats.mode,
            hits: stats.cache.hits + stats.write_buffer_hits,
            misses: stats.cache.misses,
            stall_ns: stats.stall_ns,
            ..Counts::default()
        };
        for tier in &stats.tiers {
            let name = if tier.role == TierRole::Fast { "fast" } else { "flash" };
            counts.parts.extend(tier.parts.iter().map(|(part, bytes)| (format!("{name}: {part}"), *bytes)));
            if self.one_device && tier.role == TierRole::Fast {
                continue;
            }
            counts.io.extend(tier.io.iter().map(|(cause, io)| TierIo {
                tier: name.to_owned(),
                cause: (*cause).to_owned(),
                reads: io.reads,
                read_bytes: io.read_bytes,
                writes: io.writes,
                written_bytes: io.written_bytes,
                syncs: io.syncs,
            }));
        }
        counts.parts.extend(stats.memory.iter().map(|(part, bytes)| (format!("memory: {part}"), *bytes)));
        counts
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        Ok(self.db.close()?)
    }
}
