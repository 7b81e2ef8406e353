//! How the engine is set up: sizes and thresholds.

use tierdb_base::{Error, Result, processors};
use tierdb_engine::Background;

/// The write buffer of a store whose log is on the device of its values takes at most this share of the log. With a quarter of 62 MiB A
/// wrote 7 % more bytes than with an eighth, and with a sixteenth 2 % fewer.
const LOG_SHARE: u64 = 8;
/// Where that, or a second level of the value cache, shortens it, rings have at least so many bytes, unless one would have less: records and batches of up to a quarter of a ring go
/// to the write buffer.
const LEAST_RING: u64 = 2 << 20;

/// Sizes and thresholds. Those marked *format* are fixed when the store is created and read back on open.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything the engine holds in DRAM, in bytes; the value cache gets what the rest leaves.
    pub memory: u64,
    /// Bytes of a Value Storage chunk: a power of two, 16 KiB to 4 MiB. Default 512 KiB (PRISM §5.1). *Format.*
    pub chunk_bytes: u64,
    /// Number of write-buffer rings, 1 to 64. Default: twice the processors, at most 16. *Format.*
    pub rings: u32,
    /// Bytes of one ring, a multiple of 4 KiB, at least 16 KiB. *Format.*
    pub ring_bytes: u64,
    /// Ring fill, in percent, at which reclamation starts. Default 75, 10..=90: with 50, as in PRISM §4.3, half of the ring
    /// would hold nothing but for bursts, and fewer values be replaced before they go to flash.
    pub reclaim_pct: u8,
    /// Free share of flash, in percent, below which garbage collection starts. Default 10, 1..=50.
    pub gc_free_pct: u8,
    /// Share of the chunks in use, in percent, of which more may not be garbage: where it is, collection starts though there is room.
    /// Default 60, 10..=100: flash holds about two and a half times the data, and 100 lets it fill up.
    pub gc_garbage_pct: u8,
    /// Chunks' worth of garbage that a directory may have whatever share that is. Default `None`: a sixteenth of its capacity, but 16
    /// to 32.
    pub gc_garbage_chunks: Option<u64>,
    /// Threads for recovery. Default: the processors.
    pub recovery_threads: usize,
    /// Who does background work.
    pub background: Background,
}

impl Options {
    /// Defaults for `memory` bytes of DRAM and a pool of `pool_len` bytes: a third of the pool for the
    /// write buffer, 8 GiB at most, the rest for the index.
    pub fn for_pool(memory: u64, pool_len: u64) -> Self {
        let cores = processors();
        let defaults = Options {
            memory,
            chunk_bytes: 512 << 10,
            rings: (cores * 2).min(16) as u32,
            ring_bytes: 0,
            reclaim_pct: 75,
            gc_free_pct: 10,
            gc_garbage_pct: 60,
            gc_garbage_chunks: None,
            recovery_threads: cores,
            background: Background::Threads,
        };
        defaults.with_write_buffer((pool_len / 3).min(8 << 30))
    }

    /// For a pool that is memory itself, of `pool_len` bytes, where hot values have what the index leaves of it, as a second level of the
    /// value cache: a fifth for the write buffer. Against a third, 3 and 11 % more bytes go to flash where half of the operations are writes
    /// (YCSB A, scrambled and over the keys), and fewer values are read from there where all are reads.
    #[must_use]
    pub fn beside_second_level(self, pool_len: u64) -> Self {
        self.with_write_buffer_of_at_most(pool_len / 5)
    }

    /// For a store whose log, of `log_len` bytes, is on the device of its values: what stays in the write buffer for longer than the log is
    /// kept would be written a third time, to the pool's image; and its memory is better used as cache.
    #[must_use]
    pub fn beside_values(self, log_len: u64) -> Self {
        self.with_write_buffer_of_at_most(log_len / LOG_SHARE)
    }

    fn with_write_buffer_of_at_most(mut self, most: u64) -> Self {
        if self.write_buffer() <= most {
            return self;
        }
        self.rings = self.rings.min((most / LEAST_RING).max(1) as u32);
        self.with_write_buffer(most)
    }

    /// The same with a write buffer of `bytes`, in as many rings as there were, or fewer: they have at least 256 KiB where there are several.
    #[must_use]
    pub fn with_write_buffer(mut self, bytes: u64) -> Self {
        let rings = u64::from(self.rings).min((bytes / (256 << 10)).max(1));
        self.rings = rings as u32;
        self.ring_bytes = (bytes / rings / 4096 * 4096).max(16 << 10);
        self
    }

    /// Bytes of all rings.
    pub fn write_buffer(&self) -> u64 {
        u64::from(self.rings) * self.ring_bytes
    }

    /// Refuses values out of range, naming the field and the range.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, what: &str| if ok { Ok(()) } else { Err(Error::invalid(what)) };
        check(
            self.chunk_bytes.is_power_of_two() && (16 << 10..=4 << 20).contains(&self.chunk_bytes),
            "chunk_bytes must be a power of two from 16 KiB to 4 MiB",
        )?;
        check((1..=64).contains(&self.rings), "rings must be 1 to 64")?;
        check(
            self.ring_bytes >= 16 << 10 && self.ring_bytes.is_multiple_of(4096) && self.ring_bytes < 1 << 40,
            "ring_bytes must be a multiple of 4 KiB, at least 16 KiB",
        )?;
        check((10..=90).contains(&self.reclaim_pct), "reclaim_pct must be 10 to 90")?;
        check((1..=50).contains(&self.gc_free_pct), "gc_free_pct must be 1 to 50")?;
        check((10..=100).contains(&self.gc_garbage_pct), "gc_garbage_pct must be 10 to 100")?;
        check(self.recovery_threads >= 1, "recovery_threads must be at least 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_buffer_goes_by_what_is_beside_it() {
        let of = |rings, pool_len, log_len| {
            let options = Options { rings, ..Options::for_pool(1 << 30, pool_len) };
            options.with_write_buffer(pool_len / 3).beside_values(log_len)
        };
        for rings in [1, 3, 4, 6, 16] {
            for (pool_len, log_len) in [(128 << 20, 64 << 20), (512 << 20, 128 << 20), (32 << 30, 256 << 20)]
            {
                let options = of(rings, pool_len, log_len);
                let most = log_len / LOG_SHARE;
                assert!(options.rings <= rings && options.ring_bytes >= LEAST_RING, "{options:?}");
                assert!(
                    (most - 4096 * u64::from(rings)..=most).contains(&options.write_buffer()),
                    "{options:?}"
                );
            }
            // A third of a small pool is less.
            let small = of(rings, 8 << 20, 64 << 20);
            assert!(small.write_buffer() > (8 << 20) / 3 - 4096 * u64::from(rings), "{small:?}");
        }
        for rings in [1, 4, 16] {
            let over = |pool_len: u64| {
                let options = Options { rings, ..Options::for_pool(1 << 30, pool_len) };
                options.with_write_buffer((pool_len / 3).min(8 << 30)).beside_second_level(pool_len)
            };
            for pool_len in [32 << 20, 1 << 30, 30 << 30] {
                let options = over(pool_len);
                let most = pool_len / 5;
                assert!(
                    (most - 4096 * u64::from(rings)..=most).contains(&options.write_buffer()),
                    "{options:?}"
                );
                assert!(options.rings <= rings && options.ring_bytes >= LEAST_RING, "{options:?}");
            }
            assert!(over(64 << 30).write_buffer() <= 8 << 30, "a fifth would be more");
        }
        // One ring at least, however short the log is.
        assert_eq!(of(16, 128 << 20, 4 << 20).write_buffer(), 512 << 10);
    }
}
