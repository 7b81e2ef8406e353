//! Where the engine, and what compares on its behalf, compares checksums.

use tierdb_base::sources::{Comparison, ForCallers, comparisons};

/// Crates whose comparisons the engine's suites answer for.
const CRATES: [&str; 3] = ["tierdb-valuelog", "tierdb-pmem", "tierdb-device"];
/// A record's header, and the whole record, are compared where they are used.
const FOR_CALLERS: [ForCallers; 2] = [
    ForCallers { file: "tierdb-valuelog/src/record.rs", function: "decode", call: "Header::decode(" },
    ForCallers { file: "tierdb-valuelog/src/record.rs", function: "is_whole", call: ".is_whole(" },
];

/// The comparisons of the key index, or all others.
pub fn sites(of_index: bool) -> Vec<Comparison> {
    let mut all = comparisons(env!("CARGO_MANIFEST_DIR"), &CRATES, &FOR_CALLERS);
    all.retain(|of| of.site.file.contains("valuelog/src/index") == of_index);
    all
}
