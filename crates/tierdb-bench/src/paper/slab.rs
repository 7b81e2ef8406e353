//! PrismDB: "Efficient Compactions between Storage Tiers with PrismDB", ASPLOS '23, sections 5.3 and 6.
//!
//! There: 100 million keys with values of 1 KB, 8 clients, 10 cores, NVM and QLC flash of 1 : 5, DRAM of a tenth of the
//! data, a tracker for a tenth of the keys, a pinning threshold of 70 %. Here: memory 10 % and fast tier 20 % of the data;
//! the fast tier is byte-addressable memory at the pace of Optane PMem, and flash is slowed to the pace of QLC (391 us
//! a read, Table 1). The paper's NVM is a block device: `slab-device` has its records on one at the pace of Optane (6 us).

use super::view::{At, Column, Drawing, View};
use super::{Defaults, Draft, Experiment, NOT_GIVEN};
use crate::args::{Keys, Scale};
use crate::case::Case;
use crate::failure::Failure;
use crate::keys::Distribution;
use crate::knobs::{Metric, Pinned};
use crate::phase::Phase;
use crate::plan::LEAST_FAST;
use crate::store::Systems;
use clap::ValueEnum;

/// A table or figure of PrismDB's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// Metrics and ways to select ranges: throughput, writes to flash, processor time of migration
    #[value(name = "table4")]
    Combinations,
    /// The part of Table 4 that Figure 7 draws
    #[value(name = "7")]
    Migration,
    /// Throughput against the cost of a gigabyte
    #[value(name = "8")]
    Cost,
    /// YCSB
    #[value(name = "9")]
    Ycsb,
    /// Throughput by skew, YCSB A
    #[value(name = "10")]
    Skew,
    /// Distribution of the latencies of reads, YCSB B
    #[value(name = "11a")]
    Latency,
    /// Promotions over time, YCSB C
    #[value(name = "11b")]
    Promotion,
    /// Throughput by the pinning threshold
    #[value(name = "11c")]
    Pinning,
    /// One level of tables or more, where the fast tier is a small part of the data, YCSB A
    #[value(name = "levels")]
    Levels,
    /// Throughput by partitions, with as many clients
    #[value(name = "11d")]
    Partitions,
}

/// Thousand operations a second of Table 4, for max-unpop, approx-M and precise-M.
const TABLE_4: [(&str, [f64; 3]); 4] = [
    ("rand-2", [167.3, 168.5, 166.7]),
    ("rand-4", [176.0, 176.9, 173.8]),
    ("rand-8", [179.3, 182.4, 175.5]),
    ("exhaustive", [162.2, 179.9, 49.3]),
];
/// What section 5.3.2 says of writes to flash and processor time.
const WRITTEN: [(&str, &str); 6] = [
    ("approx-M, rand-2", "70 GB to flash, CPU 35 %, "),
    ("approx-M, rand-4", "51 to 70 GB, CPU 35 %, "),
    ("approx-M, rand-8", "51 GB, CPU 35 %, "),
    ("approx-M, exhaustive", "45 GB, CPU 35 %, "),
    ("max-unpop, exhaustive", "45 GB, "),
    ("precise-M, exhaustive", "45 GB, CPU nearly doubled, "),
];
/// The last one is not the paper's.
const METRICS: [Metric; 4] = [Metric::MaxUnpop, Metric::ApproxM, Metric::PreciseM, Metric::SampledM];
/// Ranges that are compared; 0 compares all.
const CHOICES: [u32; 4] = [2, 4, 8, 0];
/// Dollars for a gigabyte (Table 1; for TLC section 6.1).
const NVM_COST: f64 = 2.5;
const QLC_COST: f64 = 0.1;
const TLC_COST: f64 = 0.31;
/// Percentages of NVM in Figure 8.
const SHARES: [u32; 4] = [5, 10, 20, 50];
/// Percentages of NVM where levels are compared; the paper has one level from 10 % on (section 4.1).
const SMALL_SHARES: [u32; 3] = [2, 4, 10];
/// Exponents of Figure 10, whose axis has no numbers in the paper's text: 0.99 is its usual one, 0.8 that of Table 2.
const EXPONENTS: [f64; 5] = [0.4, 0.6, 0.8, 0.99, 1.2];
/// Pinning thresholds of Figure 11c, in percent.
const THRESHOLDS: [u8; 6] = [0, 10, 30, 50, 70, 90];
/// Bytes of a table where ranges are selected, so that there are hundreds of them, as in the paper.
const TABLE_BYTES: u64 = 256 << 10;
/// Intervals of Figure 11b.
const INTERVALS: usize = 8;

