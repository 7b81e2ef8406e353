//! `stat`: a store's statistics, for people and as JSON.

use crate::placement;
use crate::text::grouped;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};
use tierdb_base::{ByteSize, TierRole};
use tierdb_engine::{CacheStats, IoStats, LatencyStats, Stats, TierStats};

/// Prints the statistics as an indented list, without what is zero.
pub fn write_table(stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(table(stats).as_bytes())
}

/// Prints the statistics as one JSON object.
pub fn write_json(stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", as_object(stats))
}

/// A list under construction: names on the left, what they are on the right.
struct List(String);

impl List {
    fn heading(&mut self, text: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        let _ = writeln!(self.0, "{text}");
    }

    fn row(&mut self, name: &str, what: &str) {
        let _ = writeln!(self.0, "  {:<25} {what}", name.replace('_', " "));
    }

    fn size_row(&mut self, name: &str, bytes: u64) {
        self.row(name, &ByteSize(bytes).to_string());
    }

    /// Sizes of parts; those that are not there are left out.
    fn part_rows(&mut self, parts: &[(&str, u64)]) {
        for (part, bytes) in parts.iter().filter(|(_, bytes)| *bytes > 0) {
            self.size_row(part, *bytes);
        }
    }
}

fn table(stats: &Stats) -> String {
    let mut list = List(String::new());
    list.heading("store");
    list.row("engine", stats.engine);
    list.row("mode", &stats.mode);
    let about = if stats.keys_estimated { "about " } else { "" };
    list.row("keys", &format!("{about}{}", grouped(stats.keys)));
    if let Some(cause) = &stats.poisoned {
        list.row("read-only", cause);
    }
    for tier in &stats.tiers {
        tier_rows(&mut list, tier);
    }
    list.heading("memory");
    let in_memory: u64 = stats.memory.iter().map(|(_, bytes)| bytes).sum();
    list.row("total", &of(in_memory, stats.memory_budget));
    list.part_rows(&stats.memory);
    cache_rows(&mut list, &stats.cache, stats.write_buffer_hits);
    let placement = placement::rows(stats);
    if !placement.is_empty() {
        list.heading("placement");
        placement.iter().for_each(|(name, what)| list.row(name, what));
    }
    list.heading("since this open");
    list.size_row("written by callers", stats.user_bytes_written);
    let amplification = stats.write_amplification().map(|factor| format!("{factor:.2}"));
    list.row("write amplification", amplification.as_deref().unwrap_or("nothing written yet"));
    list.row("writers held back", &duration(stats.stall_ns));
    let more = stats.counters.iter().filter(|(name, _)| !placement::tells(stats, name));
    for (name, count) in stats.operations.iter().chain(more).filter(|(_, count)| *count > 0) {
        let (name, count) = counted(name, *count);
        list.row(name, &count);
    }
    if stats.latencies.iter().any(|(_, latency)| latency.count > 0) {
        list.heading("latency                     count       mean        p50        p99        max");
        for (name, latency) in stats.latencies.iter().filter(|(_, latency)| latency.count > 0) {
            list.row(name, &latency_columns(latency));
        }
    }
    list.0
}

/// A counter for people: the suffix of its name says what it counts.
fn counted(name: &str, count: u64) -> (&str, String) {
    if let Some(what) = name.strip_suffix("_ns") {
        (what, duration(count))
    } else if name.ends_with("_bytes") {
        (name, ByteSize(count).to_string())
    } else {
        (name, grouped(count))
    }
}

fn tier_rows(list: &mut List, tier: &TierStats) {
    list.heading(&format!("{} {}", tier.role, tier.path));
    list.row("medium", &tier.medium);
    list.row("used", &of(tier.used, tier.capacity));
    list.part_rows(&tier.parts);
    for (cause, io) in tier.io.iter().filter(|(_, io)| *io != IoStats::default()) {
        let text = format!(
            "{} in {} reads, {} in {} writes, {} syncs",
            ByteSize(io.read_bytes),
            grouped(io.reads),
            ByteSize(io.written_bytes),
            grouped(io.writes),
            grouped(io.syncs)
        );
        list.row(&format!("{cause} I/O"), &text);
    }
}

