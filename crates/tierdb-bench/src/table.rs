//! A report as text for people.

use crate::reference;
use crate::report::{Repeated, Report, Spread};
use crate::store::TierIo;
use crate::workload::Op;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use tierdb::ByteSize;

/// The report as a table.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for line in heading(report) {
        let _ = writeln!(out, "{line}");
    }
    for case in &report.cases {
        case_text(&mut out, case);
        out.push_str(&reference::text(report, case));
    }
    for failure in &report.failures {
        let _ = writeln!(out, "\nFAILED: {failure}");
    }
    out
}

/// What was measured and where, in lines.
pub fn heading(report: &Report) -> Vec<String> {
    let (machine, settings) = (&report.machine, &report.settings);
    let mut lines = vec![
        report.title.clone(),
        format!(
            "TierDB {}{}; {} x {}, {} of memory, {}; load average {:.1}",
            machine.version,
            if machine.optimised { "" } else { " WITHOUT OPTIMISATION" },
            machine.processors,
            machine.processor,
            ByteSize(machine.memory >> 20 << 20),
            machine.system,
            machine.load_average,
        ),
        settings.sizes(),
    ];
    lines.extend(settings.others.iter().cloned());
    lines.extend(settings.places.iter().map(|(tier, place)| format!("{tier}: {place}")));
    lines.push(format!("emulation: {}", settings.emulation));
    lines.extend((!settings.group.is_empty()).then(|| settings.group.clone()));
    let times = if settings.repeats == 1 { "once".to_owned() } else { format!("{} times", settings.repeats) };
    lines.push(format!("{}; each case {times}", settings.length));
    lines.extend(durability(report));
    lines.extend(warmups(report));
    lines.extend(settings.reference.as_ref().map(|reference| reference.text()));
    lines.extend(settings.systems.iter().map(|(name, about)| format!("{name}: {about}")));
    lines
}

/// What must be known to read the figures: where they are from, and what each system says of its mode and version.
pub fn notes(report: &Report) -> Vec<String> {
    let mut notes = vec![report.machine.day()];
    notes.extend(heading(report));
    for case in &report.cases {
        let mode = format!("{} says of itself: {}", case.first().system, case.first().mode);
        if !notes.contains(&mode) {
            notes.push(mode);
        }
    }
    notes
}

/// What writes of loads and of other phases survive.
fn durability(report: &Report) -> Option<String> {
    let of = |load: bool| {
        let phases = report.cases.iter().flat_map(|case| case.runs.iter().flat_map(|run| &run.phases));
        let names: BTreeSet<&str> = phases
            .filter(|phase| (phase.name == "load") == load)
            .map(|phase| phase.durability.as_str())
            .collect();
        (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(" and "))
    };
    let loads = of(true).map(|names| format!("of loads {names}"));
    let others = of(false).map(|names| format!("of workloads {names}"));
    let both: Vec<String> = loads.into_iter().chain(others).collect();
    (!both.is_empty()).then(|| format!("writes: {}", both.join(", ")))
}

/// How long warm-ups took, where that is not known before.
fn warmups(report: &Report) -> Option<String> {
    let mut took = Vec::new();
    let mut unsettled = BTreeSet::new();
    for case in &report.cases {
        for phase in case.runs.iter().flat_map(|run| &run.phases) {
            let Some(settled) = phase.settling else { continue };
            took.push(phase.warmup_seconds);
            if !settled {
                unsettled.insert(format!("{} {} {}", case.first().system, phase.name, phase.distribution));
            }
        }
    }
    let (least, most) = (took.iter().copied().reduce(f64::min)?, took.iter().copied().reduce(f64::max)?);
    let unsettled: Vec<_> = unsettled.into_iter().collect();
    let left = match unsettled.as_slice() {
        [] => String::new(),
        some => format!("; not settled when their time was over, at least once: {}", some.join(", ")),
    };
    Some(format!(
        "warm-ups that end when reads have settled took {least:.1} to {most:.1} s, and count for bytes written{left}"
    ))
}