/// What a figure runs, and how it is shown.
///
/// # Errors
/// `Invalid` for a system that is not there, or sizes that cannot hold the keys.
pub(crate) fn prepare(systems: &Systems, figure: Figure, scale: &Scale) -> Result<Experiment, Failure> {
    let mut draft = Draft::new(systems, scale, figure.defaults());
    for name in draft.names.clone() {
        add(&mut draft, figure, &name)?;
    }
    let seconds = draft.seconds;
    let length = match figure {
        Figure::Ycsb => {
            format!("closed loop; {seconds} s after as long a warm-up, four times as long for B, C, D")
        }
        Figure::Latency => format!("closed loop; {seconds} s after a warm-up of four times as long"),
        Figure::Levels => format!("closed loop; {seconds} s after twice as long a warm-up"),
        Figure::Promotion => format!("closed loop; {INTERVALS} intervals of {seconds} s without warm-up"),
        _ => format!("closed loop; {seconds} s after as long a warm-up"),
    };
    let view = figure.view();
    Ok(Experiment { plan: draft.finish(&view.title, "1024 B", length)?, view })
}

fn selection(choices: u32) -> String {
    if choices == 0 { "exhaustive".to_owned() } else { format!("rand-{choices}") }
}

/// The cases of a figure for one system.
fn add(draft: &mut Draft<'_>, figure: Figure, name: &str) -> Result<(), Failure> {
    match figure {
        Figure::Combinations | Figure::Migration => {
            for metric in METRICS {
                for choices in CHOICES {
                    let drawn = choices == 0 || matches!(metric, Metric::ApproxM | Metric::SampledM);
                    if figure == Figure::Migration && !drawn {
                        continue;
                    }
                    let phases = vec![draft.phase("a", 1.0)];
                    let label = format!("{}, {}", metric.name(), selection(choices));
                    let knobs = &mut draft.case(name, label, 1024, phases)?.setup.knobs;
                    knobs.metric = Some(metric);
                    knobs.choices = Some(choices);
                    knobs.unmerged_pct = Some(0);
                    knobs.table_bytes = Some(TABLE_BYTES);
                }
            }
        }
        Figure::Cost => cost(draft, name)?,
        Figure::Ycsb => {
            let warm = [("a", 1.0), ("b", 4.0), ("c", 4.0), ("f", 1.0), ("d", 4.0), ("e", 1.0)];
            let phases = warm.map(|(workload, warm)| draft.phase(workload, warm)).to_vec();
            own_sizes(draft.case(name, "", 1024, phases)?);
        }
        Figure::Skew => {
            let skewed = EXPONENTS.map(|theta| Phase {
                name: format!("a {theta}"),
                keys: Distribution::Zipfian(theta),
                ..draft.phase("a", 1.0)
            });
            let uniform =
                Phase { name: "a uniform".to_owned(), keys: Distribution::Uniform, ..draft.phase("a", 1.0) };
            let phases = std::iter::once(uniform).chain(skewed).collect();
            own_sizes(draft.case(name, "", 1024, phases)?);
        }
        Figure::Latency => {
            let phases = vec![draft.phase("b", 4.0)];
            own_sizes(draft.case(name, "", 1024, phases)?);
        }
        Figure::Promotion => {
            let cases = [
                ("pinned 70 %", 70, false),
                ("pinned 70 %, promoted by migrations", 70, true),
                ("nothing pinned", 0, false),
            ];
            for (label, pinned, by_migration) in cases {
                let phases = (1..=INTERVALS)
                    .map(|interval| Phase { name: format!("c {interval}"), ..draft.phase("c", 0.0) })
                    .collect();
                // As in the paper, where one threshold is for both: nothing is popular enough to be promoted where nothing is
                // to stay; what is there leaves, too, where the paper would leave it.
                let knobs = &mut draft.case(name, label, 1024, phases)?.setup.knobs;
                knobs.pinned = Some(Pinned::Percent(pinned));
                knobs.copied_pct = Some(pinned);
                knobs.promotes_by_migration = by_migration;
                knobs.unmerged_pct = by_migration.then_some(0);
            }
        }
        Figure::Pinning => {
            let fixed = THRESHOLDS.map(|percent| (format!("pinned {percent} %"), Pinned::Percent(percent)));
            for (label, pinned) in fixed.into_iter().chain([("pinned as sought".to_owned(), Pinned::Sought)])
            {
                let phases = ["a", "b", "c"].map(|workload| draft.phase(workload, 1.0)).to_vec();
                let knobs = &mut draft.case(name, label, 1024, phases)?.setup.knobs;
                knobs.pinned = Some(pinned);
                // As in the paper, a fifth of all keys: as many as the fast tier would hold.
                knobs.tracked_pct = Some(100);
            }
        }
        Figure::Levels => {
            let data = draft.data(1024);
            let shapes = [
                ("one level", 1, Some(0)),
                ("two levels", 2, Some(0)),
                ("one level and level 0", 1, None),
                ("two levels and level 0", 2, None),
            ];
            let cases = SMALL_SHARES.iter().flat_map(|share| shapes.map(|shape| (share, shape)));
            for (percent, (shape, levels, unmerged_pct)) in cases {
                let uniform = Phase {
                    name: "a uniform".to_owned(),
                    keys: Distribution::Uniform,
                    ..draft.phase("a", 2.0)
                };
                let phases = vec![uniform, draft.phase("a", 2.0)];
                let setup = &mut draft.case(name, format!("{percent} %, {shape}"), 1024, phases)?.setup;
                setup.fast_bytes = data / 100 * u64::from(*percent);
                setup.knobs.levels = Some(levels);
                setup.knobs.unmerged_pct = unmerged_pct;
                setup.knobs.table_bytes = Some(TABLE_BYTES);
            }
        }
        Figure::Partitions => {
            let most = draft.threads;
            let mut partitions = 1;
            while partitions <= most {
                draft.threads = partitions;
                let phases = vec![draft.phase("a", 1.0)];
                let label = if partitions == 1 { "partition" } else { "partitions" };
                let case = draft.case(name, format!("{partitions} {label}"), 1024, phases)?;
                case.setup.knobs.partitions = Some(partitions as u32);
                partitions *= 2;
            }
            draft.threads = most;
        }
    }
    Ok(())
}

