//! RocksDB, in the arrangements that people run it in.

use crate::paced;
use rocksdb::statistics::{StatsLevel, Ticker};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBPath, DEFAULT_COLUMN_FAMILY_NAME, Options,
    WriteBufferManager, WriteOptions,
};
use std::path::Path;
use tierdb_bench::store::{Counts, Durability, FAST, FLASH, Fast, Setup, Store, StoreError, System, TierIo};

/// Where RocksDB puts what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Everything on one SSD.
    Ssd,
    /// Log and the first levels on the fast tier, the last ones on flash. The fast tier is shared memory.
    Tiers,
    /// The same with a fast tier that is a block device.
    BlockTiers,
    /// Everything on the fast tier, which then must hold all data.
    Fast,
    /// Everything on one SSD, values in blob files.
    Blob,
}

/// RocksDB in one arrangement.
pub struct Rocks(pub Arrangement);

impl System for Rocks {
    fn name(&self) -> &'static str {
        match self.0 {
            Arrangement::Ssd => "rocksdb",
            Arrangement::Tiers => "rocksdb-tiers",
            Arrangement::BlockTiers => "rocksdb-tiers-block",
            Arrangement::Fast => "rocksdb-fast",
            Arrangement::Blob => "rocksdb-blob",
        }
    }

    fn about(&self) -> &'static str {
        match self.0 {
            Arrangement::Ssd => {
                "RocksDB, all on one SSD, direct I/O; one block cache of the whole memory, to which memtables, index and \
                 filter blocks are charged; Bloom filters of 10 bits; log files used again; statistics without timers; \
                 durable: synced log, grouped: log without sync"
            }
            Arrangement::Tiers => {
                "RocksDB as 'rocksdb', with its log and levels 0 and 1 on the fast tier (db_paths), sized to fill four fifths of \
                 it, and writers held back while compactions are so far behind that they would take more; the others on flash; the fast tier is plain shared memory, without imitated latency"
            }
            Arrangement::BlockTiers => {
                "RocksDB as 'rocksdb-tiers', with a fast block device, of which it can imitate another"
            }
            Arrangement::Fast => {
                "RocksDB as 'rocksdb', with everything on the fast tier: an upper reference that needs as much fast \
                 storage as there is data; plain shared memory, without imitated latency"
            }
            Arrangement::Blob => {
                "RocksDB as 'rocksdb', with values from 256 B on in blob files (BlobDB) and their garbage collection"
            }
        }
    }

    fn fast(&self) -> Fast {
        match self.0 {
            Arrangement::Tiers | Arrangement::Fast => Fast::Memory,
            Arrangement::BlockTiers => Fast::Block,
            Arrangement::Ssd | Arrangement::Blob => Fast::None,
        }
    }

    fn imitates_flash(&self) -> bool {
        true
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Store>, StoreError> {
        if let Some(device) = &setup.emulate_flash {
            paced::imitate(FLASH, &setup.flash_dir, device)?;
        }
        let fast_device = setup.emulate_fast.as_ref().filter(|_| self.0 == Arrangement::BlockTiers);
        if let Some(device) = fast_device {
            paced::imitate(FAST, &setup.fast_dir, device)?;
        }
        let memory = usize::try_from(setup.memory)?;
        let cache = Cache::new_lru_cache(memory);
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&cache);
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_bloom_filter(10.0, false);
        let fast = setup.fast_bytes / 10 * 8;
        let mut buffer = (memory / 8).clamp(2 << 20, 64 << 20);
        let is_tiered = matches!(self.0, Arrangement::Tiers | Arrangement::BlockTiers);
        if is_tiered {
            buffer = buffer.min(usize::try_from(fast)? / 16);
        }
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::None);
        options.set_use_direct_reads(true);
        options.set_use_direct_io_for_flush_and_compaction(true);
        options.set_write_buffer_size(buffer);
        options.set_max_write_buffer_number(3);
        options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(
            memory / 3,
            false,
            cache.clone(),
        ));
        options.set_target_file_size_base(buffer as u64);
        options.set_max_bytes_for_level_base(4 * buffer as u64);
        // A log file whose length stays as it is needs no more than its data to be synced.
        options.set_recycle_log_file_num(4);
        options.enable_statistics();
        options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        options.increase_parallelism(i32::try_from(processors.max(2))?);
        let mut path = setup.flash_dir.clone();
        match self.0 {
            Arrangement::Ssd => {}
            Arrangement::Tiers | Arrangement::BlockTiers => {
                path = setup.fast_dir.clone();
                // Which level goes where is decided by the sizes that levels are meant to have: level 0 is taken to be as large as
                // level 1, and a level goes where those before it leave room for the whole of it.
                options.set_level_compaction_dynamic_level_bytes(false);
                options.set_max_bytes_for_level_base(fast / 2);
                // Nothing but this keeps levels 0 and 1 from taking more than the tier has while compactions are behind: level 0
                // by its files, each a sixteenth of the tier; level 1, which is to have half of it, by what its compaction is to write: what
                // it has too much, as many times as the level below is as large as it has become, and once more. Level 2 is to have five
                // times the tier, so these are reached where level 1 has three quarters of the tier, and all of it.
                options.set_level_zero_slowdown_writes_trigger(6);
                options.set_level_zero_stop_writes_trigger(8);
                options.set_soft_pending_compaction_bytes_limit(usize::try_from(fast)? * 2);
                options.set_hard_pending_compaction_bytes_limit(usize::try_from(fast)? * 3);
                let fast = DBPath::new(setup.fast_dir.join("tables"), fast)?;
                let flash = DBPath::new(setup.flash_dir.join("tables"), u64::MAX >> 1)?;
                options.set_db_paths(&[fast, flash]);
            }
            Arrangement::Fast => path = setup.fast_dir.clone(),
            Arrangement::Blob => {
                options.set_enable_blob_files(true);
                options.set_min_blob_size(256);
                options.set_blob_file_size(64 << 20);
                options.set_enable_blob_gc(true);
                options.set_blob_cache(&cache);
                // Direct reads have nothing ahead of them but this.
                options.set_blob_compaction_readahead_size(2 << 20);
            }
        }
        let emulated = [(FAST, fast_device), (FLASH, setup.emulate_flash.as_ref())];
        let emulated = emulated.map(|(tier, device)| {
            device.map_or(String::new(), |device| format!(", EMULATED: {tier} at the pace of {device}"))
        });
        let fast_files = self.fast() == Fast::Memory;
        open(options, &path.join("rocksdb"), emulated.concat(), fast_files)
    }
}