fn case_text(out: &mut String, case: &Repeated) {
    let first = case.first();
    let _ = writeln!(out, "\n{}\n  mode: {}", case.name(), first.mode);
    let _ = writeln!(
        out,
        "  {:<34}{:>10}{:>7}  {:<18}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>7}{:>7}",
        "workload",
        "ops/s",
        "±",
        "latency in us",
        "average",
        "p50",
        "p99",
        "p99.9",
        "max",
        "CPU us",
        "hits",
        "W amp"
    );
    for (index, phase) in first.phases.iter().enumerate() {
        let name = if phase.name == "load" {
            format!("load, {}", phase.durability)
        } else {
            format!("{}, {}", phase.name, phase.distribution)
        };
        let rate = case.phase(index, |phase| Some(phase.rate)).unwrap_or_default();
        let ratio = case.phase(index, |phase| phase.hit_ratio);
        let amplification = case.phase(index, |phase| phase.write_amplification);
        let cpu = case.phase(index, |phase| Some(phase.cpu_us_per_op)).unwrap_or_default();
        for (line, latency) in phase.latencies.iter().enumerate() {
            let of = |get: fn(&crate::tally::Latency) -> f64| {
                micros(case.latency(index, latency.op, get).map_or(0.0, |spread| spread.median))
            };
            let first = line == 0;
            let _ = writeln!(
                out,
                "  {:<34}{:>10}{:>7}  {:<18}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>7}{:>7}",
                if first { &*name } else { "" },
                if first { grouped(rate.median as u64) } else { String::new() },
                if first { percent(rate.relative()) } else { String::new() },
                latency.op.name(),
                of(|latency| latency.average_us),
                of(|latency| latency.p50_us),
                of(|latency| latency.p99_us),
                of(|latency| latency.p999_us),
                of(|latency| latency.max_us),
                if first { micros(cpu.median) } else { String::new() },
                optional(first, ratio, percent),
                optional(first, amplification, |amplification| format!("{amplification:.2}")),
            );
        }
    }
    summary(out, case);
}

/// What stands once for a case: I/O by tier and cause, space, memory, times to load and to open.
fn summary(out: &mut String, case: &Repeated) {
    let first = case.first();
    for phase in &first.phases {
        let io: Vec<String> = phase.io.iter().filter(|io| io.is_any()).map(io_text).collect();
        if !io.is_empty() {
            let _ = writeln!(out, "  I/O, {}: {}", phase.name, io.join("; "));
        }
        if let Some(scan) = phase.latencies.iter().find(|latency| latency.op == Op::Scan) {
            let begun = scan.count - scan.never_begun;
            let each = phase.scanned as f64 / begun.max(1) as f64;
            let _ = writeln!(out, "  scans, {}: {each:.1} entries each", phase.name);
        }
        if phase.never_begun > 0 {
            let _ = writeln!(out, "  due and never begun, {}: {}", phase.name, grouped(phase.never_begun));
        }
        if phase.stall_seconds > 0.001 {
            let _ = writeln!(out, "  writers held back, {}: {:.2} s", phase.name, phase.stall_seconds);
        }
    }
    let space = &first.space;
    let _ = writeln!(
        out,
        "  space: {} on the fast tier, {} on flash, for {} of keys and values: {:.2} times as much",
        ByteSize(space.fast_bytes),
        ByteSize(space.flash_bytes),
        ByteSize(space.user_bytes),
        space.amplification,
    );
    let part = |name: &str| space.parts.iter().find(|(part, _)| part == name).map(|(_, bytes)| *bytes as f64);
    if let (Some(index), Some(hsit)) = (part("fast: key index"), part("fast: hsit")) {
        let keys = space.keys.max(1) as f64;
        let _ = writeln!(
            out,
            "  fast-tier space per key: {:.1} B (key index {:.1}, HSIT {:.1})",
            (index + hsit) / keys,
            index / keys,
            hsit / keys
        );
    }
    if let Some(last) = first.phases.last() {
        let memory = &last.resident;
        let _ = writeln!(
            out,
            "  resident: {} of its own ({} of that the benchmark's), {} shared (an emulated fast tier)",
            ByteSize(memory.anonymous),
            ByteSize(last.harness_bytes),
            ByteSize(memory.shared),
        );
    }
    if let Some(idle) = case.figure(|run| run.idle_cores) {
        let _ = writeln!(out, "  idle: {:.3} % of a core", idle.median * 100.0);
    }
    let seconds =
        |of: Option<Spread>| of.map_or("not measured".to_owned(), |spread| format!("{:.3} s", spread.median));
    let _ = writeln!(
        out,
        "  load {}, close {}, open {}, open after kill -9 {}",
        seconds(case.phase(0, |phase| Some(phase.seconds))),
        seconds(case.figure(|run| Some(run.close_seconds))),
        seconds(case.figure(|run| run.open_seconds)),
        seconds(case.figure(|run| run.recover_seconds)),
    );
}

