//! Goal: every comparison of a checksum is needed, and a test would notice if it were left out.
//! Method: list the comparisons by the sources. For each there is one test with damage that it alone tells;
//! that test passes, and fails with the comparison left out. Those of the key index are looked at by its own
//! suite (`index_damage.rs`), from the same list.

use crate::crafted::*;
use crate::sites::sites;
use std::panic::catch_unwind;
use tierdb_base::mutant;

/// File, function, which one in it, and the test that notices.
type Row = (&'static str, &'static str, usize, fn() -> Result<(), String>);

const TESTS: [Row; 19] = [
    ("tierdb-pmem/src/sealed.rs", "unseal", 0, sealed_word),
    ("src/core.rs", "read_ahead", 0, record_among_others),
    ("src/core.rs", "read_ring", 0, record_in_a_ring),
    ("src/core.rs", "read_flash", 0, record_on_flash),
    ("src/hsit.rs", "absent", 0, word_without_a_record),
    ("src/image.rs", "restore", 0, word_of_a_closed_store),
    ("src/image.rs", "restore", 1, leaf_of_a_closed_store),
    ("src/layout.rs", "open", 0, header_of_the_pool),
    ("src/long.rs", "join", 0, part_of_a_value),
    ("src/long.rs", "join", 1, part_of_another_value),
    ("src/moving.rs", "reclaim_ring", 0, record_that_is_reclaimed),
    ("src/moving.rs", "find_record", 0, header_among_values),
    ("src/moving.rs", "find_record", 1, record_that_is_collected),
    ("src/pages.rs", "usage", 0, kind_of_a_page),
    ("src/recover.rs", "read_redo_pages", 0, redo_page),
    ("src/recover.rs", "read_redo", 0, redo_record),
    ("src/ring.rs", "walk", 0, header_in_a_ring),
    ("src/verify.rs", "search", 0, header_that_is_salvaged),
    ("src/verify.rs", "search", 1, record_that_is_salvaged),
];

#[test]
fn every_comparison_of_a_checksum_that_is_left_out_is_noticed() {
    let comparisons = sites(false);
    let mut wrong = Vec::new();
    for of in &comparisons {
        let row = TESTS.iter().find(|(file, function, nth, _)| {
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
    assert_eq!(comparisons.len(), TESTS.len(), "tests of comparisons that are there");
}