fn open(
    options: Options,
    path: &Path,
    emulated: String,
    fast_files: bool,
) -> Result<Box<dyn Store>, StoreError> {
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    // Reads of several keys at once need the family by name.
    let db = DB::open_cf_with_opts(&options, path, [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())])?;
    let (version, unsynced) = (version(path), WriteOptions::default());
    Ok(Box::new(Open { db, options, version, emulated, fast_files, synced, unsynced }))
}

/// I/O by cause. Statistics are of the whole store: in which directory a file lies they do not tell.
fn io(options: &Options) -> Vec<TierIo> {
    let count = |ticker: Ticker| options.get_ticker_count(ticker);
    let cause =
        |cause: &str| TierIo { tier: "any tier".to_owned(), cause: cause.to_owned(), ..TierIo::default() };
    let compacted = count(Ticker::CompactReadBytes);
    let read = count(Ticker::LastLevelReadBytes) + count(Ticker::NonLastLevelReadBytes);
    vec![
        TierIo {
            written_bytes: count(Ticker::WalFileBytes),
            syncs: count(Ticker::WalFileSynced),
            ..cause("log")
        },
        TierIo { written_bytes: count(Ticker::FlushWriteBytes), ..cause("flush") },
        TierIo {
            read_bytes: compacted,
            written_bytes: count(Ticker::CompactWriteBytes),
            ..cause("compaction")
        },
        // A compaction's reads are among all reads as they are done, and counted as its own some time later.
        TierIo { read_bytes: read.saturating_sub(compacted), ..cause("reads, and opening of tables") },
    ]
}

/// The version of the library, which may be another than the one that the crate brings: it writes that into the file of
/// options beside an open store.
fn version(path: &Path) -> String {
    let files = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let options = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"OPTIONS-"));
    let texts = options.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let found = texts.filter_map(|text| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("rocksdb_version="))?;
        Some(line.to_owned())
    });
    found.last().unwrap_or_else(|| "of an unknown version".to_owned())
}

struct Open {
    db: DB,
    /// Those it was opened with, which hold its statistics.
    options: Options,
    version: String,
    /// Which devices are imitated, in words.
    emulated: String,
    /// Whether its fast tier is files in memory.
    fast_files: bool,
    synced: WriteOptions,
    unsynced: WriteOptions,
}

impl Store for Open {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        see(self.db.get_pinned(key)?.as_deref());
        Ok(())
    }

    fn multi_get(&self, keys: &[Vec<u8>], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        let all =
            self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).ok_or("the store has no default column family")?;
        for value in self.db.batched_multi_get_cf(all, keys, false) {
            see(value?.as_deref());
        }
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), StoreError> {
        let how = if durability == Durability::Durable { &self.synced } else { &self.unsynced };
        Ok(self.db.put_opt(key, value, how)?)
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let mut at = self.db.raw_iterator();
        at.seek(from);
        // It is not moved behind the last entry that is wanted: the next one may be a read of its own.
        for number in 1..=count {
            let Some((key, value)) = at.item() else { break };
            see(key, value);
            if number < count {
                at.next();
            }
        }
        Ok(at.status()?)
    }

    fn counts(&self) -> Counts {
        // Blob files are written by flushes and compactions, and read by reads and compactions: these are parts of those.
        let parts = [
            Ticker::BlobDbBlobFileBytesRead,
            Ticker::BlobDbBlobFileBytesWritten,
            Ticker::BlobDbGcBytesRelocated,
        ];
        let counter = |ticker: Ticker| (ticker.name().to_owned(), self.options.get_ticker_count(ticker));
        let beneath = paced::counted();
        Counts {
            mode: format!("RocksDB {}, direct I/O{}", self.version, self.emulated),
            tells_of_flash: beneath.iter().any(|io| io.tier == FLASH),
            io: io(&self.options).into_iter().chain(beneath).collect(),
            has_fast_files: self.fast_files,
            counters: parts.into_iter().map(counter).collect(),
            ..Counts::default()
        }
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        Ok(self.db.flush_wal(true)?)
    }
}
