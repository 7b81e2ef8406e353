//! What a benchmark leaves out to see what it costs is left out for a whole process, so this test has one of its own.

use tierdb_base::{checksum, checksum_parts};

#[test]
fn long_checksums_are_left_out_and_short_ones_stay() {
    let bytes = [7; 256];
    let all = || {
        let short = checksum(1, &bytes[..255]);
        (checksum(1, &bytes), checksum_parts(1, &[&bytes[..9], &bytes[9..]]), short)
    };
    let (whole, parts, short) = all();
    assert_eq!(whole, parts);
    assert_ne!(whole, 1);
    tierdb_base::checksum::leave_out_long();
    assert_eq!(all(), (1, 1, short));
}
