//! The experiments of the papers, scaled to the machine, beside what the papers found.
//!
//! PRISM: "PRISM: Optimizing Key-Value Store for Modern Heterogeneous Storage Devices", ASPLOS '23, section 7:
//! 100 million keys with values of 1 KB, 20 GB of DRAM, 16 GB of NVM for the write buffer and about 5.4 GB for
//! index and HSIT, eight SSDs, 40 threads. Here: memory 20 % and fast tier 21.4 % of the data, one flash
//! directory. Its figures are pictures without numbers, so the text and the tables of the paper stand for them.

use crate::args::{Figure, Paper, Place};
use crate::failure::Failure;
use crate::keys::Distribution;
use crate::phase::{Limit, Phase};
use crate::plan::{self, Plan};
use crate::plots::{Plot, Series, Shape};
use crate::report::{Repeated, Report};
use crate::store::{Durability, Systems};
use crate::table::grouped;
use crate::values::Sizes;
use crate::workload::Workload;
use std::fmt::Write as _;
use tierdb::ByteSize;

/// The exponents of Figures 9 and 12.
const EXPONENTS: [f64; 5] = [0.5, 0.75, 0.99, 1.2, 1.5];
/// The workloads of Figures 9 and 16.
const MIXED: [&str; 3] = ["a", "b", "c"];

/// Average, median and 99th percentile of YCSB A, C and E on PRISM, in microseconds (Table 3).
const TABLE_3: [(&str, [f64; 3]); 3] =
    [("a", [44.0, 2.0, 145.0]), ("c", [12.0, 1.0, 128.0]), ("e", [325.0, 270.0, 808.0])];

impl Figure {
    fn title(self) -> &'static str {
        match self {
            Figure::Ycsb => "PRISM, Figure 7 and Table 3: YCSB",
            Figure::Skew => "PRISM, Figure 9: throughput by skew",
            Figure::Writes => "PRISM, Figure 12: write amplification by skew",
            Figure::Threads => "PRISM, Figure 16: scalability",
        }
    }

    /// What the paper says its figure shows.
    fn finding(self) -> &'static str {
        match self {
            Figure::Ycsb => {
                "The paper: with 40 threads PRISM has up to 13.1 times the throughput of MatrixKV and of RocksDB on NVM on A, 4.8 to 5.5 \
                 times on B, C and D, up to 1.4 times on E; and of KVell 1.3 times on A, 1.2 on B, 1.3 on C, 1.7 on D, \
                 2.3 on E."
            }
            Figure::Skew => {
                "The paper: PRISM's throughput rises with skew in every workload; that of KVell falls."
            }
            Figure::Writes => {
                "The paper: PRISM writes least of all, and less the more skew there is, with values of 512 B and of 1 KB; \
                 KVell up to 13 times as much, MatrixKV up to 162 times."
            }
            Figure::Threads => "The paper: near-linear with the number of cores in all workloads.",
        }
    }
}

/// The cases of a figure.
///
/// # Errors
/// `Invalid` for a system that is not there.
pub fn plan(systems: &Systems, paper: &Paper) -> Result<Plan, Failure> {
    let mut cases = Vec::new();
    for name in &paper.system {
        match paper.figure {
            Figure::Ycsb => {
                let phases = ["a", "b", "c", "d", "e"].map(|name| phase(paper, name, 0.99, paper.threads));
                cases.push(case(systems, name, paper, String::new(), 1024, phases.to_vec())?);
            }
            Figure::Skew => {
                let phases = MIXED.iter().flat_map(|name| {
                    EXPONENTS.map(|theta| Phase {
                        name: format!("{name} {theta}"),
                        keys: Distribution::Zipfian(theta),
                        ..phase(paper, name, theta, paper.threads)
                    })
                });
                cases.push(case(systems, name, paper, String::new(), 1024, phases.collect())?);
            }
            Figure::Writes => {
                for bytes in [512, 1024] {
                    let phases = EXPONENTS.map(|theta| Phase {
                        name: format!("updates {theta}"),
                        keys: Distribution::Zipfian(theta),
                        // As many updates as there are keys, so that the write buffer counts for little.
                        limit: Limit::Ops(paper.keys),
                        warmup: None,
                        ..phase(paper, "put", theta, paper.threads)
                    });
                    cases.push(case(systems, name, paper, format!("{bytes} B"), bytes, phases.to_vec())?);
                }
            }
            Figure::Threads => {
                let mut threads = 1;
                while threads <= paper.threads {
                    let phases = MIXED.map(|name| phase(paper, name, 0.99, threads));
                    let mut own = case(systems, name, paper, String::new(), 1024, phases.to_vec())?;
                    own.1.threads = threads;
                    cases.push(own);
                    threads *= 2;
                }
            }
        }
    }
    let names: Vec<&str> = paper.system.iter().map(String::as_str).collect();
    let length = format!("closed loop; {} s after {} s of warm-up", paper.seconds, paper.seconds / 5.0);
    let sizes = Sizes::Fixed(1024);
    let mut settings =
        plan::settings(systems, &names, &place(systems, paper, 1024)?, paper.keys, sizes, length);
    if paper.figure == Figure::Writes {
        "512 and 1024 B (sizes below are for 1024)".clone_into(&mut settings.values);
        settings.length = format!("closed loop; {} updates", grouped(paper.keys));
    }
    Ok(Plan { title: paper.figure.title().to_owned(), cases, settings })
}

fn case(
    systems: &Systems,
    name: &str,
    paper: &Paper,
    label: String,
    bytes: u32,
    phases: Vec<Phase>,
) -> Result<(String, crate::case::Case), Failure> {
    let system = plan::named(systems, name)?;
    let place = place(systems, paper, bytes)?;
    let mut case = plan::bare_case(system, &place, paper.keys, Sizes::Fixed(bytes), Durability::Durable);
    case.threads = paper.threads;
    case.phases = phases;
    Ok((label, case))
}