/// Slabs of a few keys are less than a configuration allows.
fn own_sizes(case: &mut Case) {
    case.setup.knobs.below_least = case.system.starts_with("slab") && case.setup.fast_bytes < LEAST_FAST;
}

/// Of a system over two tiers several shares of NVM, and single tiers where it has them.
///
/// # Errors
/// `Invalid` for a system that is not over two tiers, of which the smaller is byte-addressable.
fn cost(draft: &mut Draft<'_>, name: &str) -> Result<(), Failure> {
    let (on_flash, on_fast) = match name {
        "slab-byte" => (Some("slab-ssd"), Some("slab-byte")),
        "rocksdb-tiers" => (Some("rocksdb"), Some("rocksdb-fast")),
        "tierdb-byte" => (None, None),
        other => {
            return Err(Failure::Invalid(format!(
                "figure 8 is about two tiers: {other} has no fast tier that could be as small as a part of the data; there are \
                 slab-byte, tierdb-byte and rocksdb-tiers"
            )));
        }
    };
    let data = draft.data(1024);
    let phase = draft.phase("a", 1.0);
    if let Some(single) = on_flash {
        for (device, dollars) in [("qlc", QLC_COST), ("tlc", TLC_COST)] {
            let case = draft.case(single, format!("{device} ${dollars:.2}/GB"), 1024, vec![phase.clone()])?;
            case.setup.emulate_flash = Some(device.to_owned());
        }
    }
    for percent in SHARES {
        let share = f64::from(percent) / 100.0;
        let dollars = share * NVM_COST + (1.0 - share) * QLC_COST;
        let case = draft.case(name, format!("het{percent} ${dollars:.2}/GB"), 1024, vec![phase.clone()])?;
        let least = if name == "tierdb-byte" { case.setup.fast_bytes } else { 4 << 20 };
        case.setup.fast_bytes = ((data as f64 * share) as u64).max(least);
        own_sizes(case);
    }
    if let Some(single) = on_fast {
        let case = draft.case(single, format!("nvm ${NVM_COST:.2}/GB"), 1024, vec![phase])?;
        // With heads of records, classes of slots and what is being replaced, all of it stays below the mark.
        case.setup.fast_bytes = (data * 2).max(32 << 20);
    }
    Ok(())
}

