//! What of a store is on which tier, and why: for engines that move keys between the tiers, from their counters.

use crate::text::grouped;
use tierdb_base::ByteSize;
use tierdb_engine::Stats;

/// Counters that are told here, and by no row of their own.
const TOLD: [&str; 34] = [
    "keys_fast",
    "copies_fast",
    "tombstones_fast",
    "keys_flash",
    "tables",
    "reads_fast",
    "reads_cached",
    "reads_flash",
    "reads_missing",
    "tracked_clock_0",
    "tracked_clock_1",
    "tracked_clock_2",
    "tracked_clock_3",
    "tracked_clock_4",
    "tracked_clock_5",
    "tracked_clock_6",
    "tracked_clock_7",
    "tracked_on_flash",
    "tracker_capacity",
    "pinned_pct",
    "copied_pct",
    "migrations",
    "migrations_held_back",
    "demoted_keys",
    "promoted_keys",
    "dropped_copies",
    "tables_written",
    "tables_replaced",
    "table_bytes_written",
    "table_bytes_per_demoted_key",
    "flash_budget_bytes_per_day",
    "flash_budget_spent_bytes",
    "flash_budget_left_bytes",
    "flash_budget_holds_back_migration",
];

/// Whether [`rows`] tells of the counter `name` of this store.
pub fn tells(stats: &Stats, name: &str) -> bool {
    has(stats) && TOLD.contains(&name)
}

fn has(stats: &Stats) -> bool {
    stats.engine == "slab"
}

/// Names and what they are; nothing of an engine that moves no keys.
pub fn rows(stats: &Stats) -> Vec<(&'static str, String)> {
    if !has(stats) {
        return Vec::new();
    }
    let count = |name: &str| stats.counter(name).unwrap_or(0);
    let number = |name: &str| grouped(count(name));
    let size = |name: &str| ByteSize(count(name)).to_string();
    let reads = ["reads_cached", "reads_fast", "reads_flash"].map(count);
    let all: u64 = reads.iter().sum();
    let [dram, fast, flash] =
        reads.map(|served| format!("{:.1} %", 100.0 * served as f64 / all.max(1) as f64));
    let served = match all {
        0 => "no reads yet".into(),
        _ => {
            format!("DRAM {dram}, fast tier {fast}, flash {flash}; {} found nothing", number("reads_missing"))
        }
    };
    let clocks = TOLD.into_iter().filter(|name| name.starts_with("tracked_clock_")).map(number);
    let clocks: Vec<String> = clocks.collect();
    let mut rows = vec![
        (
            "keys on the fast tier",
            format!(
                "{}, about {} of them copies of what flash has; {} tombstones",
                number("keys_fast"),
                number("copies_fast"),
                number("tombstones_fast")
            ),
        ),
        ("keys on flash", format!("{} in {} tables", number("keys_flash"), number("tables"))),
        ("reads served by", served),
        (
            "keys by clock 0, 1, … 7",
            format!(
                "{}; {} of them on flash; {} at the most; the most popular {} % stay on the fast tier, of {} % it \
                 has copies",
                clocks.join(", "),
                number("tracked_on_flash"),
                number("tracker_capacity"),
                count("pinned_pct"),
                count("copied_pct")
            ),
        ),
        (
            "moved to flash",
            format!(
                "{} keys in {} migrations, which wrote {} tables and replaced {}: {}, {} a key",
                number("demoted_keys"),
                number("migrations"),
                number("tables_written"),
                number("tables_replaced"),
                size("table_bytes_written"),
                size("table_bytes_per_demoted_key")
            ),
        ),
        (
            "copied to the fast tier",
            format!("{} keys; {} copies dropped again", number("promoted_keys"), number("dropped_copies")),
        ),
    ];
    let budget = match stats.counter("flash_budget_bytes_per_day") {
        None => "none".into(),
        Some(_) => format!(
            "{} a day; {} spent, {} left now; {}, {} times so far",
            size("flash_budget_bytes_per_day"),
            size("flash_budget_spent_bytes"),
            size("flash_budget_left_bytes"),
            match count("flash_budget_holds_back_migration") {
                0 => "migration is not held back",
                _ => "migration is held back",
            },
            number("migrations_held_back")
        ),
    };
    rows.push(("flash write budget", budget));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_told_of_an_engine_that_moves_keys() {
        let mut stats = Stats {
            engine: "slab",
            counters: vec![
                ("keys_fast", 1200),
                ("reads_cached", 1),
                ("reads_flash", 3),
                ("flash_budget_bytes_per_day", 24 << 30),
                ("flash_budget_holds_back_migration", 1),
                ("migrations_held_back", 7),
            ],
            ..Stats::default()
        };
        let row = |stats: &Stats, name: &str| {
            rows(stats).into_iter().find(|(of, _)| *of == name).map(|(_, what)| what).expect(name)
        };
        assert!(row(&stats, "keys on the fast tier").starts_with("1,200, "));
        assert_eq!(
            row(&stats, "reads served by"),
            "DRAM 25.0 %, fast tier 0.0 %, flash 75.0 %; 0 found nothing"
        );
        let budget = "24 GiB a day; 0 B spent, 0 B left now; migration is held back, 7 times so far";
        assert_eq!(row(&stats, "flash write budget"), budget);
        assert!(tells(&stats, "keys_fast") && !tells(&stats, "partitions"));
        stats.counters.clear();
        assert_eq!(row(&stats, "flash write budget"), "none");
        stats.engine = "valuelog";
        assert!(rows(&stats).is_empty() && !tells(&stats, "keys_fast"));
    }
}
