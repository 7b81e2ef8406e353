//! Goal: the engine is the same store whatever its sizes and mode.
//! Method: random operations against the model on many configurations, tiny tiers among them.

use crate::rig::Sizes;
use tierdb_engine::conformance::harm::{LogPlace, Rig, SimHarness};
use tierdb_engine::conformance::{Limits, full_store_recovers, random_ops, seeds};
use tierdb_valuelog::Background;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Name, pool, rings, ring, chunk, flash directories, memory.
type Row = (&'static str, u64, u32, u64, u64, &'static [u64], u64);

const ROWS: [Row; 8] = [
    ("plain", 8 * MIB, 4, 256 * KIB, 512 * KIB, &[64 * MIB], 8 * MIB),
    ("one small ring", 2 * MIB, 1, 16 * KIB, 16 * KIB, &[32 * MIB], MIB),
    ("many rings", 4 * MIB, 64, 16 * KIB, 64 * KIB, &[32 * MIB], 2 * MIB),
    ("large chunks", 8 * MIB, 2, MIB, 4 * MIB, &[64 * MIB], 4 * MIB),
    ("four directories", 4 * MIB, 2, 64 * KIB, 64 * KIB, &[16 * MIB, 16 * MIB, 8 * MIB, 2 * MIB], 2 * MIB),
    ("no memory to speak of", 4 * MIB, 2, 64 * KIB, 64 * KIB, &[32 * MIB], 64 * KIB),
    ("tiny flash", 2 * MIB, 2, 16 * KIB, 16 * KIB, &[160 * KIB], 256 * KIB),
    ("tiny pool", 256 * KIB, 2, 16 * KIB, 16 * KIB, &[8 * MIB], 256 * KIB),
];

fn sizes(row: &Row, background: Background) -> Sizes {
    let (name, pool, rings, ring, chunk, flash, memory) = *row;
    Sizes {
        name,
        pool,
        rings,
        ring,
        chunk,
        flash: flash.to_vec(),
        memory,
        log_buffer: ring.max(32 * KIB),
        background,
        ..Sizes::tiny()
    }
}

fn limits(row: &Row) -> Limits {
    let tiny = row.0.starts_with("tiny");
    Limits { max_value_bytes: if tiny { 20_000 } else { 3 << 20 }, may_fill: tiny, ..Limits::default() }
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