fn io_text(io: &TierIo) -> String {
    let counted = |bytes: u64, count: u64, one: &str, done: &str| match (bytes, count) {
        (0, 0) => None,
        (_, 0) => Some(format!("{} {done}", ByteSize(bytes))),
        _ => Some(format!("{} in {} {one}", ByteSize(bytes), grouped(count))),
    };
    let mut parts: Vec<String> = counted(io.read_bytes, io.reads, "reads", "read").into_iter().collect();
    parts.extend(counted(io.written_bytes, io.writes, "writes", "written"));
    parts.extend((io.writes + io.syncs > 0).then(|| format!("{} syncs", grouped(io.syncs))));
    format!("{} {} {}", io.tier, io.cause, parts.join(", "))
}

fn optional(shown: bool, figure: Option<Spread>, text: impl Fn(f64) -> String) -> String {
    figure.filter(|_| shown).map_or(String::new(), |figure| text(figure.median))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Microseconds in three digits or so.
pub fn micros(us: f64) -> String {
    match us.abs() {
        large if large >= 10_000.0 => grouped(us as u64),
        large if large >= 100.0 => format!("{us:.0}"),
        some if some >= 10.0 => format!("{us:.1}"),
        some if some >= 0.1 || some == 0.0 => format!("{us:.2}"),
        _ => format!("{us:.3}"),
    }
}

/// A number with a comma between thousands.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Outcome;
    use crate::phase::Measured;
    use crate::tally::Tally;
    use std::time::Duration;

    #[test]
    fn io_is_said_by_tier_and_cause_with_what_is_counted_of_it() {
        let io = TierIo {
            tier: "flash".to_owned(),
            cause: "log".to_owned(),
            reads: 2,
            read_bytes: 8192,
            writes: 1000,
            written_bytes: 4096,
            syncs: 3,
        };
        assert_eq!(io_text(&io), "flash log 8 KiB in 2 reads, 4 KiB in 1,000 writes, 3 syncs");
        let bytes = TierIo { reads: 0, writes: 0, syncs: 0, ..io.clone() };
        assert_eq!(io_text(&bytes), "flash log 8 KiB read, 4 KiB written");
        let case = |io: TierIo| Repeated {
            label: String::new(),
            runs: vec![Outcome {
                phases: vec![Measured { io: vec![io], ..Measured::default() }],
                ..Outcome::default()
            }],
        };
        let said = |io: TierIo| text(&Report { cases: vec![case(io)], ..Report::default() });
        assert!(said(bytes.clone()).contains("I/O, : flash log 8 KiB read"), "{}", said(bytes));
        assert!(
            !said(TierIo { reads: 0, read_bytes: 0, writes: 0, written_bytes: 0, syncs: 0, ..io })
                .contains("I/O")
        );
    }

    #[test]
    fn scans_that_never_began_gave_no_entries() {
        let mut tally = Tally::new();
        (0..4).for_each(|_| tally.record(Op::Scan, Duration::from_micros(5)));
        (0..6).for_each(|_| tally.record_never_begun(Op::Scan, Duration::from_secs(1)));
        let phase = Measured {
            name: "e".to_owned(),
            scanned: 200,
            never_begun: tally.never_begun(),
            latencies: tally.latencies(),
            ..Measured::default()
        };
        let run = Outcome { phases: vec![phase], ..Outcome::default() };
        let report =
            Report { cases: vec![Repeated { label: String::new(), runs: vec![run] }], ..Report::default() };
        let said = text(&report);
        assert!(said.contains("scans, e: 50.0 entries each"), "{said}");
        assert!(said.contains("due and never begun, e: 6"), "{said}");
    }

    #[test]
    fn numbers_are_short_and_readable() {
        assert_eq!([1, 999, 1_000, 1_234_567].map(grouped), ["1", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0456, 0.456, 12.34, 123.4, 12_345.0].map(micros),
            ["0.046", "0.46", "12.3", "123", "12,345"]
        );
    }
}