/// The sizes of a run with values of `bytes` bytes: those of the paper, or what was asked for.
fn place(systems: &Systems, paper: &Paper, bytes: u32) -> Result<Place, Failure> {
    let mut place = paper.place.clone();
    plan::size_tiers(systems, &paper.system, &mut place, paper.keys, Sizes::Fixed(bytes))?;
    if paper.place.fast_capacity.is_none() {
        let data = paper.keys * (16 + u64::from(bytes));
        place.fast_capacity = place.fast_capacity.max(Some(ByteSize(data * 214 / 1000)));
    }
    Ok(place)
}

fn phase(paper: &Paper, name: &str, theta: f64, threads: usize) -> Phase {
    let workload = Workload::named(name).unwrap_or(Workload::ALL[0]);
    Phase {
        name: name.to_owned(),
        mix: workload.mix(),
        keys: workload.distribution(Distribution::Scrambled(theta)),
        threads,
        durability: Durability::Durable,
        warmup: Some(Limit::Seconds(paper.seconds / 5.0)),
        limit: Limit::Seconds(paper.seconds),
        rate: None,
        // The paper's scans have 50 entries on average.
        scans: workload.scans(100),
        seed: paper.place.seed,
    }
}

/// The figure's own numbers, with the paper's beside them.
pub fn beside(figure: Figure, report: &Report) -> String {
    let mut out = format!("\n{}\n{}\n", figure.title(), figure.finding());
    match figure {
        Figure::Ycsb => {
            for case in &report.cases {
                let _ = writeln!(
                    out,
                    "{}: us, average / median / 99 %\n  {:<10}{:>24}{:>30}",
                    case.name(),
                    "workload",
                    "here",
                    "PRISM in the paper"
                );
                for (name, [average, median, tail]) in TABLE_3 {
                    let Some(here) = all_operations(case, name) else { continue };
                    let here = format!("{:.1} / {:.1} / {:.1}", here[0], here[1], here[2]);
                    let there = format!("{average:.0} / {median:.0} / {tail:.0}");
                    let _ = writeln!(out, "  {name:<10}{here:>24}{there:>30}");
                }
            }
        }
        Figure::Skew | Figure::Writes | Figure::Threads => {
            for series in plot(figure, report).series {
                let points = series.points.iter().map(|(x, y)| format!("{x}: {y:.2}"));
                let _ = writeln!(out, "  {:<44}{}", series.name, points.collect::<Vec<_>>().join("   "));
            }
        }
    }
    out
}

/// Average, median and 99th percentile of a phase: of all its operations the average, and of the operation that
/// is slowest in the median the others.
fn all_operations(case: &Repeated, name: &str) -> Option<[f64; 3]> {
    let phase = case.first().phases.iter().find(|phase| phase.name == name)?;
    let count: u64 = phase.latencies.iter().map(|latency| latency.count).sum();
    let total: f64 = phase.latencies.iter().map(|latency| latency.average_us * latency.count as f64).sum();
    let slowest = phase.latencies.iter().max_by(|a, b| a.p50_us.total_cmp(&b.p50_us))?;
    Some([total / count.max(1) as f64, slowest.p50_us, slowest.p99_us])
}

/// The figure as a plot.
pub fn plot(figure: Figure, report: &Report) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    let mut add = |name: String, point: (f64, f64)| match series.iter_mut().find(|own| own.name == name) {
        Some(own) => own.points.push(point),
        None => series.push(Series { name, points: vec![point] }),
    };
    for case in &report.cases {
        let first = case.first();
        for (index, phase) in first.phases.iter().enumerate().skip(1) {
            let rate =
                |index: usize| case.phase(index, |phase| Some(phase.rate)).map_or(0.0, |rate| rate.median);
            let (name, exponent) = phase.name.split_once(' ').unwrap_or((&phase.name, ""));
            let exponent: f64 = exponent.parse().unwrap_or(0.99);
            match figure {
                Figure::Ycsb => add(case.name(), (0.0, rate(index) / 1e3)),
                Figure::Skew => {
                    let base = first.phases.iter().position(|other| other.name == format!("{name} 0.99"));
                    let base = base.map_or(0.0, rate);
                    if base > 0.0 {
                        add(format!("{}: {name}", first.system), (exponent, rate(index) / base));
                    }
                }
                Figure::Writes => {
                    if let Some(written) = case.phase(index, |phase| phase.write_amplification) {
                        add(format!("{}, {}", first.system, case.label), (exponent, written.median));
                    }
                }
                Figure::Threads => {
                    add(format!("{}: {name}", first.system), (first.threads as f64, rate(index) / 1e3));
                }
            }
        }
    }
    let lines = |across: &str| Shape::Lines { across: across.to_owned(), logarithmic: false };
    let (file, up, shape) = match figure {
        Figure::Ycsb => {
            let names = report.cases.first().map_or(Vec::new(), |case| {
                case.first().phases.iter().skip(1).map(|phase| phase.name.clone()).collect()
            });
            ("prism-7", "thousand operations a second", Shape::Bars(names))
        }
        Figure::Skew => ("prism-9", "throughput, 1 at 0.99", lines("zipfian exponent, over the stored keys")),
        Figure::Writes => (
            "prism-12",
            "bytes written to flash for each byte",
            lines("zipfian exponent, over the stored keys"),
        ),
        Figure::Threads => ("prism-16", "thousand operations a second", lines("threads")),
    };
    Plot { file: file.to_owned(), title: figure.title().to_owned(), up: up.to_owned(), shape, series }
}
