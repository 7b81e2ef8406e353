//! PRISM: "PRISM: Optimizing Key-Value Store for Modern Heterogeneous Storage Devices", ASPLOS '23, section 7.
//!
//! There: 100 million items of 1 KB, 20 GB of DRAM, 16 GB of NVM for the write buffer and about 5.4 GB for index and HSIT,
//! eight SSDs, 40 threads. Here: memory 20 % and fast tier 21.4 % of the data, one flash directory at the pace of one of those
//! SSDs. But for Figures 15 and 15a the write buffer is a fifth of the fast tier, and what is left of that holds hot values.

use super::view::{At, Column, Drawing, View};
use super::{Defaults, Draft, Experiment, NOT_GIVEN};
use crate::args::{Keys, Scale};
use crate::failure::Failure;
use crate::keys::Distribution;
use crate::knobs::Batching;
use crate::phase::{Limit, Phase};
use crate::store::{Durability, Systems};
use crate::table::grouped;
use clap::ValueEnum;
use std::cmp::Ordering;

/// A figure of PRISM's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// LOAD and YCSB: throughput, and latencies of Table 3
    #[value(name = "7", alias = "table3")]
    Ycsb,
    /// Throughput by skew
    #[value(name = "9")]
    Skew,
    /// The production mix of Figure 10b
    #[value(name = "10")]
    Production,
    /// Thread combining against a timeout, by queue depth
    #[value(name = "11")]
    Combining,
    /// Write amplification by skew
    #[value(name = "12")]
    Writes,
    /// Throughput and latency by the number of flash directories (and Figure 14)
    #[value(name = "13", alias = "14")]
    Devices,
    /// Throughput by the sizes of write buffer and value cache
    #[value(name = "15")]
    Sizes,
    /// Throughput by the size of the write buffer
    #[value(name = "15a")]
    Buffer,
    /// Throughput by the size of the value cache
    #[value(name = "15b")]
    Cache,
    /// Throughput by threads
    #[value(name = "16")]
    Threads,
    /// What garbage collection costs
    #[value(name = "17")]
    Collection,
    /// Space on the fast tier for each key
    #[value(name = "space")]
    Space,
    /// Time to recover
    #[value(name = "recovery")]
    Recovery,
}

/// The exponents of Figures 9 and 12.
const EXPONENTS: [f64; 5] = [0.5, 0.75, 0.99, 1.2, 1.5];
/// YCSB, as far as the paper has it; those that insert come last.
const YCSB: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The queue depths of Figure 11.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// A case of Figure 11 that the paper has not: as a store reads by default.
const OWN_QUEUE: &str = "a queue for each of 32 readers";
/// How long the paper's timeout is.
const TIMEOUT_US: u64 = 100;
/// What the paper gives the write buffer, and index and HSIT, for each byte of data.
const FAST: f64 = 0.214;
const MEMORY: f64 = 0.2;

/// Average, median and 99th percentile in microseconds of YCSB A, C and E on PRISM, and on RocksDB-NVM (Table 3).
const TABLE_3: [(&str, [u32; 3], [u32; 3]); 3] = [
    ("a", [44, 2, 145], [141, 128, 247]),
    ("c", [12, 1, 128], [27, 23, 93]),
    ("e", [325, 270, 808], [218, 128, 1132]),
];
/// PRISM's throughput beside that of others in Figure 7, as sections 7.2 and 7.3 have it.
const FIGURE_7: [(&str, &str); 5] = [
    ("a", "1.3 times KVell, up to 13.1 times MatrixKV and RocksDB-NVM"),
    ("b", "1.2 times KVell, 4.8 to 5.5 times MatrixKV and RocksDB-NVM"),
    ("c", "1.3 times KVell, 4.8 to 5.5 times MatrixKV and RocksDB-NVM"),
    ("d", "1.7 times KVell, 4.8 to 5.5 times MatrixKV and RocksDB-NVM"),
    ("e", "2.3 times KVell, up to 1.4 times MatrixKV and RocksDB-NVM"),
];

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
    let (values, length) = match figure {
        Figure::Writes => {
            ("512 and 1024 B (sizes are for 1024)", format!("closed loop; {} updates", grouped(draft.keys)))
        }
        Figure::Space | Figure::Recovery => ("1024 B", "a load".to_owned()),
        Figure::Collection => ("1024 B", format!("closed loop; {seconds} s after as long a warm-up")),
        _ => ("1024 B", format!("closed loop; {seconds} s after {} s of warm-up", seconds / 5.0)),
    };
    let view = figure.view();
    Ok(Experiment { plan: draft.finish(&view.title, values, length)?, view })
}

