//! What each comparison shows, and what it is meant to reach.

use super::compare::{
    CACHED, Comparison, DIRECT, DISTRIBUTIONS, MIXGRAPH, MORE_THREADS, NUTANIX, ROOM, TIGHT,
};
use super::grid::{Column, Grid, Row, Target};
use crate::plots::{self, Plot, Series, Shape};
use crate::report::Report;
use crate::workload::Op;

const READS: &[&str] = &["B", "C", "D"];
const MIXED: &[&str] = &["A", "F"];
const C_4: &str = "C, 4 threads";
/// The load and all workloads of YCSB, by their heads, and with the phases that they are.
const ALL: &[&str] = &["load", "A", "B", "C", "D", "E", "F"];
const ALL_PHASES: [(&str, &str); 7] =
    [("load", "load"), ("A", "a"), ("B", "b"), ("C", "c"), ("D", "d"), ("E", "e"), ("F", "f")];

/// Columns of phases of one case.
fn columns(heads: &[(&'static str, &'static str)]) -> Vec<Column> {
    heads.iter().map(|(head, phase)| Column { head, threads: None, phase }).collect()
}

fn targets(all: &[(Row, &'static [&'static str], f64)]) -> Vec<Target> {
    all.iter().map(|(row, heads, at)| Target { row: *row, heads, at: *at }).collect()
}

impl Comparison {
    /// Its tables; those of limits and of recovery are of another kind.
    pub fn grids(self) -> Vec<Grid> {
        let [scrambled, zipfian] = DISTRIBUTIONS.map(|(label, _)| label);
        match self {
            Comparison::TwoTiers => {
                vec![two_tiers(scrambled, 3.0, 2.0), two_tiers(zipfian, 4.0, 3.0)]
            }
            Comparison::OneSsdSync => vec![synced()],
            Comparison::EmbeddedSync => {
                let peers: &[&str] = &["fjall", "redb", "lmdb"];
                vec![Grid {
                    label: "",
                    ours: "tierdb-ssd",
                    peers,
                    columns: columns(&ALL_PHASES),
                    targets: peers.iter().flat_map(|peer| targets(&[(Row::Times(peer), ALL, 1.0)])).collect(),
                }]
            }
            Comparison::OneSsdGrouped => grouped(),
            Comparison::Production => [(NUTANIX, "nutanix"), (MIXGRAPH, "mixgraph")]
                .map(|(label, phase)| Grid {
                    label,
                    ours: "tierdb-byte",
                    peers: &["rocksdb-tiers", "slab-byte"],
                    columns: columns(&[("load, grouped", "load"), (phase, phase)]),
                    targets: Vec::new(),
                })
                .into(),
            Comparison::Writes => {
                let grid = |label, peers| Grid {
                    label,
                    ours: "tierdb-byte",
                    peers,
                    columns: columns(&[("updates", "put")]),
                    targets: targets(&[(Row::Written("tierdb-byte"), &["updates"], 1.3)]),
                };
                vec![grid(ROOM, &["rocksdb-tiers"]), grid(TIGHT, &[])]
            }
            Comparison::Limits | Comparison::Recovery => Vec::new(),
            Comparison::Slab => {
                vec![slab(SLAB_BYTE, scrambled, false), slab(SLAB_BYTE, zipfian, true)]
            }
            Comparison::SlabBlock => {
                vec![slab(SLAB_BLOCK, scrambled, false), slab(SLAB_BLOCK, zipfian, true)]
            }
        }
    }

    /// Its plots: throughput as bars for each table, that of its first workload over time, and for two tiers latencies of C.
    pub fn plots(self, report: &Report) -> Vec<Plot> {
        let mut plots: Vec<Plot> = (self.grids().iter())
            .filter(|grid| grid.columns.len() > 1)
            .enumerate()
            .map(|(number, grid)| bars(self, grid, number, report))
            .collect();
        plots.extend(
            self.grids()
                .iter()
                .enumerate()
                .filter_map(|(number, grid)| over_time(self, grid, number, report)),
        );
        if self == Comparison::TwoTiers {
            plots.extend(
                self.grids().iter().enumerate().map(|(number, grid)| latencies(grid, number, report)),
            );
        }
        plots.retain(|plot| !plot.series.is_empty());
        plots
    }
}