fn cache_rows(list: &mut List, cache: &CacheStats, write_buffer_hits: u64) {
    list.heading("cache");
    list.row("used", &of(cache.bytes, cache.capacity));
    list.row("entries", &grouped(cache.entries));
    let ratio = hit_ratio(cache).map(|ratio| format!("{:.1} %", ratio * 100.0));
    list.row("hit ratio", ratio.as_deref().unwrap_or("no reads yet"));
    list.row("hits, misses", &format!("{}, {}", grouped(cache.hits), grouped(cache.misses)));
    list.row("evictions", &grouped(cache.evictions));
    list.row("write buffer hits", &grouped(write_buffer_hits));
}

fn of(used: u64, capacity: u64) -> String {
    let percent = if capacity == 0 { 0.0 } else { used as f64 * 100.0 / capacity as f64 };
    format!("{} of {} ({percent:.1} %)", ByteSize(used), ByteSize(capacity))
}

fn hit_ratio(cache: &CacheStats) -> Option<f64> {
    let reads = cache.hits.saturating_add(cache.misses);
    (reads > 0).then(|| cache.hits as f64 / reads as f64)
}

fn latency_columns(latency: &LatencyStats) -> String {
    let LatencyStats { count, mean_ns, p50_ns, p99_ns, max_ns } = *latency;
    let mut columns = format!("{:>7}", grouped(count));
    for ns in [mean_ns, p50_ns, p99_ns, max_ns] {
        let _ = write!(columns, "{:>11}", duration(ns));
    }
    columns
}

/// A duration of `ns` nanoseconds with the unit that suits it.
fn duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", seconds * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

fn as_object(stats: &Stats) -> Value {
    json!({
        "engine": stats.engine,
        "mode": stats.mode,
        "keys": stats.keys,
        "keys_estimated": stats.keys_estimated,
        "memory": named(&stats.memory, |bytes| (*bytes).into()),
        "memory_budget": stats.memory_budget,
        "tiers": stats.tiers.iter().map(tier_object).collect::<Vec<_>>(),
        "cache": {
            "hits": stats.cache.hits,
            "misses": stats.cache.misses,
            "hit_ratio": hit_ratio(&stats.cache),
            "entries": stats.cache.entries,
            "bytes": stats.cache.bytes,
            "capacity": stats.cache.capacity,
            "evictions": stats.cache.evictions,
        },
        "write_buffer_hits": stats.write_buffer_hits,
        "user_bytes_written": stats.user_bytes_written,
        "write_amplification": stats.write_amplification(),
        "operations": named(&stats.operations, |count| (*count).into()),
        "latencies": named(&stats.latencies, latency_object),
        "stall_ns": stats.stall_ns,
        "counters": named(&stats.counters, |count| (*count).into()),
        "read_only_because": stats.poisoned,
    })
}

fn tier_object(tier: &TierStats) -> Value {
    json!({
        "role": match tier.role {
            TierRole::Fast => "fast",
            TierRole::Flash => "flash",
        },
        "path": tier.path,
        "medium": tier.medium,
        "capacity": tier.capacity,
        "used": tier.used,
        "parts": named(&tier.parts, |bytes| (*bytes).into()),
        "io": named(&tier.io, io_object),
    })
}

fn io_object(io: &IoStats) -> Value {
    json!({
        "reads": io.reads,
        "read_bytes": io.read_bytes,
        "writes": io.writes,
        "written_bytes": io.written_bytes,
        "syncs": io.syncs,
    })
}

fn latency_object(latency: &LatencyStats) -> Value {
    json!({
        "count": latency.count,
        "mean_ns": latency.mean_ns,
        "p50_ns": latency.p50_ns,
        "p99_ns": latency.p99_ns,
        "max_ns": latency.max_ns,
    })
}

