//! What is measured of TierDB alone, against the device, the clock and itself.

use super::compare::{BUSY, CHECKED, HITS, MISSES, UNCHECKED, UPDATES};
use super::grid::{Better, Score, verdict};
use crate::phase::Measured;
use crate::reference::{hit_median, miss_median};
use crate::report::{Repeated, Report, Spread};
use crate::table::micros;
use std::fmt::Write as _;

/// Keys that times to open are meant for: fewer are opened sooner.
const RECOVERY_KEYS: u64 = 4_000_000;

/// One line of the table.
struct Line {
    what: String,
    found: Option<f64>,
    unit: &'static str,
    target: Option<(f64, Better)>,
    /// A target that the figure cannot be held to, in words.
    elsewhere: String,
    how: String,
}

impl Line {
    fn new(what: impl Into<String>, found: Option<f64>, unit: &'static str, how: impl Into<String>) -> Self {
        Line { what: what.into(), found, unit, target: None, elsewhere: String::new(), how: how.into() }
    }

    fn at_least(self, at: f64) -> Self {
        Line { target: Some((at, Better::More)), ..self }
    }

    fn at_most(self, at: f64) -> Self {
        Line { target: Some((at, Better::Less)), ..self }
    }
}

fn table(lines: &[Line]) -> String {
    let mut out = "| what | measured | target | how |\n|---|---|---|---|\n".to_owned();
    let mut score = Score::default();
    for line in lines {
        let Some(found) = line.found else {
            score.absent += usize::from(line.target.is_some());
            continue;
        };
        let target = line.target.map(|(at, better)| {
            let (met, text) = verdict(found, at, better);
            score.count(met);
            text
        });
        // Seconds and shares are often small.
        let found = if found.abs() < 1.0 { format!("{found:.3}") } else { micros(found) };
        let target = target.unwrap_or_else(|| line.elsewhere.clone());
        let _ = writeln!(out, "| {} | {found} {} | {target} | {} |", line.what, line.unit, line.how);
    }
    let _ = write!(out, "\n{}", score.text());
    out
}

fn labelled<'r>(report: &'r Report, label: &str, system: &str) -> Option<&'r Repeated> {
    report.cases.iter().find(|case| case.label == label && case.first().system == system)
}

/// What checksums cost in phase number `index`: by how much there is less throughput with them than without.
fn checksums_of(report: &Report, index: usize, what: &str) -> Line {
    let of = |label: &str, figure: fn(&Measured) -> f64| {
        let runs = report.cases.iter().filter(|case| case.label == label).flat_map(|case| &case.runs);
        let figures: Vec<f64> = runs.filter_map(|run| run.phases.get(index).map(figure)).collect();
        let runs = figures.len();
        Spread::of(figures).map(|spread| (spread.median, runs))
    };
    let both = |figure| of(CHECKED, figure).zip(of(UNCHECKED, figure));
    let rates = both(|phase| phase.rate);
    let cost = rates.map(|((with, _), (without, _))| (1.0 - with / without) * 100.0);
    let mut how = String::new();
    if let (Some(((with, runs), (without, others))), Some(((cpu_with, _), (cpu_without, _)))) =
        (rates, both(|phase| phase.cpu_us_per_op))
    {
        let _ = write!(
            how,
            "throughput with them against that without, medians of {runs} and {others} runs in turn, 2 threads, flash in memory: {} and {} K ops/s; \
             processor time {} and {} us",
            micros(with / 1e3),
            micros(without / 1e3),
            micros(cpu_with),
            micros(cpu_without),
        );
    }
    Line::new(format!("checksums of {what}"), cost, "%", how).at_most(5.0)
}

/// A figure of the phase behind the load.
fn of_phase(case: Option<&Repeated>, of: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    median(case?.phase(1, of))
}

