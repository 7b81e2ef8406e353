//! Tables in a file: each comparison's stand between two marks, so that it can be measured again by itself.

use super::Comparison;
use super::limits;
use crate::args::Tables;
use crate::failure::Failure;
use crate::report::Report;
use crate::table::notes;
use std::fmt::Write as _;
use std::path::Path;

/// What a new file begins with.
const BEGINNING: &str = "# TierDB beside others, and against what it is meant to reach\n
`tierdb-peers tables` writes what follows; what a comparison is, and the command that repeats it, stands below each table.\n";

fn marks(comparison: Comparison) -> (String, String) {
    let name = comparison.name();
    (format!("<!-- {name} -->"), format!("<!-- end of {name} -->"))
}

/// What a comparison found, in Markdown.
pub(super) fn section(comparison: Comparison, report: &Report, absent: &[String], asked: &Tables) -> String {
    let mut out = format!("## {}\n\n", comparison.title());
    let tables: Vec<String> = match comparison {
        Comparison::Limits => vec![limits::limits(report)],
        Comparison::Recovery => vec![limits::recovery(report)],
        _ => comparison.grids().iter().map(|grid| grid.markdown(report)).collect(),
    };
    for table in tables {
        let _ = writeln!(out, "{table}");
    }
    if let Some(dir) = &asked.site.plots {
        let beside = asked.markdown.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let dir = dir.strip_prefix(beside).unwrap_or(dir);
        for plot in comparison.plots(report) {
            let _ =
                writeln!(out, "![{}]({})\n", plot.title, dir.join(format!("{}.svg", plot.file)).display());
        }
    }
    for line in notes(report) {
        let _ = writeln!(out, "* {line}");
    }
    if !absent.is_empty() {
        let _ = writeln!(out, "* Not built in, and left out: {}", absent.join(", "));
    }
    for failure in &report.failures {
        let _ = writeln!(out, "* FAILED: {failure}");
    }
    out
}

/// Puts `text` between the marks of `comparison` in the file at `path`, or at its end if it has none.
///
/// # Errors
/// `Io` where the file cannot be read or written.
pub(super) fn put(path: &Path, comparison: Comparison, text: &str) -> Result<(), Failure> {
    let before = match std::fs::read_to_string(path) {
        Ok(before) => before,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => BEGINNING.to_owned(),
        Err(e) => return Err(Failure::io("cannot read", path, e)),
    };
    let after = replaced(&before, comparison, text);
    std::fs::write(path, after).map_err(|e| Failure::io("cannot write", path, e))
}

fn replaced(before: &str, comparison: Comparison, text: &str) -> String {
    let (begin, end) = marks(comparison);
    let section = format!("{begin}\n{text}{end}");
    if let Some((head, rest)) = before.split_once(&begin)
        && let Some((_, tail)) = rest.split_once(&end)
    {
        return format!("{head}{section}{tail}");
    }
    format!("{}\n\n{section}\n", before.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_its_own_and_of_nothing_else() {
        let first = replaced("# Head\n", Comparison::Slab, "slab 1\n");
        let both = replaced(&first, Comparison::Writes, "writes 1\n");
        let again = replaced(&both, Comparison::Slab, "slab 2\n");
        assert_eq!(
            again,
            "# Head\n\n<!-- slab -->\nslab 2\n<!-- end of slab -->\n\n<!-- writes -->\nwrites 1\n<!-- end of writes -->\n"
        );
    }
}
