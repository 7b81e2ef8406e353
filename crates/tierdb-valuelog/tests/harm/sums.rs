//! Goal: every comparison of a checksum is needed, and a test would notice if it were left out.
//! Method: that of the suite that engines share. Those of the key index are looked at by its own suite
//! (`index_damage.rs`), from the same list.

use crate::crafted::*;
use crate::sites::sites;
use tierdb_engine::conformance::harm::sums::{Row, leave_out_each};

const TESTS: [Row; 21] = [
    ("tierdb-pmem/src/sealed.rs", "unseal", 0, sealed_word),
    ("src/read.rs", "checked", 0, record_among_others),
    ("src/read.rs", "read_ring", 0, record_in_a_ring),
    ("src/read.rs", "read_flash_among", 0, record_on_flash),
    ("src/read.rs", "admit_all", 0, record_beside_another),
    ("src/second_level/frame.rs", "checks", 0, value_in_the_second_level),
    ("src/hsit.rs", "absent", 0, word_without_a_record),
    ("src/image.rs", "restore", 0, word_of_a_closed_store),
    ("src/image.rs", "restore", 1, leaf_of_a_closed_store),
    ("src/layout.rs", "open", 0, header_of_the_pool),
    ("src/long.rs", "join", 0, part_of_a_value),
    ("src/long.rs", "join", 1, part_of_another_value),
    ("src/moving/reclaim.rs", "reclaim_ring", 0, record_that_is_reclaimed),
    ("src/moving/collect.rs", "find_record", 0, header_among_values),
    ("src/moving/collect.rs", "find_record", 1, record_that_is_collected),
    ("src/pages.rs", "usage", 0, kind_of_a_page),
    ("src/recover.rs", "read_redo_pages", 0, redo_page),
    ("src/recover.rs", "read_redo", 0, redo_record),
    ("src/ring.rs", "walk", 0, header_in_a_ring),
    ("src/verify.rs", "search", 0, header_that_is_salvaged),
    ("src/verify.rs", "search", 1, record_that_is_salvaged),
];

#[test]
fn every_comparison_of_a_checksum_that_is_left_out_is_noticed() {
    leave_out_each(&sites(false), &TESTS);
}
