//! A table with a column for each workload and rows for what was measured, ratios and targets among them.

use crate::case::Outcome;
use crate::phase::Measured;
use crate::report::{Repeated, Report, Spread};
use crate::table::micros;
use crate::tally::Latency;
use crate::workload::Op;
use std::fmt::Write as _;

/// A column: one phase of the cases with so many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// What stands above it.
    pub head: &'static str,
    /// Threads of the case; without them the first that fits.
    pub threads: Option<usize>,
    /// The phase.
    pub phase: &'static str,
}

/// What stands in a row, of a system or of ours against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Thousands of operations a second.
    Rate(&'static str),
    /// Ours for each of the peer's.
    Times(&'static str),
    /// Microseconds of processor time for an operation.
    Cpu(&'static str),
    /// The peer's for each of ours.
    CpuTimes(&'static str),
    /// 99th percentile of the latency of reads, in microseconds.
    Tail(&'static str),
    /// Ours for each of the peer's.
    TailShare(&'static str),
    /// 99th percentile of the latency of scans, in microseconds.
    ScanTail(&'static str),
    /// Ours for each of the peer's.
    ScanTailShare(&'static str),
    /// 99th percentile of the latency of writes, and of reads with a write behind them, in microseconds.
    WriteTail(&'static str),
    /// Ours for each of the peer's.
    WriteTailShare(&'static str),
    /// The longest of these, in milliseconds.
    LongestWrite(&'static str),
    /// Bytes written to flash for each byte of keys and values.
    Written(&'static str),
    /// Ours for each of the peer's.
    WrittenShare(&'static str),
    /// Share of reads that did not go to flash.
    Hits(&'static str),
    /// Percent of what that and the device allow.
    Ceiling(&'static str),
    /// MiB of memory that its process has of its own at the end of the phase, without the benchmark's.
    Resident(&'static str),
    /// Bytes that the file systems have allocated for each byte of keys and values, at the end of the case.
    Space(&'static str),
}

/// What a row is meant to reach in some columns.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The row.
    pub row: Row,
    /// The columns, by their heads.
    pub heads: &'static [&'static str],
    /// The figure.
    pub at: f64,
}

/// Whether more is better, and so a target is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    More,
    Less,
}

/// A figure beside what it is meant to be: `≥ 3: met`.
pub(super) fn verdict(found: f64, at: f64, better: Better) -> (bool, String) {
    let (met, sign, missed) = match better {
        Better::More => (found >= at, "≥", "short"),
        Better::Less => (found <= at, "≤", "over"),
    };
    let at_text = format!("{}", (at * 1e4).round() / 1e4);
    if met {
        return (true, format!("{sign} {at_text}: met"));
    }
    let off = (found - at).abs() / at * 100.0;
    let digits = usize::from(off < 1.0);
    (false, format!("{sign} {at_text}: {off:.digits$} % {missed}"))
}

/// Targets that were met, of those that could be looked at, and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Score {
    pub met: usize,
    pub of: usize,
    /// Of what was not measured: a case has failed, or was not to be run.
    pub absent: usize,
}

impl Score {
    pub(super) fn count(&mut self, met: bool) {
        self.met += usize::from(met);
        self.of += 1;
    }

    pub(super) fn text(self) -> String {
        let absent =
            if self.absent == 0 { String::new() } else { format!("; not measured: {}", self.absent) };
        if self.of + self.absent == 0 {
            String::new()
        } else {
            format!("Targets met: {} of {}{absent}.\n", self.met, self.of)
        }
    }
}

/// A table.
pub struct Grid {
    /// The label of its cases, which stands above it.
    pub label: &'static str,
    /// Our system.
    pub ours: &'static str,
    /// What it is compared with; processor time and latencies with the first alone.
    pub peers: &'static [&'static str],
    /// Its columns.
    pub columns: Vec<Column>,
    /// What is to be reached.
    pub targets: Vec<Target>,
}

impl Row {
    fn name(self) -> String {
        match self {
            Row::Rate(system) => format!("{system}, K ops/s"),
            Row::Times(peer) => format!("**times {peer}**"),
            Row::Cpu(system) => format!("{system}, CPU us an operation"),
            Row::CpuTimes(peer) => format!("**CPU, {peer} / ours**"),
            Row::Tail(system) => format!("{system}, p99 of reads, us"),
            Row::TailShare(peer) => format!("**p99 of reads, ours / {peer}**"),
            Row::ScanTail(system) => format!("{system}, p99 of scans, us"),
            Row::ScanTailShare(peer) => format!("**p99 of scans, ours / {peer}**"),
            Row::WriteTail(system) => format!("{system}, p99 of writes, us"),
            Row::WriteTailShare(peer) => format!("**p99 of writes, ours / {peer}**"),
            Row::LongestWrite(system) => format!("{system}, longest write, ms"),
            Row::Written(system) => format!("{system}, bytes to flash for each byte"),
            Row::WrittenShare(peer) => format!("**bytes to flash, ours / {peer}**"),
            Row::Hits(system) => format!("{system}, reads without flash"),
            Row::Ceiling(system) => format!("**{system}, share of the ceiling**"),
            Row::Resident(system) => format!("{system}, MiB of memory of its own"),
            Row::Space(system) => format!("{system}, bytes allocated for each stored"),
        }
    }

    fn better(self) -> Better {
        match self {
            Row::Rate(_) | Row::Times(_) | Row::CpuTimes(_) | Row::Hits(_) | Row::Ceiling(_) => Better::More,
            Row::Cpu(_)
            | Row::Tail(_)
            | Row::TailShare(_)
            | Row::ScanTail(_)
            | Row::ScanTailShare(_)
            | Row::WriteTail(_)
            | Row::WriteTailShare(_)
            | Row::LongestWrite(_)
            | Row::Written(_)
            | Row::WrittenShare(_)
            | Row::Resident(_)
            | Row::Space(_) => Better::Less,
        }
    }
}

/// Operations that write: a workload is judged by the first kind that it has.
const WRITES: [Op; 3] = [Op::Update, Op::Insert, Op::ReadModifyWrite];

/// The latencies of the first of these kinds of operations that the phase has.
fn latency<'p>(phase: &'p Measured, ops: &[Op]) -> Option<&'p Latency> {
    ops.iter().find_map(|op| phase.latencies.iter().find(|latency| latency.op == *op))
}

impl Grid {
    fn rows(&self) -> Vec<Row> {
        let systems = || std::iter::once(&self.ours).chain(self.peers).copied();
        let first = || self.peers.first().copied();
        let mut rows: Vec<Row> = systems().map(Row::Rate).collect();
        rows.extend(self.peers.iter().copied().map(Row::Times));
        rows.extend(systems().map(Row::Cpu));
        rows.extend(first().map(Row::CpuTimes));
        rows.extend(systems().map(Row::Tail));
        rows.extend(first().map(Row::TailShare));
        rows.extend(systems().map(Row::ScanTail));
        rows.extend(first().map(Row::ScanTailShare));
        rows.extend(systems().map(Row::WriteTail));
        rows.extend(first().map(Row::WriteTailShare));
        rows.extend(systems().map(Row::LongestWrite));
        rows.extend(systems().map(Row::Written));
        rows.extend(first().map(Row::WrittenShare));
        rows.extend([Row::Hits(self.ours), Row::Ceiling(self.ours)]);
        rows.extend(systems().map(Row::Resident));
        rows.extend(systems().map(Row::Space));
        rows
    }

    /// The case of `system` that `column` is of, and the number of its phase there.
    pub(super) fn case<'r>(
        &self,
        report: &'r Report,
        system: &str,
        column: Column,
    ) -> Option<(&'r Repeated, usize)> {
        report.cases.iter().find_map(|case| {
            let first = case.first();
            let fits = first.system == system
                && case.label == self.label
                && column.threads.is_none_or(|threads| first.threads == threads);
            let index = first.phases.iter().position(|phase| phase.name == column.phase).filter(|_| fits)?;
            Some((case, index))
        })
    }

    /// The figure of `row` in `column`, where it was measured.
    pub(super) fn figure(&self, report: &Report, row: Row, column: Column) -> Option<Spread> {
        let ratio = |over: Row, under: Row| {
            let (over, under) =
                (self.figure(report, over, column)?.median, self.figure(report, under, column)?.median);
            Spread::of((under > 0.0).then(|| over / under))
        };
        match row {
            Row::Times(peer) => return ratio(Row::Rate(self.ours), Row::Rate(peer)),
            Row::CpuTimes(peer) => return ratio(Row::Cpu(peer), Row::Cpu(self.ours)),
            Row::TailShare(peer) => return ratio(Row::Tail(self.ours), Row::Tail(peer)),
            Row::ScanTailShare(peer) => return ratio(Row::ScanTail(self.ours), Row::ScanTail(peer)),
            Row::WriteTailShare(peer) => return ratio(Row::WriteTail(self.ours), Row::WriteTail(peer)),
            Row::WrittenShare(peer) => return ratio(Row::Written(self.ours), Row::Written(peer)),
            _ => {}
        }
        let (Row::Rate(system)
        | Row::Cpu(system)
        | Row::Tail(system)
        | Row::ScanTail(system)
        | Row::WriteTail(system)
        | Row::LongestWrite(system)
        | Row::Resident(system)
        | Row::Space(system)
        | Row::Written(system)
        | Row::Hits(system)
        | Row::Ceiling(system)
        | Row::Times(system)
        | Row::CpuTimes(system)
        | Row::TailShare(system)
        | Row::ScanTailShare(system)
        | Row::WriteTailShare(system)
        | Row::WrittenShare(system)) = row;
        let (case, index) = self.case(report, system, column)?;
        let tail = |phase: &Measured, ops: &[Op]| latency(phase, ops).map(|latency| latency.p99_us);
        if let Row::Space(_) = row {
            let is_last = |run: &Outcome| index + 1 == run.phases.len();
            let space = |run: &Outcome| Some(run.space.amplification).filter(|space| *space > 0.0);
            return case.figure(|run| space(run).filter(|_| is_last(run)));
        }
        case.phase(index, |phase| match row {
            Row::Cpu(_) => Some(phase.cpu_us_per_op),
            Row::Tail(_) => tail(phase, &[Op::Read]),
            Row::ScanTail(_) => tail(phase, &[Op::Scan]),
            Row::WriteTail(_) => tail(phase, &WRITES),
            Row::LongestWrite(_) => latency(phase, &WRITES).map(|latency| latency.max_us / 1e3),
            Row::Resident(_) => {
                let own = phase.resident.anonymous.saturating_sub(phase.harness_bytes);
                Some(own as f64 / f64::from(1 << 20)).filter(|own| *own > 0.0)
            }
            Row::Written(_) => phase.write_amplification,
            Row::Hits(_) => phase.hit_ratio,
            Row::Ceiling(_) => {
                Some(phase.rate / report.settings.reference.as_ref()?.ceiling(phase)?.rate() * 100.0)
            }
            _ => Some(phase.rate / 1e3),
        })
    }

    fn target(&self, row: Row, column: Column) -> Option<&Target> {
        self.targets.iter().find(|target| target.row == row && target.heads.contains(&column.head))
    }

    fn cell(&self, report: &Report, row: Row, column: Column, score: &mut Score) -> Option<String> {
        if let Row::WrittenShare(peer) = row
            && let (Some(ours), Some(peers)) = (
                self.figure(report, Row::Written(self.ours), column),
                self.figure(report, Row::Written(peer), column),
            )
            && ours.median > 0.0
            && peers.median == 0.0
        {
            // No share of nothing is small enough.
            return self.target(row, column).map(|_| {
                score.count(false);
                format!("{peer} wrote none (missed)")
            });
        }
        let spread = self.figure(report, row, column)?;
        let mut text = match row {
            Row::Hits(_) => format!("{:.0} %", spread.median * 100.0),
            Row::Ceiling(_) => format!("{:.0} %", spread.median),
            _ if spread.low < spread.high => {
                format!("{} ± {:.0} %", micros(spread.median), spread.relative() * 100.0)
            }
            _ => micros(spread.median),
        };
        if let Some(target) = self.target(row, column) {
            let (met, verdict) = verdict(spread.median, target.at, row.better());
            score.count(met);
            let _ = write!(text, " ({verdict})");
        }
        Some(text)
    }

    /// The table in Markdown, with how many targets were met.
    pub fn markdown(&self, report: &Report) -> String {
        let mut out = String::new();
        if !self.label.is_empty() {
            let _ = writeln!(out, "### {}{}\n", self.label[..1].to_uppercase(), &self.label[1..]);
        }
        let _ = writeln!(
            out,
            "| |{}",
            self.columns.iter().map(|own| format!(" {} |", own.head)).collect::<String>()
        );
        let _ = writeln!(out, "|---|{}", "---|".repeat(self.columns.len()));
        let mut score = Score::default();
        for row in self.rows() {
            let cells: Vec<Option<String>> =
                self.columns.iter().map(|column| self.cell(report, row, *column, &mut score)).collect();
            if cells.iter().any(Option::is_some) {
                let cells = cells.into_iter().map(|cell| format!(" {} |", cell.unwrap_or_default()));
                let _ = writeln!(out, "| {} |{}", row.name(), cells.collect::<String>());
            }
        }
        let asked = self.targets.iter().map(|target| {
            let has = |head: &&&str| self.columns.iter().any(|column| column.head == **head);
            target.heads.iter().filter(has).count()
        });
        score.absent = asked.sum::<usize>() - score.of;
        let said = score.text();
        if !said.is_empty() {
            let _ = write!(out, "\n{said}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(system: &str, threads: usize, rates: &[f64], cpu: f64) -> Repeated {
        let run = |rate: &f64| Outcome {
            system: system.to_owned(),
            threads,
            phases: vec![Measured {
                name: "a".to_owned(),
                threads,
                rate: *rate,
                cpu_us_per_op: cpu,
                write_amplification: Some(cpu / 2.0),
                ..Measured::default()
            }],
            ..Outcome::default()
        };
        Repeated { label: "scrambled".to_owned(), runs: rates.iter().map(run).collect() }
    }

    fn grid(columns: &[(&'static str, Option<usize>)]) -> Grid {
        let column =
            |(head, threads): &(&'static str, Option<usize>)| Column { head, threads: *threads, phase: "a" };
        Grid {
            label: "scrambled",
            ours: "ours",
            peers: &["peer", "absent"],
            columns: columns.iter().map(column).collect(),
            targets: vec![
                Target { row: Row::Times("peer"), heads: &["A", "A, 4"], at: 3.0 },
                Target { row: Row::CpuTimes("peer"), heads: &["A"], at: 2.5 },
                Target { row: Row::Written("ours"), heads: &["A"], at: 1.3 },
                Target { row: Row::Times("absent"), heads: &["A"], at: 1.0 },
            ],
        }
    }

    #[test]
    fn ratios_are_of_medians_and_stand_beside_their_targets() {
        let report = Report {
            cases: vec![
                case("ours", 2, &[90e3, 110e3, 100e3], 4.0),
                case("peer", 2, &[25e3, 20e3, 30e3], 10.0),
                case("ours", 4, &[150e3], 4.0),
                case("peer", 4, &[60e3], 10.0),
            ],
            ..Report::default()
        };
        let text = grid(&[("A", Some(2)), ("A, 4", Some(4))]).markdown(&report);
        for line in [
            "### Scrambled",
            "| | A | A, 4 |",
            "| ours, K ops/s | 100 ± 10 % | 150 |",
            "| peer, K ops/s | 25.0 ± 20 % | 60.0 |",
            "| **times peer** | 4.00 (≥ 3: met) | 2.50 (≥ 3: 17 % short) |",
            "| **CPU, peer / ours** | 2.50 (≥ 2.5: met) | 2.50 |",
            "| ours, bytes to flash for each byte | 2.00 (≤ 1.3: 54 % over) | 2.00 |",
            "| **bytes to flash, ours / peer** | 0.40 | 0.40 |",
            "Targets met: 2 of 4; not measured: 1.",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
        assert!(
            !text.contains("absent") && !text.contains("p99"),
            "no row stands for what was not measured: {text}"
        );
    }

    #[test]
    fn what_differs_between_runs_has_its_spread_beside_it() {
        let mut ours = case("ours", 2, &[1e3, 1e3, 1e3], 4.0);
        for (run, cpu) in ours.runs.iter_mut().zip([3.0, 4.0, 5.0]) {
            run.phases[0].cpu_us_per_op = cpu;
        }
        let text = grid(&[("A", Some(2))]).markdown(&Report { cases: vec![ours], ..Report::default() });
        assert!(text.lines().any(|own| own == "| ours, CPU us an operation | 4.00 ± 25 % |"), "{text}");
        assert!(text.lines().any(|own| own == "| ours, K ops/s | 1.00 |"), "{text}");
    }

    #[test]
    fn scans_and_writes_have_tails_of_their_own_and_what_is_held_is_told() {
        let with = |system: &str, p99_us: f64| {
            let mut case = case(system, 2, &[1e3], 4.0);
            let run = &mut case.runs[0];
            for (op, p99_us) in [(Op::Scan, p99_us), (Op::ReadModifyWrite, 2.0 * p99_us)] {
                run.phases[0].latencies.push(Latency {
                    op,
                    count: 9,
                    never_begun: 0,
                    average_us: 1.0,
                    p50_us: 1.0,
                    p99_us,
                    p999_us: 1.0,
                    max_us: 30.0 * p99_us,
                    cdf: Vec::new(),
                });
            }
            run.phases[0].resident.anonymous = 5 << 20;
            run.phases[0].harness_bytes = 1 << 20;
            run.space.amplification = 1.25;
            case
        };
        let report = Report { cases: vec![with("ours", 50.0), with("peer", 200.0)], ..Report::default() };
        let text = grid(&[("A", Some(2))]).markdown(&report);
        for line in [
            "| ours, p99 of scans, us | 50.0 |",
            "| peer, p99 of scans, us | 200 |",
            "| **p99 of scans, ours / peer** | 0.25 |",
            "| peer, p99 of writes, us | 400 |",
            "| **p99 of writes, ours / peer** | 0.25 |",
            "| ours, longest write, ms | 3.00 |",
            "| peer, longest write, ms | 12.0 |",
            "| ours, MiB of memory of its own | 4.00 |",
            "| peer, bytes allocated for each stored | 1.25 |",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
        assert!(!text.contains("p99 of reads"), "{text}");
    }

    #[test]
    fn what_is_missed_by_little_is_missed() {
        assert_eq!(verdict(2.99, 3.0, Better::More), (false, "≥ 3: 0.3 % short".to_owned()));
        assert_eq!(verdict(0.5, 0.5, Better::Less), (true, "≤ 0.5: met".to_owned()));
    }
}
