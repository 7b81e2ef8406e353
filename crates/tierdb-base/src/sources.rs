//! Where sources compare checksums: so that a test's list of comparisons has every one of them, whether or not
//! it passes it. For tests alone.

use crate::mutant::Site;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A function whose comparison counts as that of the line which calls it, being `#[track_caller]`.
#[derive(Clone, Copy, Debug)]
pub struct ForCallers {
    /// Its file, as `crate/src/file.rs`.
    pub file: &'static str,
    /// Its name.
    pub function: &'static str,
    /// How a call of it looks, up to the parenthesis and with it.
    pub call: &'static str,
}

/// A comparison of checksums.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Function that it stands in.
    pub function: String,
    /// How many stand before it in that function.
    pub nth: usize,
    /// What leaves it out.
    pub site: Site,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { function, nth, site } = self;
        write!(f, "{}:{} in {function}, number {nth}", site.file, site.line)
    }
}

/// All comparisons in the sources of `names`, crates that stand beside the one at `manifest_dir`, in the order of
/// the sources. Unit tests are left out: what follows `#[cfg(test)]`, and files `tests.rs`.
///
/// # Panics
/// If a comparison stands in a `#[track_caller]` function that is not one of `for_callers`, or one of those has
/// none; if the sources cannot be read.
pub fn comparisons(manifest_dir: &str, names: &[&str], for_callers: &[ForCallers]) -> Vec<Comparison> {
    let crates = Path::new(manifest_dir).parent().expect("crates stand side by side");
    let mut scan = Scan { for_callers, found: Vec::new(), in_for_callers: 0 };
    for name in names {
        for path in sources(&crates.join(name).join("src")) {
            let file = path.strip_prefix(crates).expect("below").to_str().expect("plain names");
            scan.file(file, &fs::read_to_string(&path).expect("a source file"));
        }
    }
    assert_eq!(scan.in_for_callers, for_callers.len(), "comparisons for callers");
    scan.found
}

/// The source files below `dir`, in order.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(dir).expect("a folder of sources").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs"));
    files.sort();
    files
}

struct Scan<'s> {
    for_callers: &'s [ForCallers],
    found: Vec<Comparison>,
    in_for_callers: usize,
}

impl Scan<'_> {
    fn file(&mut self, file: &str, source: &str) {
        let of_site: &'static str = format!("crates/{file}").leak();
        let (mut function, mut nth, mut tracked, mut next_tracked) = ("", 0, false, false);
        for (line, text) in (1..).zip(source.lines()) {
            if text.starts_with("#[cfg(test)]") || text.starts_with("#[cfg(all(test") {
                break;
            }
            let code = text.split("//").next().unwrap_or_default();
            next_tracked |= code.contains("#[track_caller]");
            if let Some(name) = declared(code) {
                (function, nth, tracked) = (name, 0, std::mem::take(&mut next_tracked));
            }
            let is_for_callers = self.for_callers.iter().any(|of| of.file == file && of.function == function);
            let own = columns(code, "matches(");
            assert!(
                own.is_empty() || tracked == is_for_callers,
                "{file}:{line}: whether {function} compares for its callers"
            );
            let mut columns_here: Vec<u32> =
                self.for_callers.iter().flat_map(|of| columns(code, of.call)).collect();
            if is_for_callers {
                self.in_for_callers += own.len();
            } else {
                columns_here.extend(own);
            }
            columns_here.sort_unstable();
            for column in columns_here {
                let site = Site { what: "checksum", file: of_site, line, column };
                self.found.push(Comparison { function: function.to_owned(), nth, site });
                nth += 1;
            }
        }
    }
}

/// The name of the function that the line declares.
fn declared(code: &str) -> Option<&str> {
    let (before, after) = code.split_once("fn ")?;
    let is_declaration =
        before.split_whitespace().all(|word| word.starts_with("pub") || ["const", "unsafe"].contains(&word));
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (is_declaration && end > 0).then(|| &after[..end])
}

/// The columns at which `call` stands, as the compiler counts them: of a method, where its name is.
fn columns(code: &str, call: &str) -> Vec<u32> {
    let method = usize::from(call.starts_with('.'));
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    code.match_indices(call)
        .filter(|(at, _)| method == 1 || !code[..*at].ends_with(is_part))
        .map(|(at, _)| (at + method + 1) as u32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
use base::matches;
fn plain(a: u64) -> bool {
    // matches(a, 1) in a comment
    a > 0 && matches(a, 1) || matches!(a, 7)
}

impl Header {
    #[track_caller]
    pub(crate) fn is_whole(&self) -> bool {
        matches(self.sum, 1)
    }

    pub const fn twice(&self) -> bool {
        self.is_whole() && self.name.matches('x').count() == 1 && self.other.is_whole()
    }
}

#[cfg(test)]
mod tests {
    fn nobody() { matches(1, 2); }
}
";

    fn scan(for_callers: &[ForCallers]) -> (Vec<Comparison>, usize) {
        let mut scan = Scan { for_callers, found: Vec::new(), in_for_callers: 0 };
        scan.file("c/src/lib.rs", SOURCE);
        (scan.found, scan.in_for_callers)
    }

    #[test]
    #[cfg_attr(miri, ignore = "names of files are leaked")]
    fn comparisons_are_where_the_compiler_says() {
        let whole = ForCallers { file: "c/src/lib.rs", function: "is_whole", call: ".is_whole(" };
        let (found, in_for_callers) = scan(&[whole]);
        let places: Vec<_> =
            found.iter().map(|of| (&*of.function, of.nth, of.site.line, of.site.column)).collect();
        assert_eq!(places, [("plain", 0, 4, 14), ("twice", 0, 14, 14), ("twice", 1, 14, 78)]);
        assert_eq!(in_for_callers, 1);
        assert!(found.iter().all(|of| of.site.file == "crates/c/src/lib.rs"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "names of files are leaked")]
    #[should_panic(expected = "whether is_whole compares for its callers")]
    fn a_function_that_compares_for_its_callers_must_be_listed() {
        let _unlisted = scan(&[]);
    }
}
