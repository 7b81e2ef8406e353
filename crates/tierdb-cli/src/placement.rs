//! What of a store is on which tier, and why: for engines that move keys between the tiers, from their figures.

use crate::text::grouped;
use tierdb::History;
use tierdb_base::ByteSize;
use tierdb_engine::Stats;

/// Figures that are told here, and by no row of their own.
const TOLD: [&str; 35] = [
    "keys_fast",
    "copies_fast",
    "tombstones_fast",
    "keys_flash",
    "tables",
    "reads_fast",
    "reads_fast_cached",
    "reads_fast_tables",
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
    "flash_budget_bytes_per_day",
    "flash_budget_spent_bytes",
    "flash_budget_left_bytes",
    "flash_budget_holds_back_migration",
];

/// Names and what they are.
type Rows = Vec<(&'static str, String)>;

/// Whether the figure `name` of a store of `engine` is told here.
pub fn tells(engine: &str, name: &str) -> bool {
    has(engine) && TOLD.contains(&name)
}

fn has(engine: &str) -> bool {
    engine == "slab"
}

/// What is where now, and what was moved since the open; nothing of an engine that moves no keys.
pub fn rows(stats: &Stats) -> Rows {
    if !has(stats.engine) {
        return Vec::new();
    }
    let figure = |name: &str| stats.figure(name);
    let mut rows = kept(&figure);
    rows.extend(moved(&figure));
    rows.push(budget(&figure));
    rows
}

/// What a store of `engine` had moved before, and why; nothing of one that moves no keys.
pub fn rows_before(engine: &str, history: &History) -> Rows {
    if has(engine) { moved(&|name| history.figure(name)) } else { Vec::new() }
}

/// What is on which tier.
fn kept(figure: &dyn Fn(&str) -> Option<u64>) -> Rows {
    let number = |name: &str| grouped(figure(name).unwrap_or(0));
    vec![
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
    ]
}

/// Who served reads, how popular keys are, and what was moved for that.
fn moved(figure: &dyn Fn(&str) -> Option<u64>) -> Rows {
    let count = |name: &str| figure(name).unwrap_or(0);
    let number = |name: &str| grouped(count(name));
    let cached = count("reads_fast_cached");
    let [dram, fast, tables, flash] =
        ["reads_cached", "reads_fast", "reads_fast_tables", "reads_flash"].map(count);
    let fast = fast.saturating_sub(cached).saturating_add(tables);
    let reads = [dram.saturating_add(cached), fast, flash];
    let all = reads.into_iter().fold(0, u64::saturating_add);
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
    let written = count("table_bytes_written");
    vec![
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
                "{} keys in {} migrations ({} were held back), which wrote {} tables and replaced {}: {}, {} a key",
                number("demoted_keys"),
                number("migrations"),
                number("migrations_held_back"),
                number("tables_written"),
                number("tables_replaced"),
                ByteSize(written),
                ByteSize(written / count("demoted_keys").max(1))
            ),
        ),
        (
            "copied to the fast tier",
            format!("{} keys; {} copies dropped again", number("promoted_keys"), number("dropped_copies")),
        ),
    ]
}

/// What may be written to flash.
fn budget(figure: &dyn Fn(&str) -> Option<u64>) -> (&'static str, String) {
    let count = |name: &str| figure(name).unwrap_or(0);
    let size = |name: &str| ByteSize(count(name)).to_string();
    let budget = match figure("flash_budget_bytes_per_day") {
        None => "none".into(),
        Some(_) => format!(
            "{} a day; {} spent, {} left now; {}",
            size("flash_budget_bytes_per_day"),
            size("flash_budget_spent_bytes"),
            size("flash_budget_left_bytes"),
            match count("flash_budget_holds_back_migration") {
                0 => "migration is not held back",
                _ => "migration is held back",
            },
        ),
    };
    ("flash write budget", budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_told_of_an_engine_that_moves_keys() {
        let mut stats = Stats {
            engine: "slab",
            counters: vec![
                ("reads_cached", 1),
                ("reads_fast", 3),
                ("reads_fast_tables", 1),
                ("reads_fast_cached", 1),
                ("reads_flash", 3),
                ("migrations_held_back", 7),
                ("demoted_keys", 2),
                ("table_bytes_written", 6 << 10),
            ],
            gauges: vec![
                ("keys_fast", 1200),
                ("flash_budget_bytes_per_day", 24 << 30),
                ("flash_budget_holds_back_migration", 1),
            ],
            ..Stats::default()
        };
        let row = |stats: &Stats, name: &str| {
            rows(stats).into_iter().find(|(of, _)| *of == name).map(|(_, what)| what).expect(name)
        };
        assert!(row(&stats, "keys on the fast tier").starts_with("1,200, "));
        assert_eq!(
            row(&stats, "reads served by"),
            "DRAM 25.0 %, fast tier 37.5 %, flash 37.5 %; 0 found nothing"
        );
        let budget = "24 GiB a day; 0 B spent, 0 B left now; migration is held back";
        assert_eq!(row(&stats, "flash write budget"), budget);
        let moved = row(&stats, "moved to flash");
        assert!(moved.contains("(7 were held back)") && moved.ends_with(": 6 KiB, 3 KiB a key"), "{moved}");
        assert!(tells("slab", "keys_fast") && !tells("slab", "partitions"));
        stats.gauges.clear();
        assert_eq!(row(&stats, "flash write budget"), "none");
        stats.engine = "valuelog";
        assert!(rows(&stats).is_empty() && !tells("valuelog", "keys_fast"));
    }
}