/// The cases of a figure for one system.
fn add(draft: &mut Draft<'_>, figure: Figure, name: &str) -> Result<(), Failure> {
    let data = draft.data(1024);
    let part = |share: f64| (data as f64 * share) as u64;
    match figure {
        Figure::Ycsb => {
            let phases = YCSB.map(|workload| draft.phase(workload, 0.2));
            let recovery = !draft.asked.no_recovery;
            let case = draft.case(name, "", 1024, phases.to_vec())?;
            case.recovery = recovery;
            case.load_durability = Durability::Durable;
        }
        Figure::Production => {
            let phases = vec![draft.phase("nutanix", 0.2)];
            draft.case(name, "", 1024, phases)?;
        }
        Figure::Skew => {
            let phases = YCSB.iter().flat_map(|workload| {
                EXPONENTS.map(|theta| skewed(draft.phase(workload, 0.2), workload, theta))
            });
            let phases = phases.collect();
            draft.case(name, "", 1024, phases)?;
        }
        Figure::Writes => {
            for bytes in [512, 1024] {
                let phases = EXPONENTS.map(|theta| Phase {
                    // As many updates as there are keys, so that the write buffer counts for little.
                    limit: Limit::Ops(draft.keys),
                    ..skewed(draft.phase("put", 0.0), "updates", theta)
                });
                draft.case(name, format!("{bytes} B"), bytes, phases.to_vec())?;
            }
        }
        Figure::Combining => {
            for depth in DEPTHS {
                for (way, window_us) in [("combining", None), ("timeout", Some(TIMEOUT_US))] {
                    let phases = vec![draft.phase("c", 0.2)];
                    let case = draft.case(name, format!("QD {depth}, {way}"), 1024, phases)?;
                    case.setup.knobs.batching = Some(Batching { depth, window_us });
                }
            }
            let phases = vec![draft.phase("c", 0.2)];
            draft.case(name, OWN_QUEUE, 1024, phases)?;
        }
        Figure::Devices => {
            for dirs in 1..=4 {
                let phases = ["a", "c"].map(|workload| draft.phase(workload, 0.2));
                let plural = if dirs == 1 { "directory" } else { "directories" };
                let case = draft.case(name, format!("{dirs} flash {plural}"), 1024, phases.to_vec())?;
                case.setup.knobs.flash_dirs = Some(dirs);
            }
        }
        Figure::Sizes => {
            buffers(draft, name)?;
            caches(draft, name)?;
        }
        Figure::Buffer => buffers(draft, name)?,
        Figure::Cache => caches(draft, name)?,
        Figure::Threads => {
            let most = draft.threads;
            let mut threads = 1;
            while threads <= most {
                draft.threads = threads;
                let phases = YCSB.map(|workload| draft.phase(workload, 0.2));
                draft.case(name, "", 1024, phases.to_vec())?.load_durability = Durability::Durable;
                threads *= 2;
            }
            draft.threads = most;
        }
        Figure::Collection => {
            for (label, room) in [("room for all", None), ("flash 1.5 times the data", Some(part(1.5)))] {
                let phases = vec![draft.phase("a", 1.0)];
                let case = draft.case(name, label, 1024, phases)?;
                case.setup.knobs.flash_bytes = room.map(|room| room.max(64 << 20));
                if room.is_none() {
                    // Nothing is collected.
                    case.setup.knobs.garbage_pct = Some(100);
                }
            }
        }
        Figure::Space => {
            draft.case(name, "", 1024, Vec::new())?;
        }
        Figure::Recovery => {
            draft.case(name, "", 1024, Vec::new())?.recovery = true;
        }
    }
    Ok(())
}

/// `phase` with keys of this exponent, over the stored keys or their age.
fn skewed(phase: Phase, name: &str, theta: f64) -> Phase {
    let keys = match phase.keys {
        Distribution::Latest(_) => Distribution::Latest(theta),
        _ => Distribution::Zipfian(theta),
    };
    Phase { name: format!("{name} {theta}"), keys, ..phase }
}

