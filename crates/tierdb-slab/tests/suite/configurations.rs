//! Goal: the engine is the same store whatever its sizes and mode.
//! Method: random operations against the model on many configurations, tiny tiers among them.

use crate::rig::{BUCKETS, SAMPLED, SEED, Sizes, Way};
use tierdb_engine::Background;
use tierdb_engine::conformance::harm::{LogPlace, Rig, SimHarness};
use tierdb_engine::conformance::{Limits, full_store_recovers, random_ops, seeds};
use tierdb_slab::Metric;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Name, pool, slab, table, partitions, levels, what scores ranges of how many tables, what moves keys, directories of a fast
/// device and of flash.
type Row = (&'static str, u64, u64, u64, u32, (u8, u16), (Metric, u8), Way, [&'static [u64]; 2]);

const ONE: (u8, u16) = (1, 1000);

const ROWS: [Row; 14] = [
    ("plain", 12 * MIB, 64 * KIB, 256 * KIB, 2, ONE, SAMPLED, Way::Usual, [&[], &[64 * MIB]]),
    ("many partitions", 8 * MIB, 16 * KIB, 64 * KIB, 32, ONE, SAMPLED, Way::Usual, [&[], &[64 * MIB]]),
    ("large slabs", 32 * MIB, MIB, MIB, 2, ONE, SAMPLED, Way::Usual, [&[], &[128 * MIB]]),
    (
        "four directories",
        12 * MIB,
        32 * KIB,
        64 * KIB,
        3,
        ONE,
        SAMPLED,
        Way::Usual,
        [&[], &[16 * MIB, 32 * MIB, 32 * MIB, 4 * MIB]],
    ),
    ("small fast tier", 6 * MIB, 32 * KIB, 64 * KIB, 2, ONE, BUCKETS, Way::Usual, [&[], &[64 * MIB]]),
    ("tiny flash", 400 * KIB, 8 * KIB, 16 * KIB, 2, ONE, BUCKETS, Way::Usual, [&[], &[400 * KIB]]),
    ("tiny fast tier", 200 * KIB, 8 * KIB, 16 * KIB, 2, ONE, SAMPLED, Way::Usual, [&[], &[4 * MIB]]),
    (
        "tiny fast tier, two levels",
        200 * KIB,
        8 * KIB,
        16 * KIB,
        2,
        (2, 40),
        BUCKETS,
        Way::Usual,
        [&[], &[2 * MIB]],
    ),
    (
        "tables beside the pool",
        12 * MIB,
        32 * KIB,
        64 * KIB,
        2,
        (2, 1000),
        BUCKETS,
        Way::Usual,
        [&[3 * MIB, MIB], &[64 * MIB]],
    ),
    (
        "tiny, tables beside the pool",
        200 * KIB,
        8 * KIB,
        16 * KIB,
        2,
        (3, 40),
        SAMPLED,
        Way::Usual,
        [&[300 * KIB], &[2 * MIB]],
    ),
    (
        "tiny flash, three levels",
        400 * KIB,
        8 * KIB,
        16 * KIB,
        3,
        (3, 10),
        SAMPLED,
        Way::Usual,
        [&[], &[400 * KIB]],
    ),
    (
        "small fast tier, as in the paper",
        6 * MIB,
        32 * KIB,
        64 * KIB,
        2,
        ONE,
        BUCKETS,
        Way::Paper,
        [&[], &[64 * MIB]],
    ),
    (
        "tiny fast tier, as in the paper",
        200 * KIB,
        8 * KIB,
        16 * KIB,
        2,
        (2, 40),
        SAMPLED,
        Way::Paper,
        [&[], &[2 * MIB]],
    ),
    (
        "tiny fast tier, bounded",
        200 * KIB,
        8 * KIB,
        16 * KIB,
        2,
        ONE,
        BUCKETS,
        Way::Bounded,
        [&[], &[4 * MIB]],
    ),
];

fn sizes(row: &Row, background: Background) -> Sizes {
    let (name, pool, slab, table, partitions, levels, ranges, way, [fast, flash]) = *row;
    Sizes {
        name,
        pool,
        slab,
        table,
        partitions,
        fast_dirs: fast.to_vec(),
        flash: flash.to_vec(),
        memory: 4 * MIB,
        table_parts_pct: 12,
        levels,
        ranges,
        way,
        log_buffer: 32 * KIB,
        paged: (fast.is_empty() && partitions == 2).then_some(64 * KIB),
        background,
        seed: SEED,
    }
}

/// The stores of this test.
pub fn all_sizes() -> impl Iterator<Item = Sizes> {
    ROWS.iter().map(|row| sizes(row, Background::Inline))
}

fn limits(row: &Row) -> Limits {
    let tiny = row.0.starts_with("tiny");
    Limits { max_value_bytes: if tiny { 20_000 } else { 3 << 20 }, may_fill: tiny, ..crate::rig::limits() }
}

fn check_all(mode: Option<LogPlace>) {
    let mut configurations = 0;
    for row in &ROWS {
        for background in [Background::Inline, Background::Threads] {
            let mut harness = SimHarness::new(Rig::new(sizes(row, background), mode), limits(row));
            for seed in seeds(100..101) {
                random_ops(&mut harness, seed, 400).unwrap_or_else(|failure| panic!("{}: {failure}", row.0));
            }
            if limits(row).may_fill {
                full_store_recovers(&mut harness).unwrap_or_else(|failure| panic!("{}: {failure}", row.0));
            }
            configurations += 1;
        }
    }
    println!("{configurations} configurations of mode {mode:?} conform");
}

#[test]
fn byte_addressable_stores_of_all_sizes_conform() {
    check_all(None);
}

#[test]
fn block_fast_tiers_of_all_sizes_conform() {
    check_all(Some(LogPlace::FastTier));
}

#[test]
fn plain_ssds_of_all_sizes_conform() {
    check_all(Some(LogPlace::WithValues));
}
