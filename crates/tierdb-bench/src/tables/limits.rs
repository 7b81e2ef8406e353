//! What is measured of TierDB alone, against the device, the clock and itself.

use super::compare::{BUSY, HITS, MISSES, UPDATES};
use super::grid::{Better, Score, verdict};
use crate::phase::Measured;
use crate::reference::{hit_median, miss_median};
use crate::report::{Checksums, Repeated, Report, Spread};
use crate::table::micros;
use crate::workload::Op;
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;
use tierdb::ByteSize;

/// Checksums of whole records that a put costs at most: of the record that is written, and of it when it is moved to
/// flash. A get that does not find its value in the cache costs one.
const PUT_RECORDS: f64 = 2.0;
const GET_RECORDS: f64 = 1.0;
/// Checksums of headers and words beside them, by a generous count.
const HEADERS: f64 = 4.0;
/// Bytes of a record with a key of 16 B and a value of 1 KiB, and of a header.
const RECORD: usize = 1072;
const HEADER: usize = 32;
/// Bytes that the records lie in of which checksums are timed: more than caches hold.
const SPREAD: usize = 64 << 20;

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
        let Some(found) = line.found else { continue };
        let target = line.target.map(|(at, better)| {
            let (met, text) = verdict(found, at, better);
            score.count(met);
            text
        });
        // Seconds and shares are often small.
        let found = if found < 1.0 { format!("{found:.3}") } else { micros(found) };
        let target = target.unwrap_or_else(|| line.elsewhere.clone());
        let _ = writeln!(out, "| {} | {found} {} | {target} | {} |", line.what, line.unit, line.how);
    }
    let _ = write!(out, "\n{}", score.text());
    out
}

/// Measures what checksums take here, the median of many rounds: of records that no cache holds, as they come from a device
/// or lie in memory since long, and of headers that have just been written or read.
pub(super) fn checksums() -> Checksums {
    let of = |len: usize, spread: usize| {
        const EACH: u32 = 1000;
        let bytes = vec![0x5a; spread];
        let mut rng = fastrand::Rng::with_seed(7);
        let rounds = (0..100).map(|seed| {
            let places: Vec<usize> = (0..EACH).map(|_| rng.usize(0..spread / len) * len).collect();
            let begun = Instant::now();
            for at in places {
                black_box(tierdb_base::checksum(seed, black_box(&bytes[at..at + len])));
            }
            (begun.elapsed() / EACH).as_secs_f64() * 1e6
        });
        median(Spread::of(rounds)).unwrap_or(0.0)
    };
    Checksums { record_us: of(RECORD, SPREAD), header_us: of(HEADER, HEADER) }
}

fn labelled<'r>(report: &'r Report, label: &str, system: &str) -> Option<&'r Repeated> {
    report.cases.iter().find(|case| case.label == label && case.first().system == system)
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
    let raw = reference.and_then(|reference| reference.depths.first()).map(|depth| depth.median_us);
    let percent = |of: Option<&Repeated>| {
        of_phase(of, |phase| phase.hit_ratio).map_or(String::new(), |hits| format!("{:.0} %", hits * 100.0))
    };
    // Where nearly all is answered from memory there is nothing to say about the device.
    let goes_to_flash = |phase: &Measured| phase.hit_ratio.is_some_and(|hits| hits < 0.9);
    let miss = of_phase(misses, |phase| miss_median(phase).filter(|_| goes_to_flash(phase)));
    let busy_share = of_phase(busy, |phase| {
        Some(phase.rate / reference?.ceiling(phase)?.by_device).filter(|_| goes_to_flash(phase))
    });
    let cost = |case: Option<&Repeated>, records: f64| {
        let sums = report.settings.checksums?;
        let each = of_phase(case, |phase| {
            let reads = phase.latencies.iter().any(|latency| latency.op == Op::Read);
            Some(phase.cpu_us_per_op).filter(|_| !reads || goes_to_flash(phase))
        })?;
        Some((records * sums.record_us + HEADERS * sums.header_us) / each * 100.0)
    };
    let sums = report.settings.checksums.unwrap_or_default();
    let share_of = |what: &str, records: f64| {
        format!(
            "{records:.0} of a record at {:.3} us (median, records anywhere in {}) and {HEADERS:.0} of a header at {:.3} us, as a share of the \
             processor time of {what}",
            sums.record_us,
            ByteSize(SPREAD as u64),
            sums.header_us
        )
    };
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
                "io_uring reads of 4 KiB, one at a time, in the same run: {} us",
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
        Line::new(
            "checksums of a put",
            cost(case(UPDATES), PUT_RECORDS),
            "%",
            share_of("a put", PUT_RECORDS),
        )
        .at_most(5.0),
        Line::new(
            "checksums of a get from flash",
            cost(misses, GET_RECORDS),
            "%",
            share_of("a get from flash", GET_RECORDS),
        )
        .at_most(5.0),
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
        let space = median(case.figure(|run| run.space.index_bytes_per_key()));
        let how = "keys of 16 B, loaded in random order";
        lines.push(Line::new(of("index and HSIT on the fast tier"), space, "B a key", how).at_most(54.0));
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
        assert!(!few.contains("met"), "{few}");
        let all = said(4_000_000);
        assert!(all.contains("≤ 1: 10 % over") && all.contains("≤ 0.1: met"), "{all}");
    }

    #[test]
    fn checksums_are_of_records_that_no_cache_holds() {
        let run = Outcome {
            system: "tierdb-byte".to_owned(),
            phases: ["load", "put"]
                .map(|name| Measured { name: name.to_owned(), cpu_us_per_op: 10.0, ..Measured::default() })
                .to_vec(),
            ..Outcome::default()
        };
        let report = Report {
            settings: Settings {
                checksums: Some(Checksums { record_us: 0.2, header_us: 0.025 }),
                ..Settings::default()
            },
            cases: vec![Repeated { label: UPDATES.to_owned(), runs: vec![run] }],
            ..Report::default()
        };
        let said = limits(&report);
        let line = "| checksums of a put | 5.00 % | ≤ 5: met | 2 of a record at 0.200 us (median, records anywhere in 64 MiB) and";
        assert!(said.contains(line), "{said}");
    }
}