fn median(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

/// The limits in Markdown.
pub(super) fn limits(report: &Report) -> String {
    let case = |label| labelled(report, label, "tierdb-byte");
    let (hits, misses, busy) = (case(HITS), case(MISSES), case(BUSY));
    let reference = report.settings.reference.as_ref();
    let raw = of_phase(misses, |phase| Some(reference?.beside(phase).first()?.median_us));
    let percent = |of: Option<&Repeated>| {
        of_phase(of, |phase| phase.hit_ratio).map_or(String::new(), |hits| format!("{:.0} %", hits * 100.0))
    };
    // Where nearly all is answered from memory there is nothing to say about the device.
    let goes_to_flash = |phase: &Measured| phase.hit_ratio.is_some_and(|hits| hits < 0.9);
    let miss = of_phase(misses, |phase| miss_median(phase).filter(|_| goes_to_flash(phase)));
    let busy_share = of_phase(busy, |phase| {
        Some(phase.rate / reference?.ceiling(phase)?.by_device).filter(|_| goes_to_flash(phase))
    });
    let mut lines = vec![
        Line::new(
            "get served by the value cache, median",
            of_phase(hits, hit_median),
            "us",
            format!("YCSB C, 1 thread, memory for all values; {} hits", percent(hits)),
        )
        .at_most(1.0),
        Line::new(
            "get served by flash, median",
            miss,
            "us",
            format!("uniform keys, 1 thread, the least memory; {} hits", percent(misses)),
        ),
        Line::new(
            "the same, for each us of the device's own read",
            miss.zip(raw).map(|(miss, raw)| miss / raw),
            "",
            format!(
                "io_uring reads of 4 KiB, one at a time, right after it: {} us",
                raw.map_or(String::new(), micros)
            ),
        )
        .at_most(1.1),
        Line::new(
            "YCSB C, 16 threads: misses, share of the device's reads a second",
            busy_share.map(|share| share * 100.0),
            "%",
            format!(
                "memory a fifth of the data, scrambled zipfian; {} hits; device with 16 in flight",
                percent(busy)
            ),
        )
        .at_least(90.0),
        checksums_of(report, 1, "a put"),
        checksums_of(report, 2, "a get of uniform keys"),
    ];
    for case in report.cases.iter().filter(|case| case.label == UPDATES) {
        let idle = median(case.figure(|run| run.idle_cores)).map(|share| share * 100.0);
        let what = format!("{} idle, share of a core", case.first().system);
        lines.push(Line::new(what, idle, "%", "processor time of an open store after updates").at_most(0.5));
    }
    table(&lines)
}

/// Recovery and space in Markdown.
pub(super) fn recovery(report: &Report) -> String {
    let mut lines = Vec::new();
    let keys = crate::table::grouped(report.settings.keys);
    for case in &report.cases {
        let system = case.first().system.as_str();
        let killed = median(case.figure(|run| run.recover_seconds));
        let closed = median(case.figure(|run| run.open_seconds));
        let valuelog = system.starts_with("tierdb-");
        let of = |what: &str| format!("{system}: {what}");
        let killed =
            Line::new(of("open after kill -9"), killed, "s", format!("{keys} keys, killed while it writes"));
        let closed = Line::new(of("open after a close"), closed, "s", "the same store");
        let held = |line: Line, at: f64| match (valuelog, report.settings.keys >= RECOVERY_KEYS) {
            (false, _) => line,
            (true, true) => line.at_most(at),
            (true, false) => Line { elsewhere: format!("≤ {at} for 4 million keys"), ..line },
        };
        lines.extend([held(killed, 1.0), held(closed, 0.1)]);
        if valuelog {
            let space = median(case.figure(|run| run.space.index_bytes_per_key()));
            let how = "keys of 16 B, loaded in random order";
            lines.push(Line::new(of("index and HSIT on the fast tier"), space, "B a key", how).at_most(54.0));
        }
    }
    table(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Outcome;
    use crate::report::Settings;

    #[test]
    fn times_to_open_are_held_to_their_targets_with_as_many_keys_alone() {
        let said = |keys: u64| {
            let run = Outcome {
                system: "tierdb-byte".to_owned(),
                open_seconds: Some(0.05),
                recover_seconds: Some(1.1),
                ..Outcome::default()
            };
            recovery(&Report {
                settings: Settings { keys, ..Settings::default() },
                cases: vec![Repeated { label: String::new(), runs: vec![run] }],
                ..Report::default()
            })
        };
        let few = said(1_000_000);
        assert!(few.contains("| 1.10 s | ≤ 1 for 4 million keys |"), "{few}");
        assert!(few.contains("| 0.050 s | ≤ 0.1 for 4 million keys |"), "{few}");
        assert!(
            few.contains("Targets met: 0 of 0; not measured: 1."),
            "nothing says what a key takes: {few}"
        );
        let all = said(4_000_000);
        assert!(all.contains("≤ 1: 10 % over") && all.contains("≤ 0.1: met"), "{all}");
    }

    #[test]
    fn checksums_cost_what_there_is_more_throughput_without_them() {
        let runs = |label: &str, rates: [f64; 3]| {
            let run = |rate| Outcome {
                system: "tierdb-byte".to_owned(),
                phases: ["load", "put", "get"]
                    .map(|name| Measured {
                        name: name.to_owned(),
                        rate,
                        cpu_us_per_op: 4.0,
                        ..Measured::default()
                    })
                    .to_vec(),
                ..Outcome::default()
            };
            rates.map(|rate| Repeated { label: label.to_owned(), runs: vec![run(rate)] })
        };
        let with = runs(CHECKED, [9.6e4, 1e3, 9.9e4]);
        let without = runs(UNCHECKED, [1e5, 9.9e4, 9e5]);
        let report = Report { cases: with.into_iter().chain(without).collect(), ..Report::default() };
        let said = limits(&report);
        let line = "| checksums of a put | 4.00 % | ≤ 5: met | throughput with them against that without, medians of 3 and 3 runs in \
                    turn, 2 threads, flash in memory: 96.0 and 100 K ops/s; processor time 4.00 and 4.00 us |";
        assert!(said.contains(line), "{said}");
        assert!(said.contains("| checksums of a get of uniform keys |"), "{said}");
    }
}
