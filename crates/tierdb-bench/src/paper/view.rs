//! How a figure is shown: a line for each case and phase, the paper's finding beside it, and a plot.

use crate::phase::Measured;
use crate::plots::{Plot, Series, Shape};
use crate::report::{Repeated, Report, threads_text};
use crate::table::{grouped, micros};
use crate::tally::within;
use crate::workload::Op;
use std::fmt::Write as _;

/// What a column of the table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Operations a second.
    Rate,
    /// The same, where the view's base is 1.
    Relative,
    /// The same, where the first RocksDB of the run, which a peer's run may have beside ours, is 1 at the same point.
    TimesRocks,
    /// Average latency, where the view's base is 1.
    RelativeAverage,
    /// Average latency of the first RocksDB of the run at the same point, where that of this system is 1.
    TimesBelowRocks,
    /// Lowest rate of a tenth of a second.
    Lowest,
    /// Average latency of all operations.
    Average,
    /// Median latency of all operations.
    Median,
    /// Their 99th percentile.
    Tail,
    /// Median latency of reads.
    ReadMedian,
    /// Their 99th percentile.
    ReadTail,
    /// Bytes written to flash for each byte written.
    WriteAmplification,
    /// MiB written to flash.
    FlashWritten,
    /// Bytes written to flash for each operation.
    FlashPerOp,
    /// Microseconds of processor time for each operation.
    Cpu,
    /// Share of a core that migration takes.
    MigrationCpu,
    /// Reads that the object cache answered.
    FromMemory,
    /// Reads that the fast tier answered.
    FromFast,
    /// Reads that flash answered.
    FromFlash,
    /// Reads that did not go to flash.
    Hits,
    /// Keys copied to the fast tier.
    Promoted,
    /// Keys moved to flash.
    Demoted,
    /// Chunks of flash that were collected.
    Collected,
    /// Dollars for a gigabyte, from the label.
    Cost,
    /// Bytes of the fast tier that index and HSIT take for a key.
    KeyBytes,
    /// Seconds to open after a close.
    Open,
    /// Seconds to open after a kill.
    Recovery,
    /// The same for a million keys.
    RecoveryPerMillion,
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Rate => "ops/s",
            Column::Relative => "relative",
            Column::TimesRocks => "x RocksDB",
            Column::RelativeAverage => "relative us",
            Column::TimesBelowRocks => "RocksDB us x",
            Column::Lowest => "lowest ops/s",
            Column::Average => "average us",
            Column::Median => "median us",
            Column::Tail => "99 % us",
            Column::ReadMedian => "read p50 us",
            Column::ReadTail => "read p99 us",
            Column::WriteAmplification => "W amp",
            Column::FlashWritten => "flash MiB",
            Column::FlashPerOp => "flash B/op",
            Column::Cpu => "CPU us",
            Column::MigrationCpu => "migration CPU",
            Column::FromMemory => "DRAM reads",
            Column::FromFast => "NVM reads",
            Column::FromFlash => "flash reads",
            Column::Hits => "hits",
            Column::Promoted => "promoted",
            Column::Demoted => "demoted",
            Column::Collected => "collected",
            Column::Cost => "$/GB",
            Column::KeyBytes => "B/key",
            Column::Open => "open s",
            Column::Recovery => "recovery s",
            Column::RecoveryPerMillion => "s/million",
        }
    }

    fn text(self, figure: f64) -> String {
        match self {
            Column::Rate | Column::Lowest | Column::FlashPerOp => grouped(figure as u64),
            Column::Promoted | Column::Demoted | Column::Collected => grouped(figure as u64),
            Column::Average | Column::Median | Column::Tail | Column::ReadMedian | Column::ReadTail => {
                micros(figure)
            }
            Column::Cpu => micros(figure),
            Column::MigrationCpu
            | Column::FromMemory
            | Column::FromFast
            | Column::FromFlash
            | Column::Hits => {
                format!("{:.1} %", figure * 100.0)
            }
            Column::FlashWritten | Column::KeyBytes => format!("{figure:.1}"),
            Column::Open | Column::Recovery | Column::RecoveryPerMillion => format!("{figure:.3}"),
            Column::Relative
            | Column::TimesRocks
            | Column::RelativeAverage
            | Column::TimesBelowRocks
            | Column::WriteAmplification
            | Column::Cost => {
                format!("{figure:.2}")
            }
        }
    }

    /// The figure of phase number `index` of `case`, the median of all repetitions; `None` where there is none.
    fn of(self, case: &Repeated, index: usize) -> Option<f64> {
        let spread = match self {
            Column::Cost => return case.label.split('$').nth(1)?.split('/').next()?.parse().ok(),
            Column::Relative | Column::RelativeAverage => return None,
            Column::TimesRocks | Column::TimesBelowRocks => return None,
            Column::KeyBytes => case.figure(|run| run.space.index_bytes_per_key()),
            Column::Open => case.figure(|run| run.open_seconds),
            Column::Recovery => case.figure(|run| run.recover_seconds),
            Column::RecoveryPerMillion => {
                case.figure(|run| Some(run.recover_seconds? * 1e6 / run.space.keys.max(1) as f64))
            }
            Column::ReadMedian => case.latency(index, Op::Read, |latency| latency.p50_us),
            Column::ReadTail => case.latency(index, Op::Read, |latency| latency.p99_us),
            _ => case.phase(index, |phase| self.of_phase(phase)),
        };
        spread.map(|spread| spread.median)
    }

    fn of_phase(self, phase: &Measured) -> Option<f64> {
        let counter = |name: &str| {
            phase.counters.iter().find(|(own, _)| own == name).map_or(0.0, |(_, count)| *count as f64)
        };
        // Of what the fast tier's records answered, DRAM had some, too; and the fast tier has tables beside them.
        let from_memory = counter("reads_cached") + counter("reads_fast_cached");
        let from_fast = counter("reads_fast") - counter("reads_fast_cached") + counter("reads_fast_tables");
        let reads = from_memory + from_fast + counter("reads_flash");
        let share = |served: f64| (reads > 0.0).then(|| served / reads);
        let flash = || phase.flash_written_bytes() as f64;
        let grown = |name: &str| Some(counter(name)).filter(|count| *count > 0.0);
        match self {
            Column::Rate => Some(phase.rate),
            Column::Lowest => phase.timeline.iter().map(|(_, rate)| *rate).min_by(f64::total_cmp),
            Column::Average => {
                let count: u64 = phase.latencies.iter().map(|latency| latency.count).sum();
                let each = phase.latencies.iter().map(|latency| latency.average_us * latency.count as f64);
                Some(each.sum::<f64>() / count.max(1) as f64)
            }
            Column::Median => within(&phase.latencies, 0.5),
            Column::Tail => within(&phase.latencies, 0.99),
            Column::WriteAmplification => phase.write_amplification,
            Column::FlashWritten => Some(flash() / f64::from(1 << 20)),
            Column::FlashPerOp => Some(flash() / phase.ops.max(1) as f64),
            Column::Cpu => Some(phase.cpu_us_per_op),
            Column::MigrationCpu => Some(grown("migration_cpu_ns")? / 1e9 / phase.seconds.max(1e-9)),
            Column::FromMemory => share(from_memory),
            Column::FromFast => share(from_fast),
            Column::FromFlash => share(counter("reads_flash")),
            Column::Hits => phase.hit_ratio,
            Column::Promoted => grown("promoted_keys"),
            Column::Demoted => grown("demoted_keys"),
            Column::Collected => grown("collected_chunks"),
            _ => None,
        }
    }
}