/// An object of named things; names become snake_case.
fn named<T>(things: &[(&'static str, T)], value: impl Fn(&T) -> Value) -> Value {
    let fields = things.iter().map(|(name, thing)| (snake(name), value(thing)));
    Value::Object(fields.collect::<Map<_, _>>())
}

fn snake(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> Stats {
        Stats {
            engine: "valuelog",
            mode: "one plain SSD".into(),
            keys: 1234,
            memory: vec![("value cache", 2048), ("index", 1024)],
            memory_budget: 64 << 20,
            tiers: vec![TierStats {
                role: TierRole::Flash,
                path: "/store".into(),
                medium: "file, direct I/O".into(),
                capacity: 1 << 30,
                used: 1 << 20,
                parts: vec![("values", 1 << 20)],
                io: vec![("reclaim", IoStats { writes: 3, written_bytes: 3000, ..IoStats::default() })],
            }],
            cache: CacheStats { hits: 3, misses: 1, ..CacheStats::default() },
            user_bytes_written: 1000,
            operations: vec![("puts", 12)],
            latencies: vec![("put", LatencyStats { count: 12, mean_ns: 1500, ..LatencyStats::default() })],
            stall_ns: 2_500_000,
            ..Stats::default()
        }
    }

    #[test]
    fn the_table_shows_where_the_data_is_and_what_it_cost() {
        let text = table(&stats());
        for row in [
            "flash tier /store\n",
            "  used                      1 MiB of 1 GiB (0.1 %)\n",
            "  values                    1 MiB\n",
            "  reclaim I/O               0 B in 0 reads, 2.93 KiB in 3 writes, 0 syncs\n",
            "  hit ratio                 75.0 %\n",
            "  write amplification       3.00\n",
            "  writers held back         2.5 ms\n",
            "  put                            12     1.5 us          0          0          0\n",
            "  total                     3 KiB of 64 MiB (0.0 %)\n",
        ] {
            assert!(text.contains(row), "{row:?} is not in\n{text}");
        }
        let counters = vec![("log_blocks", 2000), ("log_bytes", 4 << 20), ("log_stall_ns", 1_500_000)];
        let counted = table(&Stats { counters, ..stats() });
        for row in [
            "  log blocks                2,000\n",
            "  log bytes                 4 MiB\n",
            "  log stall                 1.5 ms\n",
        ] {
            assert!(counted.contains(row), "{row:?} is not in\n{counted}");
        }
        let long = Stats { operations: vec![("a name of more than its column", 1)], ..stats() };
        assert!(table(&long).contains("  a name of more than its column 1\n"));
        assert!(!table(&Stats { counters: vec![("never", 0)], ..stats() }).contains("never"));
        assert!(text.contains("  keys                      1,234\n"), "{text}");
        let estimated = table(&Stats { keys_estimated: true, ..stats() });
        assert!(estimated.contains("  keys                      about 1,234\n"), "{estimated}");
        assert!(table(&Stats::default()).contains("nothing written yet"));
    }

    #[test]
    fn the_manual_names_every_field() {
        let manual = include_str!("../../../docs/cli.md");
        let object = as_object(&stats());
        let inner = [&object["tiers"][0], &object["cache"], &object["latencies"]["put"]];
        let io = &object["tiers"][0]["io"]["reclaim"];
        for fields in [&object, io].into_iter().chain(inner).filter_map(Value::as_object) {
            for name in fields.keys() {
                let known = manual.contains(&format!("`{name}`")) || manual.contains(&format!("`{name}[]`"));
                assert!(known, "{name} is not in the manual");
            }
        }
    }

    #[test]
    fn json_has_stable_names_and_null_where_nothing_is_known() {
        let object = as_object(&stats());
        assert_eq!(object["memory"]["value_cache"], 2048);
        assert_eq!(object["tiers"][0]["io"]["reclaim"]["written_bytes"], 3000);
        assert_eq!(object["write_amplification"], 3.0);
        assert_eq!(object["cache"]["hit_ratio"], 0.75);
        let empty = as_object(&Stats::default());
        assert!(empty["write_amplification"].is_null() && empty["cache"]["hit_ratio"].is_null());
        assert!(empty["read_only_because"].is_null());
    }
}