/// Write buffers of several sizes.
fn buffers(draft: &mut Draft<'_>, name: &str) -> Result<(), Failure> {
    let data = draft.data(1024);
    for percent in [2, 4, 8, 16] {
        let phases = vec![draft.phase("a", 0.2)];
        let case = draft.case(name, format!("write buffer {percent} %"), 1024, phases)?;
        let buffer = (data / 100 * percent).max(1 << 20);
        // The rest of the fast tier is the same for all: half as much again as index and HSIT take.
        case.setup.fast_bytes = (data / 100 * 8 + buffer + (4 << 20)).max(32 << 20);
        case.setup.knobs.write_buffer = Some(buffer);
        case.load_durability = Durability::Durable;
    }
    Ok(())
}

/// Value caches of several sizes.
fn caches(draft: &mut Draft<'_>, name: &str) -> Result<(), Failure> {
    let data = draft.data(1024);
    for percent in [4, 8, 12, 16, 20] {
        let phases = ["c", "e"].map(|workload| draft.phase(workload, 0.2));
        let case = draft.case(name, format!("memory {percent} %"), 1024, phases.to_vec())?;
        case.setup.memory = (data / 100 * percent).max(16 << 20);
        case.load_durability = Durability::Durable;
    }
    Ok(())
}

/// What Figure 7 and Table 3 have for a system like `system`.
fn figure_7(system: &str, at: At<'_>) -> Option<String> {
    let of_prism = system.starts_with("tierdb");
    if !of_prism && system != "rocksdb-fast" {
        return None;
    }
    let table = TABLE_3.iter().find(|(name, ..)| *name == at.phase);
    let latencies = table.map(|(_, prism, rocks)| {
        let [average, median, tail] = if of_prism { prism } else { rocks };
        format!("average {average}, median {median}, 99 % {tail} us")
    });
    let times = FIGURE_7.iter().find(|(name, _)| *name == at.phase).filter(|_| of_prism);
    let given: Vec<String> =
        times.map(|(_, times)| (*times).to_owned()).into_iter().chain(latencies).collect();
    Some(if given.is_empty() { NOT_GIVEN.to_owned() } else { given.join("; ") })
}

/// What the text says of a point of Figure 9.
fn figure_9(_: &str, at: At<'_>) -> Option<String> {
    let (_, theta) = exponent(at)?;
    Some(match theta.total_cmp(&0.99) {
        Ordering::Less => "below 1; how much is not given".to_owned(),
        Ordering::Equal => "1".to_owned(),
        Ordering::Greater => "above 1; how much is not given".to_owned(),
    })
}

/// What the text says of a point of Figure 11.
fn figure_11(_: &str, at: At<'_>) -> Option<String> {
    let given = match at.label {
        "QD 64, combining" => "up to 11.7 times QD 1, latency 1 / 1.9",
        label if label.ends_with("timeout") => "below combining, the more the deeper; how much is not given",
        label if label.starts_with("QD 1,") => "1",
        _ => NOT_GIVEN,
    };
    Some(given.to_owned())
}

/// What the text says of a point of Figures 13 and 14.
fn figure_13(_: &str, at: At<'_>) -> Option<String> {
    let given = match (at.phase, at.label.split(' ').next()?) {
        ("a", _) => "above KVell with any number; how much is not given",
        (_, "4") => "above KVell; how much is not given",
        _ => "below KVell, at a lower latency; how much is not given",
    };
    Some(given.to_owned())
}

/// What the text says of a point of Figure 15.
fn figure_15(_: &str, at: At<'_>) -> Option<String> {
    let given = match (at.label, at.phase) {
        ("memory 20 %" | "write buffer 16 %", "a" | "c" | "e") => "1",
        ("memory 4 %", "c" | "e") => "0.55 of 20 %",
        (label, "load") if label.starts_with("write buffer") => "as fast with any size",
        (label, _) if label.starts_with("write buffer") => "less than with 16 %; how much is not given",
        _ => NOT_GIVEN,
    };
    Some(given.to_owned())
}

/// The number in `text` that comes after `before`.
fn number(text: &str, before: &str) -> Option<f64> {
    let rest = text.split_once(before)?.1;
    rest.split([' ', ',']).find(|word| !word.is_empty())?.parse().ok()
}

fn exponent(at: At<'_>) -> Option<(String, f64)> {
    let (workload, theta) = at.phase.split_once(' ')?;
    Some((workload.to_owned(), theta.parse().ok()?))
}