/// The paper's throughput for a combination, and what share of the best that is.
fn table_4(_: &str, at: At<'_>) -> Option<String> {
    let (metric, selection) = at.label.split_once(", ")?;
    let column = METRICS.iter().position(|own| own.name() == metric)?;
    let rate = TABLE_4.iter().find(|(own, _)| *own == selection)?.1.get(column)?;
    let best = TABLE_4[2].1[1];
    let also = WRITTEN.iter().find(|(own, _)| *own == at.label).map_or("", |(_, also)| *also);
    Some(format!("{also}{rate:.1} K ops/s, {:.2}", rate / best))
}

/// The text's figures on Figure 8.
fn figure_8(system: &str, at: At<'_>) -> Option<String> {
    let is_rocks = system.starts_with("rocksdb");
    let given = match at.label.split(' ').next()? {
        "het10" if is_rocks => "93 K ops/s with 11 % of NVM and zipfian 0.8 (Table 2)",
        "het10" => {
            "PrismDB: 3.3 times RocksDB on TLC, tail latency of reads half of its; 184 K ops/s with 11 % and zipfian 0.8 (Table 2)"
        }
        "tlc" if is_rocks => "what PrismDB with het10 has 3.3 times",
        "qlc" if is_rocks => "54 K ops/s with zipfian 0.8 (Table 2)",
        "nvm" if is_rocks => "121 K ops/s with zipfian 0.8 (Table 2)",
        _ => NOT_GIVEN,
    };
    Some(given.to_owned())
}

/// The text's figures on Figure 9: those on write-dominated and read-heavy workloads are of its introduction.
fn figure_9(_: &str, at: At<'_>) -> Option<String> {
    let given = match at.phase {
        "a" => {
            "PrismDB, writes as a class: 2.4 times RocksDB, average latency 2.7 times lower; CPU 1.9, W amp 3.2 times lower than LSM trees"
        }
        "f" => "PrismDB, writes as a class: 2.4 times RocksDB, average latency 2.7 times lower",
        "b" | "c" | "d" => "PrismDB, reads as a class: 2.5 times RocksDB, average latency 2 times lower",
        "e" => "PrismDB: below RocksDB, comparable without its prefetcher",
        _ => NOT_GIVEN,
    };
    Some(given.to_owned())
}

/// What the text has on Figure 10; of one exponent Table 2 has figures.
fn figure_10(system: &str, at: At<'_>) -> Option<String> {
    if system.starts_with("rocksdb") {
        return None;
    }
    let given = match at.phase {
        "a uniform" => "PrismDB: above RocksDB, though placement plays no role; how much is not given",
        "a 0.8" => "PrismDB: 1.98 times RocksDB with 11 % of NVM (Table 2)",
        _ => "PrismDB: above RocksDB; how much is not given",
    };
    Some(given.to_owned())
}

/// Which way it goes, and which threshold is the paper's own.
fn figure_11c(_: &str, at: At<'_>) -> Option<String> {
    let best = if at.phase == "a" { "best low" } else { "best high" };
    let own = if at.label == "pinned 70 %" { "; its threshold elsewhere" } else { "" };
    Some(format!("{best}, how much is {NOT_GIVEN}{own}"))
}

/// Throughput grows up to as many partitions as there are cores: ten in the paper.
fn figure_11d(_: &str, at: At<'_>) -> Option<String> {
    let given = match at.threads {
        1 => NOT_GIVEN,
        2..=10 => "more than with fewer; how much is not given",
        _ => "no more than with 10",
    };
    Some(given.to_owned())
}

fn dollars(at: At<'_>) -> Option<(String, f64)> {
    let text = at.label.split('$').nth(1)?.split('/').next()?;
    let tiers = if at.label.starts_with("het") { "two tiers" } else { "one tier" };
    Some((tiers.to_owned(), text.parse().ok()?))
}

