//! `stat`: a store's statistics, for people and as JSON.

use crate::placement;
use crate::text::{counted as several, grouped};
use indicatif::HumanDuration;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tierdb::History;
use tierdb_base::ByteSize;
use tierdb_engine::{CacheStats, IoStats, LatencyStats, Stats, TierStats};

/// Prints the statistics, and what was counted before the open, as an indented list, without what is zero.
pub fn write_table(stats: &Stats, history: Option<&History>, out: &mut dyn Write) -> io::Result<()> {
    let mut list = table(stats);
    history.into_iter().for_each(|history| history_rows(&mut list, stats.engine, history));
    out.write_all(list.0.as_bytes())
}

/// Prints the same as one JSON object.
pub fn write_json(stats: &Stats, history: Option<&History>, out: &mut dyn Write) -> io::Result<()> {
    let mut object = as_object(stats);
    object["history"] = history.map_or(Value::Null, history_object);
    writeln!(out, "{object}")
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

    /// Figures of a store of `engine`; those that are told elsewhere, or not there, are left out.
    fn count_rows<'n>(&mut self, engine: &str, figures: impl Iterator<Item = (&'n str, u64)>) {
        for (name, count) in figures.filter(|(name, count)| *count > 0 && !placement::tells(engine, name)) {
            let (name, count) = counted(name, count);
            self.row(name, &count);
        }
    }

    fn io_row(&mut self, of: &str, io: &IoStats) {
        let text = format!(
            "{} in {} reads, {} in {} writes, {} syncs",
            ByteSize(io.read_bytes),
            grouped(io.reads),
            ByteSize(io.written_bytes),
            grouped(io.writes),
            grouped(io.syncs)
        );
        self.row(&format!("{of} I/O"), &text);
    }
}

fn table(stats: &Stats) -> List {
    let mut list = List(String::new());
    list.heading("store");
    list.row("engine", stats.engine);
    list.row("mode", &stats.mode);
    let about = if stats.keys_estimated { "about " } else { "" };
    list.row("keys", &format!("{about}{}", grouped(stats.keys)));
    list.count_rows(stats.engine, stats.gauges.iter().copied());
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
    list.row("write amplification", &factor(stats.write_amplification()));
    list.row("writers held back", &duration(stats.stall_ns));
    let figures = stats.operations.iter().chain(&stats.counters);
    list.count_rows(stats.engine, figures.copied());
    if stats.latencies.iter().any(|(_, latency)| latency.count > 0) {
        list.heading("latency                     count       mean        p50        p99        max");
        for (name, latency) in stats.latencies.iter().filter(|(_, latency)| latency.count > 0) {
            list.row(name, &latency_columns(latency));
        }
    }
    list
}

/// What was counted before the open.
fn history_rows(list: &mut List, engine: &str, history: &History) {
    list.heading("before this open");
    // The number may be anything.
    let closed = UNIX_EPOCH.checked_add(Duration::from_secs(history.closed));
    let since = closed.and_then(|closed| SystemTime::now().duration_since(closed).ok());
    let ended = since.map_or("in the future".into(), |since| format!("{} ago", HumanDuration(since)));
    let open = HumanDuration(Duration::from_nanos(history.open_ns));
    let uses = several(history.uses, "time", "times");
    list.row("used", &format!("{uses}, open for {open} in all; the last one ended {ended}"));
    list.size_row("written by callers", history.user_bytes_written);
    list.row("write amplification", &factor(history.write_amplification()));
    list.row("writers held back", &duration(history.stall_ns));
    let cache =
        CacheStats { hits: history.cache_hits, misses: history.cache_misses, ..CacheStats::default() };
    hit_rows(list, &cache, history.write_buffer_hits);
    placement::rows_before(engine, history).iter().for_each(|(name, what)| list.row(name, what));
    let figures = history.operations.iter().chain(&history.counters);
    list.count_rows(engine, figures.map(|(name, count)| (name.as_str(), *count)));
    for (role, by_cause) in &history.io {
        for (cause, io) in by_cause {
            list.io_row(&format!("{role} {cause}"), &(*io).into());
        }
    }
}

fn factor(factor: Option<f64>) -> String {
    factor.map_or("nothing written yet".into(), |factor| format!("{factor:.2}"))
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
        list.io_row(cause, io);
    }
}

fn cache_rows(list: &mut List, cache: &CacheStats, write_buffer_hits: u64) {
    list.heading("cache");
    list.row("used", &of(cache.bytes, cache.capacity));
    list.row("entries", &grouped(cache.entries));
    list.row("evictions", &grouped(cache.evictions));
    hit_rows(list, cache, write_buffer_hits);
}

