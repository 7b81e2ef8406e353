//! The tables that say how TierDB does beside others, and against what it is meant to reach.
//!
//! [`compare`] says what each comparison runs, `expected` how long that takes, `targets` and [`grid`] how it is shown beside
//! what it is meant to reach, `limits` does so for what is measured of TierDB alone, and `page` puts the tables into a
//! file.

pub mod compare;
mod expected;
pub mod grid;
mod limits;
mod page;
mod targets;

pub use compare::Comparison;

use crate::args::Tables;
use crate::failure::Failure;
use crate::plan;
use crate::plots;
use crate::report::Report;
use crate::store::Systems;
use crate::table;
use compare::Draft;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs the comparisons that `asked` names: tells `tell` what begins, and gives `print` what each found. Returns the
/// cases that failed.
///
/// # Errors
/// `Io` where a file cannot be read or written; what earlier comparisons found is kept then.
pub fn run(
    systems: &Systems,
    asked: &Tables,
    tell: &dyn Fn(&str),
    print: &dyn Fn(&str) -> Result<(), Failure>,
) -> Result<Vec<String>, Failure> {
    let mut drafts = Vec::new();
    for comparison in asked.only.as_deref().unwrap_or(&Comparison::ALL) {
        drafts.push((*comparison, comparison.draft(systems, asked)?));
    }
    let kept = |comparison: Comparison| {
        let path = json_of(asked, comparison)?;
        (asked.resume && path.exists()).then_some(path)
    };
    let text = forecast(&drafts, asked, &|comparison| kept(comparison).is_some());
    if asked.dry_run {
        print(&text)?;
        return Ok(Vec::new());
    }
    tell(&text);
    let mut failures = Vec::new();
    for (comparison, draft) in drafts {
        let report = match kept(comparison) {
            Some(path) => read(&path)?,
            None => plan::carry_out(draft.plan, &|line| tell(&format!("{}: {line}", comparison.name()))),
        };
        let text = page::section(comparison, &report, &draft.absent, asked);
        print(&text)?;
        keep(comparison, &report, &text, asked)?;
        failures.extend(report.failures);
    }
    Ok(failures)
}

/// What would run, and how long that takes.
fn forecast(drafts: &[(Comparison, Draft)], asked: &Tables, kept: &dyn Fn(Comparison) -> bool) -> String {
    let mut lines = Vec::new();
    let mut all = Duration::ZERO;
    for (comparison, draft) in drafts {
        let name = comparison.name();
        if kept(*comparison) {
            lines.push(format!("{name:<18} is kept from an earlier run"));
            continue;
        }
        let each: Vec<Duration> =
            draft.plan.cases.iter().map(|(_, case)| expected::case(&draft.plan, case)).collect();
        let sum = (each.iter().sum::<Duration>() + expected::reference(&draft.plan)) * asked.repeat;
        all += sum;
        let runs = each.len() * asked.repeat as usize;
        lines.push(format!("{name:<18} {runs:>3} runs, about {}", expected::text(sum)));
        for ((label, case), each) in draft.plan.cases.iter().zip(each).filter(|_| asked.dry_run) {
            let phases: Vec<&str> = case.phases.iter().map(|phase| phase.name.as_str()).collect();
            lines.push(format!(
                "    {:<14} {} threads, {} keys, {} {}: {}, {} times",
                case.system,
                case.threads,
                table::grouped(case.setup.keys),
                phases.join(", "),
                label,
                expected::text(each),
                asked.repeat,
            ));
        }
        if !draft.absent.is_empty() {
            lines.push(format!(
                "    without {}, which this program was not built with",
                draft.absent.join(", ")
            ));
        }
    }
    lines.push(format!("together about {}\n", expected::text(all)));
    lines.join("\n")
}

/// Where what a comparison measured is kept.
fn json_of(asked: &Tables, comparison: Comparison) -> Option<PathBuf> {
    Some(asked.json.as_ref()?.join(format!("{}.json", comparison.name())))
}

fn read(path: &Path) -> Result<Report, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io("cannot read", path, e))?;
    serde_json::from_str(&text)
        .map_err(|e| Failure::Invalid(format!("{} is not a report: {e}", path.display())))
}

/// Writes what a comparison found where `asked` says.
fn keep(comparison: Comparison, report: &Report, text: &str, asked: &Tables) -> Result<(), Failure> {
    if let Some(path) = json_of(asked, comparison) {
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir).map_err(|e| Failure::io("cannot make the directory", dir, e))?;
        let text = serde_json::to_string(report)
            .map_err(|e| Failure::io("cannot write the report to", &path, e.into()))?;
        std::fs::write(&path, text).map_err(|e| Failure::io("cannot write the report to", &path, e))?;
    }
    if let Some(dir) = &asked.site.plots {
        let write = if asked.png { plots::write } else { plots::write_svg };
        for plot in comparison.plots(report) {
            write(dir, &plot, &table::notes(report))?;
        }
    }
    asked.markdown.as_deref().map_or(Ok(()), |path| page::put(path, comparison, text))
}
