//! What an engine counts.

use tierdb_sync::Counter;

/// Counters since open. Each is exact once the threads that add to it have stopped.
#[derive(Default)]
pub struct Counters {
    pub gets: Counter,
    pub puts: Counter,
    pub deletes: Counter,
    pub batches: Counter,
    /// Keys that batches wrote.
    pub batch_keys: Counter,
    pub cursors: Counter,
    pub user_bytes: Counter,
    /// Reads that the fast tier answered.
    pub fast_hits: Counter,
    /// Of them, those that the object cache had.
    pub fast_cached: Counter,
    /// Reads of keys on flash that the object cache answered.
    pub cache_hits: Counter,
    /// Reads that tables on a fast device answered.
    pub fast_table_hits: Counter,
    /// Reads that flash answered.
    pub flash_hits: Counter,
    /// Reads of keys that are not there.
    pub misses: Counter,
    /// Nanoseconds that writers waited for space.
    pub stall_ns: Counter,
    pub stalls: Counter,
    pub migrations: Counter,
    /// Times that a migration was not made because no more may be written to flash.
    pub held_back: Counter,
    /// Migrations whose victims wait in the level above the first one, and above others that wait.
    pub left_apart: Counter,
    pub left_above: Counter,
    /// Nanoseconds that migrations waited so as not to exceed their rate.
    pub paced_ns: Counter,
    /// Nanoseconds of processor time that choosing what to migrate, and merging it, took.
    pub migration_cpu_ns: Counter,
    /// Keys whose newest version went to flash.
    pub demoted: Counter,
    /// Keys that were copied to the fast tier.
    pub promoted: Counter,
    /// Keys that stayed on the fast tier when a migration wrote them to flash.
    pub cleaned: Counter,
    /// Copies of what flash has that were dropped.
    pub dropped_copies: Counter,
    pub tables_written: Counter,
    pub tables_replaced: Counter,
    /// Of them, those that went to the next level.
    pub merged_down: Counter,
    /// Tables that went there as they are.
    pub moved_down: Counter,
    /// Bytes of entries that stayed in the first level, on a faster device, when their tables were merged into the next one, or came up
    /// from there.
    pub stayed_bytes: Counter,
    /// Entries written to tables.
    pub entries_written: Counter,
    /// Bytes of tables written to flash.
    pub table_bytes: Counter,
    /// Records moved to empty a slab.
    pub moved_records: Counter,
}
