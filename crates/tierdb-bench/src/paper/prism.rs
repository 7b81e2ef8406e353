//! PRISM: "PRISM: Optimizing Key-Value Store for Modern Heterogeneous Storage Devices", ASPLOS '23, section 7.
//!
//! There: 100 million keys with values of 1 KB, 20 GB of DRAM, 16 GB of NVM for the write buffer and about 5.4 GB for
//! index and HSIT, eight SSDs, 40 threads. Here: memory 20 % and fast tier 21.4 % of the data, one flash directory.

use super::view::{At, Column, Drawing, View};
use super::{Defaults, Draft, Experiment};
use crate::args::Scale;
use crate::failure::Failure;
use crate::keys::Distribution;
use crate::knobs::Batching;
use crate::phase::{Limit, Phase};
use crate::store::{Durability, Systems};
use crate::table::grouped;
use clap::ValueEnum;

/// A figure of PRISM's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// YCSB: throughput, and latencies of Table 3
    #[value(name = "7")]
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
/// The workloads of Figures 9 and 16.
const MIXED: [&str; 3] = ["a", "b", "c"];
/// The queue depths of Figure 11.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// How long the paper's timeout is.
const TIMEOUT_US: u64 = 100;
/// What the paper gives the write buffer, and index and HSIT, for each byte of data.
const FAST: f64 = 0.214;
const MEMORY: f64 = 0.2;

