//! What an engine counts.

use tierdb_sync::Counter;

/// Counters since open. Each is exact once the threads that add to it have stopped.
#[derive(Default)]
pub struct Counters {
    pub gets: Counter,
    pub puts: Counter,
    pub deletes: Counter,
    pub batches: Counter,
    pub cursors: Counter,
    pub user_bytes: Counter,
    /// Gets answered from the write buffer.
    pub ring_hits: Counter,
    /// Records read from flash because the cache had no copy.
    pub flash_reads: Counter,
    /// Nanoseconds that writers waited for space.
    pub stall_ns: Counter,
    pub stalls: Counter,
    pub reclaimed_records: Counter,
    /// Records in the write buffer that needed no move: replaced before they were reclaimed.
    pub absorbed_records: Counter,
    /// Of those reclaimed, the ones that the value cache took along.
    pub cached_by_reclaim: Counter,
    pub collected_chunks: Counter,
    pub collected_records: Counter,
    /// Ranges of scans that were copied to be brought together, those that still wait for their chunk to fill included.
    pub rewritten_ranges: Counter,
    pub damaged_records: Counter,
    pub quarantined_chunks: Counter,
    pub second_level_hits: Counter,
    /// 1 if the store was opened from the image that a close had left.
    pub opened_from_image: Counter,
}