impl Figure {
    fn defaults(self) -> Defaults {
        let defaults = Defaults {
            systems: &["slab-byte"],
            keys: 200_000,
            threads: 8,
            seconds: 5.0,
            distribution: Keys::Zipfian,
            memory: 0.1,
            fast: 0.2,
            flash: "qlc",
            block: "optane-ssd",
        };
        match self {
            Figure::Ycsb => Defaults { systems: &["slab-byte", "tierdb-byte"], seconds: 4.0, ..defaults },
            Figure::Promotion => Defaults { seconds: 3.0, ..defaults },
            // More than the paper has cores.
            Figure::Partitions => Defaults { threads: 16, ..defaults },
            Figure::Pinning => Defaults { seconds: 3.0, ..defaults },
            _ => defaults,
        }
    }

    fn view(self) -> View {
        use Column::{Cost, Demoted, FlashPerOp, FlashWritten, FromFast, FromFlash, FromMemory, Hits};
        use Column::{MigrationCpu, Promoted, Rate, ReadMedian, ReadTail, Relative, WriteAmplification};
        const READS: &[Column] = &[
            Rate,
            Column::TimesRocks,
            Column::Average,
            Column::TimesBelowRocks,
            Column::Cpu,
            ReadMedian,
            ReadTail,
            FromMemory,
            FromFast,
            FromFlash,
            Hits,
            WriteAmplification,
            MigrationCpu,
        ];
        let view = |title: &str, finding, columns| View::plain(format!("PrismDB, {title}"), finding, columns);
        let drawing = |file, across, place| Some(Drawing::of_rate(file, across, place));
        match self {
            Figure::Combinations | Figure::Migration => View {
                base: Some(|_, other| other.label == "approx-M, rand-8"),
                paper: table_4,
                drawing: drawing("slab-table4", Some("ranges compared, 16 for all"), |at| {
                    let (metric, selection) = at.label.split_once(", ")?;
                    let choices = selection.strip_prefix("rand-").map_or(Some(16.0), |k| k.parse().ok())?;
                    Some((metric.to_owned(), choices))
                }),
                ..view(
                    "Table 4 and Figure 7: metrics and selection of ranges, YCSB A (sampled-M is ours: exact counts, sampled popularity)",
                    "exhaustive selection writes about 45 GB to flash with each metric, but precise-M takes almost twice the \
                     processor time and has less than a third of the throughput. With approx-M, writes fall from 70 GB \
                     (rand-2) to 51 GB (rand-8), at the same processor time of about 35 %.",
                    &[Rate, Relative, FlashWritten, FlashPerOp, MigrationCpu, Demoted],
                )
            },
            Figure::Cost => View {
                paper: figure_8,
                drawing: drawing("slab-8", Some("dollars for a gigabyte"), dollars),
                ..view(
                    "Figure 8: throughput against cost, YCSB A ($2.5 for a GB of NVM, $0.1 of QLC, $0.31 of TLC)",
                    "the larger the share of NVM, the faster; PrismDB with 10 % of NVM ($0.34/GB) has 3.3 times the throughput \
                     and half the tail latency of RocksDB on TLC ($0.31/GB).",
                    &[Cost, Rate, ReadMedian, ReadTail, FromFast, FromFlash, WriteAmplification],
                )
            },
            Figure::Ycsb => View {
                paper: figure_9,
                drawing: drawing("slab-9", None, |at| Some((String::new(), at.threads as f64))),
                ..view(
                    "Figure 9: YCSB",
                    "PrismDB is faster than RocksDB on two tiers in all but E: 2.4 times on write-dominated workloads, 2.5 times \
                     on read-heavy ones, with a third of the writes to flash and 1.9 times less processor time on A.",
                    READS,
                )
            },
            Figure::Skew => View {
                base: Some(|_, other| other.phase == "a 0.99"),
                paper: figure_10,
                drawing: drawing(
                    "slab-10",
                    Some("zipfian exponent, over the stored keys; 0 is uniform"),
                    |at| {
                        let theta = at.phase.split(' ').nth(1)?;
                        Some((String::new(), theta.parse().unwrap_or(0.0)))
                    },
                ),
                ..view(
                    "Figure 10: YCSB A by skew",
                    "faster than RocksDB with every distribution: under skew all accesses stay in DRAM and NVM, and uniform keys \
                     still gain from updates in place.",
                    &[
                        Rate,
                        Relative,
                        Column::TimesRocks,
                        ReadMedian,
                        ReadTail,
                        FromMemory,
                        FromFast,
                        FromFlash,
                        WriteAmplification,
                    ],
                )
            },
            Figure::Latency => View {
                distribution: true,
                paper: |_, _| {
                    Some("not given; fewer from flash than RocksDB (42 % on A in section 3.2)".to_owned())
                },
                ..view(
                    "Figure 11a: latencies of reads, YCSB B",
                    "a lower share of reads goes to flash than in RocksDB, and more is answered by DRAM, since blocks on NVM are \
                     dense with popular keys.",
                    READS,
                )
            },
            Figure::Promotion => View {
                paper: |_, _| Some(NOT_GIVEN.to_owned()),
                drawing: Some(Drawing {
                    file: "slab-11b",
                    up: "reads that flash answers, %",
                    of: (FromFlash, 0.01),
                    across: Some("interval"),
                    place: |at| Some((at.label.to_owned(), at.phase.split(' ').nth(1)?.parse().ok()?)),
                }),
                ..view(
                    "Figure 11b: promotions, YCSB C over time, as keys are read, and by migrations alone as in the paper (without pinned keys \
                     there are none, and the fast tier empties)",
                    "promotions raise the share of reads from NVM significantly, and so throughput.",
                    &[Rate, FromMemory, FromFast, FromFlash, Promoted],
                )
            },
            Figure::Pinning => View {
                base: Some(|at, other| at.phase == other.phase && other.label == "pinned 70 %"),
                paper: figure_11c,
                drawing: Some(Drawing {
                    file: "slab-11c",
                    up: "throughput, 1 at a threshold of 70 %",
                    of: (Relative, 1.0),
                    across: Some("pinning threshold, % of the tracked keys"),
                    place: |at| {
                        let percent = at.label.strip_prefix("pinned ")?.split(' ').next()?.parse().ok()?;
                        Some((at.phase.to_owned(), percent))
                    },
                }),
                ..view(
                    "Figure 11c: pinning threshold",
                    "the best threshold differs: high for reads, where keeping popular keys counts for more than cheap migration, low \
                     for writes.",
                    &[Rate, Relative, FromFast, FromFlash, FlashPerOp, MigrationCpu],
                )
            },
            Figure::Levels => View {
                base: Some(|at, other| {
                    let share = |label: &str| label.split(',').next().map(str::to_owned);
                    at.phase == other.phase
                        && share(at.label) == share(other.label)
                        && other.label.ends_with("one level")
                }),
                ..view(
                    "section 4.1: levels of tables, YCSB A by the share of NVM",
                    "one level of tables where NVM is a tenth of the capacity or more; below that, levels (no figures are given).",
                    &[Rate, Relative, ReadMedian, FromFlash, FlashPerOp, WriteAmplification, MigrationCpu],
                )
            },
            Figure::Partitions => View {
                base: Some(|_, other| other.threads == 1),
                paper: figure_11d,
                drawing: drawing("slab-11d", Some("partitions and clients"), |at| {
                    Some((String::new(), at.threads as f64))
                }),
                ..view(
                    "Figure 11d: partitions with as many clients, YCSB A",
                    "throughput grows with the number of partitions up to that of cores (10).",
                    &[Rate, Relative, ReadMedian, ReadTail, MigrationCpu],
                )
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::tuned::slab_options;
    use clap::Parser;

    #[test]
    fn thresholds_are_compared_with_all_else_alike() {
        let cli = Cli::try_parse_from(["tierdb-bench", "paper", "slab", "11c"]).expect("a command");
        let Command::Paper(paper) = &cli.command else { panic!("{:?}", cli.command) };
        let plan = super::super::prepare(&crate::our_systems(), paper).expect("a figure").plan;
        let options = plan.cases.iter().map(|(_, case)| slab_options(&case.setup, case.setup.fast_bytes));
        let (pinned, rest): (Vec<_>, Vec<_>) =
            options.map(|mut options| (options.pinned_pct.take(), format!("{options:?}"))).unzip();
        assert_eq!(pinned, THRESHOLDS.map(Some).into_iter().chain([None]).collect::<Vec<_>>());
        assert!(rest.iter().all(|own| *own == rest[0]), "{rest:?}");
    }
}