/// valuelog and RocksDB over two tiers; what A and F, and what B, C and D are to reach depends on the distribution.
fn two_tiers(label: &'static str, mixed: f64, reads: f64) -> Grid {
    const OURS: &str = "tierdb-byte";
    const PEER: &str = "rocksdb-tiers";
    const SINGLE: &[&str] = &["A", "B", "C", C_4, "D", "F"];
    Grid {
        label,
        ours: OURS,
        peers: &[PEER, "rocksdb-fast"],
        columns: columns(&[
            ("load, grouped", "load"),
            ("A", "a"),
            ("B", "b"),
            ("C", "c"),
            (C_4, MORE_THREADS),
            ("D", "d"),
            ("E", "e"),
            ("F", "f"),
        ]),
        targets: targets(&[
            (Row::Times(PEER), MIXED, mixed),
            (Row::Times(PEER), READS, reads),
            (Row::Times(PEER), &["E"], 1.4),
            (Row::Times(PEER), &[C_4], 3.0),
            (Row::Times("rocksdb-fast"), &["A"], 1.5),
            (Row::TailShare(PEER), SINGLE, 0.5),
            (Row::Ceiling(OURS), SINGLE, 85.0),
        ]),
    }
}

fn synced() -> Grid {
    const PEER: &str = "rocksdb";
    let column = |(head, threads, phase)| Column { head, threads: Some(threads), phase };
    Grid {
        label: "",
        ours: "tierdb-ssd",
        peers: &[PEER],
        columns: [
            ("load, 1 thread", 1, "load"),
            ("load, 4", 4, "load"),
            ("load, 16", 16, "load"),
            ("A, 1 thread", 1, "a"),
            ("A, 4", 4, "a"),
            ("A, 16", 16, "a"),
        ]
        .map(column)
        .to_vec(),
        targets: targets(&[
            (Row::Times(PEER), &["load, 1 thread", "A, 1 thread"], 1.3),
            (Row::Times(PEER), &["load, 4", "A, 4"], 2.0),
            (Row::Times(PEER), &["load, 16", "A, 16"], 3.0),
        ]),
    }
}

/// valuelog and its peers on one SSD, with what reads it directly and what does so through the page cache apart: of these all have as much of
/// it as a control group leaves.
fn grouped() -> Vec<Grid> {
    const PEER: &str = "rocksdb";
    const EMBEDDED: [&str; 3] = ["fjall", "redb", "lmdb"];
    let grid =
        |label, ours, peers, targets| Grid { label, ours, peers, columns: columns(&ALL_PHASES), targets };
    let direct = targets(&[
        (Row::Times(PEER), &["A"], 2.5),
        (Row::Times(PEER), READS, 2.0),
        (Row::Times(PEER), &["E"], 1.0),
    ]);
    let cached = EMBEDDED.map(|peer| Target { row: Row::Times(peer), heads: ALL, at: 1.0 });
    vec![
        grid(DIRECT, "tierdb-ssd", &[PEER, "rocksdb-blob"], direct),
        grid(CACHED, "tierdb-ssd-cached", &["fjall", "redb", "lmdb"], cached.to_vec()),
    ]
}

/// slab, RocksDB over two tiers, and slab with its records in memory, by what the fast tier is.
const SLAB_BYTE: (&str, &[&str]) = ("slab-byte", &["rocksdb-tiers"]);
const SLAB_BLOCK: (&str, &[&str]) = ("slab-device", &["rocksdb-tiers-block", "slab-block"]);