/// A case's label and a phase's name, by which a figure knows its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<'a> {
    /// The label.
    pub label: &'a str,
    /// The phase.
    pub phase: &'a str,
    /// The threads.
    pub threads: usize,
}

/// Where a point stands in a plot: its series, and how far to the right.
pub type Place = fn(At<'_>) -> Option<(String, f64)>;

/// What the plot of a figure shows.
pub struct Drawing {
    /// The name of the file.
    pub file: &'static str,
    /// The name of the vertical axis.
    pub up: &'static str,
    /// What is drawn, divided by this.
    pub of: (Column, f64),
    /// The name of the horizontal axis; without one it has the names of phases, and bars stand on it.
    pub across: Option<&'static str>,
    /// Where a point stands.
    pub place: Place,
}

impl Drawing {
    /// Throughput in thousands of operations a second.
    pub fn of_rate(file: &'static str, across: Option<&'static str>, place: Place) -> Self {
        Drawing { file, up: "thousand operations a second", of: (Column::Rate, 1e3), across, place }
    }
}

/// How a figure is shown.
pub struct View {
    /// What it is.
    pub title: String,
    /// What the paper says it shows.
    pub finding: &'static str,
    /// What stands in the table.
    pub columns: &'static [Column],
    /// Whether the load has a line too.
    pub load: bool,
    /// Whether the second is what the first is compared with.
    pub base: Option<fn(At<'_>, At<'_>) -> bool>,
    /// The paper's figure for a point of a system.
    pub paper: fn(&str, At<'_>) -> Option<String>,
    /// The plot.
    pub drawing: Option<Drawing>,
    /// Whether the distribution of the latencies of reads is drawn.
    pub distribution: bool,
}

struct Point<'a> {
    case: &'a Repeated,
    index: usize,
    at: At<'a>,
}

impl View {
    /// A table with a line for each point but the loads, and no more.
    pub fn plain(title: String, finding: &'static str, columns: &'static [Column]) -> Self {
        View {
            title,
            finding,
            columns,
            load: false,
            base: None,
            paper: |_, _| None,
            drawing: None,
            distribution: false,
        }
    }

    fn points<'a>(&self, report: &'a Report) -> Vec<Point<'a>> {
        let mut points = Vec::new();
        for case in &report.cases {
            let first = case.first();
            let load_alone = first.phases.len() == 1;
            for (index, phase) in first.phases.iter().enumerate() {
                if index > 0 || self.load || load_alone {
                    let at = At { label: &case.label, phase: &phase.name, threads: first.threads };
                    points.push(Point { case, index, at });
                }
            }
        }
        points
    }

    /// The figure of a column at a point.
    fn figure(&self, points: &[Point<'_>], point: &Point<'_>, column: Column) -> Option<f64> {
        let system = |of: &Point<'_>| of.case.first().system.clone();
        let base = match column {
            Column::Relative | Column::RelativeAverage => {
                let is_base = self.base?;
                points.iter().find(|other| system(other) == system(point) && is_base(point.at, other.at))?
            }
            Column::TimesRocks | Column::TimesBelowRocks => {
                points.iter().find(|other| system(other).starts_with("rocksdb") && point.at == other.at)?
            }
            _ => return column.of(point.case, point.index),
        };
        let (what, is_upside_down) = match column {
            Column::RelativeAverage => (Column::Average, false),
            Column::TimesBelowRocks => (Column::Average, true),
            _ => (Column::Rate, false),
        };
        let own = what.of(point.case, point.index)?;
        let base = what.of(base.case, base.index)?;
        let (part, whole) = if is_upside_down { (base, own) } else { (own, base) };
        (whole > 0.0).then(|| part / whole)
    }

    /// The figure as text.
    pub fn text(&self, report: &Report) -> String {
        let points = self.points(report);
        let shown: Vec<Column> = (self.columns.iter().copied())
            .filter(|column| points.iter().any(|point| self.figure(&points, point, *column).is_some()))
            .collect();
        let mut rows = vec![["system", "what"].into_iter().map(str::to_owned).collect::<Vec<_>>()];
        rows[0].extend(shown.iter().map(|column| column.name().to_owned()));
        rows[0].push("the paper".to_owned());
        let threads_vary = points.iter().any(|point| point.at.threads != points[0].at.threads);
        for point in &points {
            let mut what = match (point.at.label, point.at.phase) {
                ("", phase) => phase.to_owned(),
                (label, phase) if point.case.first().phases.len() > 2 || point.index == 0 => {
                    format!("{label}: {phase}")
                }
                (label, _) => label.to_owned(),
            };
            if threads_vary {
                let _ = write!(what, ", {}", threads_text(point.at.threads));
            }
            let mut row = vec![point.case.first().system.clone(), what];
            row.extend(shown.iter().map(|column| {
                self.figure(&points, point, *column).map_or(String::new(), |figure| column.text(figure))
            }));
            row.push((self.paper)(&point.case.first().system, point.at).unwrap_or_default());
            rows.push(row);
        }
        let widths: Vec<usize> = (0..rows[0].len())
            .map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0))
            .collect();
        let mut out = format!("\n{}\nThe paper: {}\n", self.title, self.finding);
        for row in &rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
                // Words to the left, figures to the right.
                if at < 2 || at + 1 == widths.len() {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            let _ = writeln!(out, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        out
    }

    /// The figure as plots.
    pub fn plots(&self, report: &Report) -> Vec<Plot> {
        let points = self.points(report);
        let systems: Vec<&str> = points.iter().map(|point| point.case.first().system.as_str()).collect();
        let several = systems.iter().any(|system| *system != systems[0]);
        let mut plots = Vec::new();
        if let Some(drawing) = &self.drawing {
            let mut series: Vec<Series> = Vec::new();
            let mut groups: Vec<String> = Vec::new();
            for point in &points {
                let Some((name, x)) = (drawing.place)(point.at) else { continue };
                let (column, scale) = drawing.of;
                let Some(y) = self.figure(&points, point, column) else { continue };
                let system = &point.case.first().system;
                let name = match (name.is_empty(), several) {
                    (true, _) => system.clone(),
                    (false, true) => format!("{system}: {name}"),
                    (false, false) => name,
                };
                let group = groups.iter().position(|group| group == point.at.phase);
                let group = group.unwrap_or_else(|| {
                    groups.push(point.at.phase.to_owned());
                    groups.len() - 1
                });
                let x = if drawing.across.is_some() { x } else { group as f64 };
                match series.iter_mut().find(|own| own.name == name) {
                    Some(own) => own.points.push((x, y / scale)),
                    None => series.push(Series { name, points: vec![(x, y / scale)] }),
                }
            }
            let shape = match drawing.across {
                Some(across) => Shape::Lines { across: across.to_owned(), logarithmic: false },
                None => Shape::Bars(groups),
            };
            plots.push(Plot {
                file: drawing.file.to_owned(),
                title: self.title.clone(),
                up: drawing.up.to_owned(),
                shape,
                series,
            });
        }
        if self.distribution {
            plots.push(self.latencies(&points));
        }
        plots
    }

    fn latencies(&self, points: &[Point<'_>]) -> Plot {
        let mut series = Vec::new();
        for point in points {
            let first = point.case.first();
            let read = first.phases[point.index].latencies.iter().find(|latency| latency.op == Op::Read);
            if let Some(read) = read {
                let points = read.cdf.iter().map(|(us, share)| (us.max(0.01), *share)).collect();
                series.push(Series { name: format!("{} {}", first.system, point.at.label), points });
            }
        }
        Plot {
            file: "read-latency".to_owned(),
            title: self.title.clone(),
            up: "share of reads that took at most so long".to_owned(),
            shape: Shape::Lines { across: "microseconds".to_owned(), logarithmic: true },
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Outcome;
    use crate::tally::Latency;

    #[test]
    fn what_rocksdb_has_at_a_point_is_what_ours_is_a_multiple_of() {
        let case = |system: &str, rates: [f64; 2]| {
            let phase = |(name, rate): (&str, f64)| {
                // Of one thread.
                let latency = Latency {
                    op: Op::Read,
                    count: 1,
                    never_begun: 0,
                    average_us: 1e6 / rate,
                    p50_us: 0.0,
                    p99_us: 0.0,
                    p999_us: 0.0,
                    max_us: 0.0,
                    cdf: Vec::new(),
                };
                Measured { name: name.to_owned(), rate, latencies: vec![latency], ..Measured::default() }
            };
            let phases = vec![phase(("load", 9.0)), phase(("a", rates[0])), phase(("b", rates[1]))];
            let run = Outcome { system: system.to_owned(), phases, ..Outcome::default() };
            Repeated { label: String::new(), runs: vec![run] }
        };
        let view = View::plain(
            "a figure".to_owned(),
            "",
            &[Column::Rate, Column::TimesBelowRocks, Column::TimesRocks],
        );
        let ours = case("slab-byte", [300.0, 50.0]);
        let alone = Report { cases: vec![ours.clone()], ..Report::default() };
        assert!(!view.text(&alone).contains("x RocksDB"), "{}", view.text(&alone));
        let beside = Report { cases: vec![ours, case("rocksdb-tiers", [100.0, 100.0])], ..Report::default() };
        let text = view.text(&beside);
        let line = |what: &str| {
            let line = text.lines().find(|line| line.starts_with(what)).expect("a line");
            line.split_whitespace().rev().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(text.contains("x RocksDB"), "{text}");
        assert_eq!(line("  slab-byte      a"), ["3.00", "3.00"], "{text}");
        assert_eq!(line("  slab-byte      b"), ["0.50", "0.50"], "{text}");
    }

    #[test]
    fn points_that_differ_by_their_threads_alone_are_told_from_each_other() {
        let report = |threads: &[usize]| {
            let case = |threads: &usize| {
                let phases =
                    ["load", "a"].map(|name| Measured { name: name.to_owned(), ..Measured::default() });
                let run = Outcome { threads: *threads, phases: phases.to_vec(), ..Outcome::default() };
                Repeated { label: String::new(), runs: vec![run] }
            };
            Report { cases: threads.iter().map(case).collect(), ..Report::default() }
        };
        let view = View::plain("a figure".to_owned(), "", &[Column::Rate]);
        let text = view.text(&report(&[1, 2]));
        assert!(text.contains(" a, 1 thread ") && text.contains(" a, 2 threads "), "{text}");
        let text = view.text(&report(&[2, 2]));
        assert!(!text.contains("threads"), "{text}");
    }
}
