//! Every comparison of a checksum is needed, and a test would notice if it were left out.
//!
//! For each comparison that the sources have there is one test, with damage that this comparison alone tells: it passes,
//! and fails with the comparison left out. `tierdb_base::sources` lists the comparisons.

use super::crafted::Outcome;
use std::panic::catch_unwind;
use tierdb_base::mutant;
use tierdb_base::sources::Comparison;

/// The end of a file's name, a function, which of its comparisons, and the test that notices.
pub type Row = (&'static str, &'static str, usize, fn() -> Outcome);

/// Leaves out each of `comparisons` in the one of `tests` that is for it.
///
/// # Panics
/// If one is not noticed, or has no test; if a test fails with every comparison in its place, does not pass the one it
/// is for, or is for none. With all of them.
pub fn leave_out_each(comparisons: &[Comparison], tests: &[Row]) {
    let mut wrong = Vec::new();
    for of in comparisons {
        let row = tests.iter().find(|(file, function, nth, _)| {
            of.site.file.ends_with(file) && of.function == *function && of.nth == *nth
        });
        let Some((.., test)) = row else {
            wrong.push(format!("{of}: no test"));
            continue;
        };
        if let Err(what) = test() {
            wrong.push(format!("{of}: nothing is left out, and {what}"));
        }
        let before = mutant::left_out();
        let noticed = match catch_unwind(|| mutant::without(of.site, test)) {
            Ok(Ok(())) => None,
            Ok(Err(what)) => Some(what),
            Err(_) => Some("panic".into()),
        };
        match noticed {
            _ if mutant::left_out() == before => wrong.push(format!("{of}: its test does not pass it")),
            Some(what) => println!("{of}: {what}"),
            None => wrong.push(format!("{of}: not noticed when it is left out")),
        }
    }
    println!(
        "{} of {} comparisons noticed when left out",
        comparisons.len() - wrong.len(),
        comparisons.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(comparisons.len(), tests.len(), "tests of comparisons that are there");
}