impl Figure {
    fn defaults(self) -> Defaults {
        let defaults = Defaults {
            systems: &["tierdb-byte"],
            keys: 200_000,
            threads: 4,
            seconds: 5.0,
            distribution: Keys::Scrambled,
            memory: MEMORY,
            fast: FAST,
            flash: "pcie4-ssd",
            block: "none",
        };
        match self {
            // As many threads as the paper has: fewer could not fill a queue.
            // A queue is a device's own: what is imitated is so for each thread.
            Figure::Combining => Defaults { threads: 40, seconds: 2.0, flash: "none", ..defaults },
            // So that the smallest cache is no smaller than a store works with.
            Figure::Cache | Figure::Sizes => Defaults { keys: 500_000, ..defaults },
            Figure::Skew => Defaults { seconds: 2.0, ..defaults },
            Figure::Space | Figure::Recovery => Defaults { keys: 1_000_000, ..defaults },
            _ => defaults,
        }
    }

    fn view(self) -> View {
        use Column::{Average, Collected, Hits, KeyBytes, Lowest, Median, Open, Rate, Recovery};
        use Column::{RecoveryPerMillion, Relative, RelativeAverage, Tail, WriteAmplification};
        const LATENCIES: &[Column] = &[Rate, Average, Median, Tail, Hits, WriteAmplification];
        let view = |title: &str, finding, columns| View::plain(format!("PRISM, {title}"), finding, columns);
        let drawing = |file, across, place| Some(Drawing::of_rate(file, across, place));
        match self {
            Figure::Ycsb => View {
                load: true,
                paper: figure_7,
                drawing: drawing("prism-7", None, |at| Some((String::new(), at.threads as f64))),
                ..view(
                    "Figure 7 and Table 3: LOAD and YCSB",
                    "with 40 threads PRISM has up to 13.1 times the throughput of MatrixKV and of RocksDB on NVM on A (up to 10.8 times \
                     MatrixKV with as much DRAM and NVM), at an average latency up to 3.2 times lower; 4.8 to 5.5 times on B, C and D, up \
                     to 1.4 times on E. Its 99th percentile is 8.7 times lower than KVell's on A, 1.5 times on C.",
                    LATENCIES,
                )
            },
            Figure::Skew => View {
                base: Some(|at, other| {
                    let workload = at.phase.split(' ').next();
                    workload == other.phase.split(' ').next() && other.phase.ends_with(" 0.99")
                }),
                paper: figure_9,
                drawing: Some(Drawing {
                    file: "prism-9",
                    up: "throughput, 1 at 0.99",
                    of: (Relative, 1.0),
                    across: Some("zipfian exponent, over the stored keys"),
                    place: exponent,
                }),
                ..view(
                    "Figure 9: throughput by skew",
                    "PRISM's throughput rises with skew in every workload; that of KVell falls.",
                    &[Rate, Relative, Median, Tail, Hits],
                )
            },
            Figure::Production => View {
                paper: |system, _| system.starts_with("tierdb").then(|| "1.44 times KVell".to_owned()),
                ..view(
                    "Figure 10b: production mix of 57 % updates, 41 % reads, 2 % scans",
                    "PRISM has 1.44 times the throughput of KVell.",
                    LATENCIES,
                )
            },
            Figure::Combining => View {
                base: Some(|at, other| {
                    let way = |at: At<'_>| at.label.ends_with("timeout");
                    way(at) == way(other) && other.label.starts_with("QD 1,")
                }),
                paper: figure_11,
                drawing: drawing("prism-11", Some("most reads of a batch"), |at| {
                    let way = at.label.split(", ").nth(1)?;
                    Some((way.to_owned(), number(at.label, "QD ")?))
                }),
                ..view(
                    "Figure 11: thread combining against a timeout of 100 us, one queue to the device, YCSB C",
                    "the lead of thread combining over the timeout grows with the queue depth; with 64 it has up to 11.7 times \
                     the throughput of 1, at 1.9 times less latency.",
                    &[Rate, Relative, Average, RelativeAverage, Median, Tail, Hits],
                )
            },
            Figure::Writes => View {
                paper: |_, _| {
                    Some("not given; KVell up to 13 times, MatrixKV up to 162 times as much".to_owned())
                },
                drawing: Some(Drawing {
                    file: "prism-12",
                    up: "bytes written to flash for each byte",
                    of: (WriteAmplification, 1.0),
                    across: Some("zipfian exponent, over the stored keys"),
                    place: |at| Some((at.label.to_owned(), exponent(at)?.1)),
                }),
                ..view(
                    "Figure 12: write amplification by skew",
                    "PRISM writes least of all, and less the more skew there is, with values of 512 B and of 1 KB; KVell up to \
                     13 times as much, MatrixKV up to 162 times.",
                    &[WriteAmplification, Rate],
                )
            },
            Figure::Devices => View {
                base: Some(|at, other| at.phase == other.phase && other.label.starts_with("1 ")),
                paper: figure_13,
                drawing: drawing("prism-13", Some("flash directories"), |at| {
                    Some((at.phase.to_owned(), at.label.split(' ').next()?.parse().ok()?))
                }),
                ..view(
                    "Figures 13 and 14: flash directories (which share a device, unless it is imitated)",
                    "throughput of A and C rises with the number of SSDs up to eight, and latency falls; on C KVell is faster with \
                     fewer than four, at a higher latency.",
                    &[Rate, Relative, Average, Median, Tail],
                )
            },
            Figure::Sizes | Figure::Buffer | Figure::Cache => {
                let (title, file, across, load) = match self {
                    Figure::Buffer => (
                        "Figure 15a: size of the write buffer",
                        "prism-15a",
                        "write buffer, % of the data",
                        true,
                    ),
                    Figure::Cache => {
                        ("Figure 15b: size of the value cache", "prism-15b", "memory, % of the data", false)
                    }
                    _ => (
                        "Figure 15: sizes of write buffer and value cache",
                        "prism-15",
                        "size, % of the data",
                        true,
                    ),
                };
                View {
                    load,
                    base: Some(|at, other| {
                        let own =
                            if at.label.starts_with("memory") { "memory 20 %" } else { "write buffer 16 %" };
                        at.phase == other.phase && other.label == own
                    }),
                    paper: figure_15,
                    drawing: drawing(file, Some(across), |at| {
                        let (part, percent) = at.label.strip_suffix(" %")?.rsplit_once(' ')?;
                        Some((format!("{part}: {}", at.phase), percent.parse().ok()?))
                    }),
                    ..view(
                        title,
                        "(a) the load is as fast with any write buffer (16 % of the data elsewhere), since values move to flash in the \
                         background; A is faster the larger it is, and absorbs more writes. (b) A larger value cache (20 % of the data \
                         elsewhere) is faster; with a fifth of it reads and scans still have 55 % of the throughput. (Having one at all \
                         makes reads up to 9.6 and scans up to 4.4 times faster.)",
                        &[Rate, Relative, Median, Tail, Hits, WriteAmplification],
                    )
                }
            }
            Figure::Threads => View {
                load: true,
                base: Some(|at, other| at.phase == other.phase && other.threads == 1),
                paper: |_, at| {
                    let threads = at.threads;
                    Some(if threads == 1 {
                        "1".to_owned()
                    } else {
                        format!("near {threads} on as many cores")
                    })
                },
                drawing: drawing("prism-16", Some("threads"), |at| {
                    Some((at.phase.to_owned(), at.threads as f64))
                }),
                ..view(
                    "Figure 16: scalability",
                    "near-linear with the number of cores in all workloads.",
                    &[Rate, Relative, Median, Tail, Hits],
                )
            },
            Figure::Collection => View {
                base: Some(|_, other| other.label == "room for all"),
                paper: |_, at| {
                    Some(
                        if at.label == "room for all" { "1" } else { "not significantly below 1" }.to_owned(),
                    )
                },
                ..view(
                    "Figure 17: garbage collection, YCSB A",
                    "collection does not affect throughput significantly.",
                    &[Rate, Relative, Lowest, Median, Tail, WriteAmplification, Collected],
                )
            },
            Figure::Space => View {
                paper: |_, _| Some("5.4 GB for 100 million keys: 54 B/key".to_owned()),
                ..view(
                    "section 7.6: space on the fast tier",
                    "index and HSIT take about 5.4 GB for 100 million keys.",
                    &[KeyBytes, Rate],
                )
            },
            Figure::Recovery => View {
                paper: |_, _| Some("6.9 s for 100 million keys: 0.069 s/million; KVell 10.4 s".to_owned()),
                ..view(
                    "section 7.6: recovery",
                    "6.9 s for 100 GB of values of 1 KB; KVell 10.4 s.",
                    &[Open, Recovery, RecoveryPerMillion],
                )
            },
        }
    }
}