/// Average, median and 99th percentile of YCSB A, C and E on PRISM, in microseconds (Table 3).
const TABLE_3: [(&str, [u32; 3]); 3] = [("a", [44, 2, 145]), ("c", [12, 1, 128]), ("e", [325, 270, 808])];

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
            let phases = ["a", "b", "c", "d", "e"].map(|workload| draft.phase(workload, 0.2));
            let recovery = !draft.asked.no_recovery;
            draft.case(name, "", 1024, phases.to_vec())?.recovery = recovery;
        }
        Figure::Production => {
            let phases = vec![draft.phase("nutanix", 0.2)];
            draft.case(name, "", 1024, phases)?;
        }
        Figure::Skew => {
            let phases = MIXED.iter().flat_map(|workload| {
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
        }
        Figure::Devices => {
            for dirs in 1..=4 {
                let phases = ["a", "c"].map(|workload| draft.phase(workload, 0.2));
                let plural = if dirs == 1 { "directory" } else { "directories" };
                let case = draft.case(name, format!("{dirs} flash {plural}"), 1024, phases.to_vec())?;
                case.setup.knobs.flash_dirs = Some(dirs);
            }
        }
        Figure::Buffer => {
            for percent in [2, 4, 8, 16] {
                let phases = vec![draft.phase("a", 0.2)];
                let case = draft.case(name, format!("write buffer {percent} %"), 1024, phases)?;
                let buffer = part(f64::from(percent) / 100.0).max(1 << 20);
                // The rest of the fast tier is the same for all: half as much again as index and HSIT take.
                case.setup.fast_bytes = (part(0.08) + buffer + (4 << 20)).max(32 << 20);
                case.setup.knobs.write_buffer = Some(buffer);
                case.load_durability = Durability::Durable;
            }
        }
        Figure::Cache => {
            for percent in [4, 8, 12, 16, 20] {
                let phases = ["c", "e"].map(|workload| draft.phase(workload, 0.2));
                let case = draft.case(name, format!("memory {percent} %"), 1024, phases.to_vec())?;
                case.setup.memory = part(f64::from(percent) / 100.0).max(16 << 20);
            }
        }
        Figure::Threads => {
            let most = draft.threads;
            let mut threads = 1;
            while threads <= most {
                draft.threads = threads;
                let phases = MIXED.map(|workload| draft.phase(workload, 0.2));
                draft.case(name, "", 1024, phases.to_vec())?;
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

/// `phase` with keys of this exponent, over the stored keys.
fn skewed(phase: Phase, name: &str, theta: f64) -> Phase {
    Phase { name: format!("{name} {theta}"), keys: Distribution::Zipfian(theta), ..phase }
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
            memory: MEMORY,
            fast: FAST,
            flash: "none",
        };
        match self {
            // As many threads as the paper has: fewer could not fill a queue.
            Figure::Combining => Defaults { threads: 40, seconds: 2.0, ..defaults },
            // So that the smallest cache is no smaller than a store works with.
            Figure::Cache => Defaults { keys: 500_000, ..defaults },
            Figure::Skew => Defaults { seconds: 3.0, ..defaults },
            Figure::Space | Figure::Recovery => Defaults { keys: 1_000_000, ..defaults },
            _ => defaults,
        }
    }

    fn view(self) -> View {
        use Column::{Average, Collected, Hits, KeyBytes, Lowest, Median, Open, Rate, Recovery};
        use Column::{RecoveryPerMillion, Relative, Tail, WriteAmplification};
        const LATENCIES: &[Column] = &[Rate, Average, Median, Tail, Hits, WriteAmplification];
        let view = |title: &str, finding, columns| View::plain(format!("PRISM, {title}"), finding, columns);
        let drawing = |file, across, place| Some(Drawing::of_rate(file, across, place));
        match self {
            Figure::Ycsb => View {
                paper: |at| {
                    let [average, median, tail] = TABLE_3.iter().find(|(name, _)| *name == at.phase)?.1;
                    Some(format!("average {average}, median {median}, 99 % {tail} us"))
                },
                drawing: drawing("prism-7", None, |at| Some((String::new(), at.threads as f64))),
                ..view(
                    "Figure 7 and Table 3: YCSB",
                    "with 40 threads PRISM has up to 13.1 times the throughput of MatrixKV and of RocksDB on NVM on A, 4.8 to \
                     5.5 times on B, C and D, up to 1.4 times on E; and of KVell 1.3 times on A, 1.2 on B, 1.3 on C, 1.7 on \
                     D, 2.3 on E.",
                    LATENCIES,
                )
            },
            Figure::Skew => View {
                base: Some(|at, other| {
                    let workload = at.phase.split(' ').next();
                    workload == other.phase.split(' ').next() && other.phase.ends_with(" 0.99")
                }),
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
            Figure::Production => view(
                "Figure 10b: production mix of 57 % updates, 41 % reads, 2 % scans",
                "PRISM has 1.44 times the throughput of KVell.",
                LATENCIES,
            ),
            Figure::Combining => View {
                base: Some(|at, other| {
                    let way = |at: At<'_>| at.label.ends_with("combining");
                    way(at) == way(other) && other.label.starts_with("QD 1,")
                }),
                paper: |at| {
                    (at.label == "QD 64, combining")
                        .then(|| "up to 11.7 times QD 1, latency 1 / 1.9".to_owned())
                },
                drawing: drawing("prism-11", Some("most reads of a batch"), |at| {
                    let way = at.label.split(", ").nth(1)?;
                    Some((way.to_owned(), number(at.label, "QD ")?))
                }),
                ..view(
                    "Figure 11: thread combining against a timeout of 100 us, one queue to the device, YCSB C",
                    "the lead of thread combining over the timeout grows with the queue depth; with 64 it has up to 11.7 times \
                     the throughput of 1, at 1.9 times less latency.",
                    &[Rate, Relative, Average, Median, Tail, Hits],
                )
            },
            Figure::Writes => View {
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
            Figure::Buffer => View {
                load: true,
                base: Some(|at, other| at.phase == other.phase && other.label == "write buffer 16 %"),
                drawing: drawing("prism-15a", Some("write buffer, % of the data"), |at| {
                    Some((at.phase.to_owned(), number(at.label, "buffer ")?))
                }),
                ..view(
                    "Figure 15a: size of the write buffer (the paper's is 16 % of the data)",
                    "the load is as fast with any size, since values move to flash in the background; A is faster the larger the \
                     buffer, which absorbs more writes.",
                    &[Rate, Relative, Median, Tail, WriteAmplification],
                )
            },
            Figure::Cache => View {
                base: Some(|at, other| at.phase == other.phase && other.label == "memory 20 %"),
                paper: |at| (at.label == "memory 4 %").then(|| "0.55 of 20 %".to_owned()),
                drawing: drawing("prism-15b", Some("memory, % of the data"), |at| {
                    Some((at.phase.to_owned(), number(at.label, "memory ")?))
                }),
                ..view(
                    "Figure 15b: size of the value cache (the paper's is 20 % of the data)",
                    "a larger cache is faster; with a fifth of it reads and scans still have 55 % of the throughput.",
                    &[Rate, Relative, Median, Tail, Hits],
                )
            },
            Figure::Threads => View {
                base: Some(|at, other| at.phase == other.phase && other.threads == 1),
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
                ..view(
                    "Figure 17: garbage collection, YCSB A",
                    "collection does not affect throughput significantly.",
                    &[Rate, Relative, Lowest, Median, Tail, WriteAmplification, Collected],
                )
            },
            Figure::Space => View {
                paper: |_| Some("5.4 GB for 100 million keys: 54 B/key".to_owned()),
                ..view(
                    "section 7.6: space on the fast tier",
                    "index and HSIT take about 5.4 GB for 100 million keys.",
                    &[KeyBytes, Rate],
                )
            },
            Figure::Recovery => View {
                paper: |_| Some("6.9 s for 100 million keys: 0.069 s/million, 40 cores".to_owned()),
                ..view(
                    "section 7.6: recovery",
                    "6.9 s for 100 GB of values of 1 KB; KVell 10.4 s.",
                    &[Open, Recovery, RecoveryPerMillion],
                )
            },
        }
    }
}
