//! What a store says about itself.

use crate::core::{Core, Moving};
use crate::storage::Appender;
use crate::word::Place;
use parking_lot::Mutex;
use tierdb_base::TierRole;
use tierdb_device::Dir;
use tierdb_engine::{IoStats, Stats, TierStats};
use tierdb_pmem::Pool;

impl<P: Pool, D: Dir> Core<P, D> {
    /// Bytes of DRAM by part.
    pub fn memory_parts(&self) -> Vec<(&'static str, u64)> {
        let flash: u64 = self.storage.devices().iter().map(|device| device.memory_bytes()).sum();
        // A logged pool is DRAM; of one that is memory itself, nothing is.
        let pages = self.layout.first_page() + self.pages.used();
        let pool = if self.ordered { pages * crate::pages::PAGE } else { 0 };
        let appender = |of: &Mutex<Appender<D, Moving>>| {
            of.try_lock().map_or(self.layout.chunk_bytes, |appender| appender.memory_bytes())
        };
        let collect = self
            .collect
            .try_lock()
            .map_or(2 * self.layout.chunk_bytes, |collecting| collecting.memory_bytes());
        vec![
            ("pool image", pool),
            ("index search layer", self.index.memory_bytes()),
            ("hsit", self.hsit.memory_bytes()),
            ("validity bitmaps", flash),
            ("snapshot versions", self.versions.memory_bytes()),
            ("deleted keys", self.deleted.lock().memory_bytes()),
            ("long values", self.long.memory_bytes()),
            ("reclaim buffer", appender(&self.reclaim)),
            ("rewrite buffer", appender(&self.rewrite)),
            ("collection buffers", collect),
            ("value cache, second level", self.second_level.memory_bytes()),
            ("value cache", self.cache.memory_bytes()),
        ]
    }

    /// Keys that have a value: those in the index, but for deleted ones that are still there.
    fn keys(&self) -> u64 {
        let deleted = self.deleted.lock();
        let without = deleted.entries().filter(|entry| self.hsit.word(*entry).place() == Place::None);
        self.index.keys().saturating_sub(without.count() as u64)
    }

    /// The store's statistics.
    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        let mut tiers = vec![TierStats {
            role: TierRole::Fast,
            path: self.pool.name(),
            medium: self.pool.domain().to_string(),
            capacity: self.pool.len(),
            used: self.layout.first_page() * crate::pages::PAGE + self.pages.used() * crate::pages::PAGE,
            parts: vec![
                ("write buffer, used", self.rings.used()),
                ("write buffer, capacity", self.rings.ring_bytes() * u64::from(self.layout.rings)),
                ("key index", self.index.pool_bytes()),
                ("hsit", self.hsit.pool_bytes()),
                ("value cache, second level", self.second_level.bytes()),
            ],
            io: IoStats::of_fast(&self.fast_meter, &*self.pool),
        }];
        tiers.extend(self.storage.devices().iter().map(|device| {
            let usage = device.usage();
            TierStats {
                role: TierRole::Flash,
                path: device.name().to_string(),
                medium: device.medium().to_owned(),
                capacity: device.capacity(),
                used: usage.used,
                parts: vec![
                    ("live records, about", usage.live),
                    ("parts of long values", usage.parts),
                    ("quarantined", usage.quarantined),
                    ("file length", usage.file),
                ],
                io: IoStats::by_cause(device.meter()),
            }
        }));
        let mut counters = vec![
            ("second_level_hits", c.second_level_hits.get()),
            ("second_level_copies", self.second_level.kept()),
            ("flash_reads", c.flash_reads.get()),
            ("stalls", c.stalls.get()),
            ("reclaimed_records", c.reclaimed_records.get()),
            ("absorbed_records", c.absorbed_records.get()),
            ("cached_by_reclaim", c.cached_by_reclaim.get()),
            ("collected_chunks", c.collected_chunks.get()),
            ("collected_records", c.collected_records.get()),
            ("rewritten_ranges", c.rewritten_ranges.get()),
            ("damaged_records", c.damaged_records.get()),
            ("quarantined_chunks", c.quarantined_chunks.get()),
        ];
        counters.extend(self.pool.counters());
        Stats {
            engine: "valuelog",
            mode: self.mode.clone(),
            keys: self.keys(),
            keys_estimated: false,
            memory: self.memory_parts(),
            memory_budget: self.options.memory,
            tiers,
            cache: self.cache.stats(),
            write_buffer_hits: c.ring_hits.get(),
            user_bytes_written: c.user_bytes.get(),
            operations: vec![
                ("get", c.gets.get()),
                ("put", c.puts.get()),
                ("delete", c.deletes.get()),
                ("batch", c.batches.get()),
                ("cursor", c.cursors.get()),
            ],
            latencies: self.latencies.stats(),
            stall_ns: c.stall_ns.get(),
            counters,
            gauges: vec![("opened_from_image", c.opened_from_image.get())],
            poisoned: self.gate.latch().check().err().map(|error| error.to_string()),
        }
    }
}