/// What slab is held to beside the first peer. The ratios are those of the PrismDB paper, found with zipfian keys.
fn slab(
    (ours, peers): (&'static str, &'static [&'static str]),
    label: &'static str,
    held_to_it: bool,
) -> Grid {
    let peer = peers[0];
    const BUT_SCANS: &[&str] = &["A", "B", "C", "D", "F"];
    // Of E, which writes little, RocksDB's bytes are those of the compactions that happen to run.
    const WRITING: &[&str] = &["A", "B", "D", "F"];
    let paper = targets(&[
        (Row::Times(peer), MIXED, 2.4),
        (Row::Times(peer), READS, 2.5),
        (Row::Times(peer), &["E"], 1.0),
        (Row::TailShare(peer), BUT_SCANS, 0.5),
        (Row::WrittenShare(peer), WRITING, 0.3125),
        (Row::CpuTimes(peer), &["A", "B", "C", "D", "E", "F"], 1.9),
        (Row::Cpu(ours), &["A", "B", "C", "D"], 4.0),
    ]);
    Grid {
        label,
        ours,
        peers,
        columns: columns(&[
            ("load, grouped", "load"),
            ("A", "a"),
            ("B", "b"),
            ("C", "c"),
            ("D", "d"),
            ("E", "e"),
            ("F", "f"),
        ]),
        targets: if held_to_it { paper } else { Vec::new() },
    }
}

fn title(comparison_or_label: &str, grid: &Grid) -> String {
    if grid.label.is_empty() {
        comparison_or_label.to_owned()
    } else {
        format!("{comparison_or_label}, {}", grid.label)
    }
}

fn bars(comparison: Comparison, grid: &Grid, number: usize, report: &Report) -> Plot {
    let systems = std::iter::once(&grid.ours).chain(grid.peers);
    let series = systems.filter_map(|system| {
        let rates = grid.columns.iter().map(|column| grid.figure(report, Row::Rate(system), *column));
        let points = plots::bars(rates.map(|rate| rate.map(|rate| rate.median)));
        (!points.is_empty()).then(|| Series { name: (*system).to_owned(), points })
    });
    Plot {
        file: format!("{}-{}", comparison.name(), number + 1),
        title: title(comparison.title(), grid),
        up: "thousand operations a second".to_owned(),
        shape: Shape::Bars(grid.columns.iter().map(|column| column.head.to_owned()).collect()),
        series: series.collect(),
    }
}

/// Throughput over time of the first workload, in the first run of each system.
fn over_time(comparison: Comparison, grid: &Grid, number: usize, report: &Report) -> Option<Plot> {
    let column = grid.columns.iter().find(|column| column.phase != "load")?;
    let systems = std::iter::once(&grid.ours).chain(grid.peers);
    let series = systems.filter_map(|system| {
        let (case, index) = grid.case(report, system, *column)?;
        let points = plots::timeline(case.first().phases.get(index)?)?;
        Some(Series { name: (*system).to_owned(), points })
    });
    Some(Plot {
        file: format!("{}-time-{}", comparison.name(), number + 1),
        title: format!("{}: {} over time", title(comparison.title(), grid), column.head),
        up: "thousand operations a second".to_owned(),
        shape: Shape::Lines { across: "seconds".to_owned(), logarithmic: false },
        series: series.collect(),
    })
}

/// The distribution of the latencies of C.
fn latencies(grid: &Grid, number: usize, report: &Report) -> Plot {
    let mut series = Vec::new();
    for case in report.cases.iter().filter(|case| case.label == grid.label) {
        let first = case.first();
        let phase = first.phases.iter().find(|phase| phase.name == "c");
        let read = phase.and_then(|phase| phase.latencies.iter().find(|latency| latency.op == Op::Read));
        if let Some(read) = read {
            let points = read.cdf.iter().map(|(us, share)| (us.max(0.01), *share)).collect();
            series.push(Series { name: first.system.clone(), points });
        }
    }
    Plot {
        file: format!("two-tiers-latency-{}", number + 1),
        title: title("Share of reads that took at most so long, YCSB C", grid),
        up: "share of reads".to_owned(),
        shape: Shape::Lines { across: "microseconds".to_owned(), logarithmic: true },
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Outcome;
    use crate::phase::Measured;
    use crate::report::Repeated;

    #[test]
    fn every_comparison_of_throughput_shows_one_workload_over_time() {
        let phase = |name: &str| Measured {
            name: name.to_owned(),
            rate: 1.0,
            timeline: vec![(0.1, 1000.0), (0.2, 3000.0)],
            ..Measured::default()
        };
        for comparison in Comparison::ALL {
            let mut report = Report::default();
            for grid in comparison.grids() {
                for system in std::iter::once(&grid.ours).chain(grid.peers) {
                    let run = Outcome {
                        system: (*system).to_owned(),
                        threads: 1,
                        phases: ["load", "a", "put", "nutanix", "mixgraph"].map(phase).to_vec(),
                        ..Outcome::default()
                    };
                    report.cases.push(Repeated { label: grid.label.to_owned(), runs: vec![run] });
                }
            }
            let plots = comparison.plots(&report);
            let over_time: Vec<&Plot> = plots.iter().filter(|plot| plot.file.contains("-time-")).collect();
            assert_eq!(over_time.len(), comparison.grids().len(), "{}", comparison.name());
            for (plot, grid) in over_time.iter().zip(comparison.grids()) {
                assert_eq!(plot.series.len(), 1 + grid.peers.len(), "{}", plot.title);
                assert_eq!(plot.series[0].points, [(0.1, 1.0), (0.2, 3.0)], "{}", plot.title);
            }
        }
    }
}