fn hit_rows(list: &mut List, cache: &CacheStats, write_buffer_hits: u64) {
    let ratio = hit_ratio(cache).map(|ratio| format!("{:.1} %", ratio * 100.0));
    list.row("hit ratio", ratio.as_deref().unwrap_or("no reads yet"));
    list.row("hits, misses", &format!("{}, {}", grouped(cache.hits), grouped(cache.misses)));
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
        "gauges": named(&stats.gauges, |figure| (*figure).into()),
        "read_only_because": stats.poisoned,
    })
}

fn history_object(history: &History) -> Value {
    let mut object = json!(history);
    object["write_amplification"] = history.write_amplification().into();
    object
}

fn tier_object(tier: &TierStats) -> Value {
    json!({
        "role": tier.role.name(),
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
    use tierdb_base::TierRole;

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
        let text = table(&stats()).0;
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
        let counted = table(&Stats { counters, ..stats() }).0;
        for row in [
            "  log blocks                2,000\n",
            "  log bytes                 4 MiB\n",
            "  log stall                 1.5 ms\n",
        ] {
            assert!(counted.contains(row), "{row:?} is not in\n{counted}");
        }
        let long = Stats { operations: vec![("a name of more than its column", 1)], ..stats() };
        assert!(table(&long).0.contains("  a name of more than its column 1\n"));
        assert!(!table(&Stats { counters: vec![("never", 0)], ..stats() }).0.contains("never"));
        assert!(text.contains("  keys                      1,234\n"), "{text}");
        let estimated = table(&Stats { keys_estimated: true, ..stats() }).0;
        assert!(estimated.contains("  keys                      about 1,234\n"), "{estimated}");
        assert!(table(&Stats::default()).0.contains("nothing written yet"));
    }

    fn history() -> History {
        let mut history = History::default();
        (history.uses, history.open_ns, history.user_bytes_written) = (2, 7_200_000_000_000, 1000);
        history.operations.insert("put".into(), 12);
        history.counters.extend([("migrations".to_owned(), 3), ("demoted_keys".to_owned(), 9)]);
        history.gauges.insert("tracked_clock_2".into(), 77);
        let mut io = tierdb::IoSum::default();
        (io.writes, io.written_bytes) = (3, 4000);
        history.io.entry("flash".into()).or_default().insert("migration".into(), io);
        history
    }

    #[test]
    fn what_was_counted_before_the_open_is_told_in_a_part_of_its_own() {
        let mut out = Vec::new();
        write_table(&Stats { engine: "slab", ..stats() }, Some(&history()), &mut out).expect("memory");
        let text = String::from_utf8(out).expect("text");
        let (_, before) = text.split_once("\nbefore this open\n").expect("a part");
        for row in [
            "  used                      2 times, open for 2 hours in all; the last one ended ",
            "  write amplification       4.00\n",
            "  keys by clock 0, 1, … 7   0, 0, 77, 0,",
            "  moved to flash            9 keys in 3 migrations (0 were held back), ",
            "  put                       12\n",
            "  flash migration I/O       0 B in 0 reads, 3.91 KiB in 3 writes, 0 syncs\n",
        ] {
            assert!(before.contains(row), "{row:?} is not in\n{before}");
        }
        assert!(!before.contains("  migrations "), "{before}");
        let mut extreme = history();
        (extreme.closed, extreme.open_ns, extreme.cache_hits) = (u64::MAX, u64::MAX, u64::MAX);
        extreme.cache_misses = u64::MAX;
        extreme.counters.extend(["reads_cached", "reads_fast"].map(|name| (name.to_owned(), u64::MAX)));
        write_table(&Stats { engine: "slab", ..stats() }, Some(&extreme), &mut Vec::new()).expect("memory");
        let mut out = Vec::new();
        write_json(&stats(), Some(&history()), &mut out).expect("memory");
        let object: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(object["history"]["io"]["flash"]["migration"]["written_bytes"], 4000);
        assert_eq!(object["history"]["write_amplification"], 4.0);
        let mut out = Vec::new();
        write_json(&stats(), None, &mut out).expect("memory");
        assert!(serde_json::from_slice::<Value>(&out).expect("JSON")["history"].is_null());
    }

    #[test]
    fn the_manual_names_every_field() {
        let manual = include_str!("../../../docs/cli.md");
        let mut object = as_object(&stats());
        object["history"] = history_object(&history());
        let inner = [&object["tiers"][0], &object["cache"], &object["latencies"]["put"], &object["history"]];
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
