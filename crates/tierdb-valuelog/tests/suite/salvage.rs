//! Goal: what cannot be read costs a salvage itself and nothing else.
//! Method: single blocks that cannot be read: in the write buffer, beside other records on flash, and in a part of a long value.

use crate::rig::Sizes;
use std::collections::BTreeMap;
use tierdb_engine::Durability;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::conformance::harm::crafted::find;
use tierdb_sim::World;
use tierdb_valuelog::{SalvageReport, salvage};

const VALUES: &str = "flash0/values";
const BLOCK: u64 = 4096;
const KEYS: u8 = 24;
/// Where the ring starts in the pool.
const RING_AT: u64 = 2 * 4096;

fn value(number: u8, len: usize) -> Vec<u8> {
    format!("value {number:02} ").into_bytes().into_iter().cycle().take(len).collect()
}

/// What a salvage finds in a store with keys that have values of the lengths that `len` says, on flash or in the write buffer,
/// once `lose` has lost the block at the byte that it is given: the one in which the value of key 5 is, `from` bytes
/// behind its start. Asserts that only keys are lost that are in this block, and that no other block counts.
fn salvage_without_a_block(
    area: &str,
    len: impl Fn(u8) -> usize,
    from: u64,
    lose: impl FnOnce(&World, u64),
) -> SalvageReport {
    let rig = Rig::new(Sizes { rings: 1, ..Sizes::tiny() }, None);
    let (world, engine) = rig.create();
    for number in 0..KEYS {
        engine.put(&[number], &value(number, len(number)), Durability::Durable).expect("room");
    }
    if area == VALUES {
        engine.flush().expect("room");
    }
    drop(engine);
    if area == VALUES {
        // Nothing needs what was moved, but it is still there.
        world.overwrite("pool", RING_AT, &vec![0; Sizes::tiny().ring as usize]);
    }
    let start = |number: u8| find(&world, area, 0, &value(number, len(number).min(100)));
    let lost = (start(5) + from) / BLOCK * BLOCK;
    // With the header and the key.
    let is_lost = |number: u8| {
        number == 5 || (start(number) - 33 < lost + BLOCK && start(number) + len(number) as u64 > lost)
    };
    let wanted: BTreeMap<Vec<u8>, Vec<u8>> = (0..KEYS)
        .filter(|number| !is_lost(*number))
        .map(|number| (vec![number], value(number, len(number))))
        .collect();
    assert!(wanted.len() > 5, "keys {:?} are left", wanted.keys());
    lose(&world, lost);
    let mut found = BTreeMap::new();
    let report = salvage(rig.memory_media(&world), &mut |record| {
        found.insert(record.key, record.value);
        Ok(())
    });
    let report = report.expect("damage is counted");
    assert!(found == wanted, "{:?} of {:?}, {report:?}", found.keys(), wanted.keys());
    assert_eq!(report.unreadable, 1);
    report
}

#[test]
fn a_block_of_flash_costs_the_records_in_it() {
    salvage_without_a_block(VALUES, |_| 400, 0, |world, at| world.lose_page(VALUES, at));
}

#[test]
fn a_block_of_the_write_buffer_costs_the_records_in_it() {
    salvage_without_a_block("pool", |_| 200, 0, |world, at| world.pool("pool").poison(at..at + BLOCK));
}

#[test]
fn a_block_of_a_part_costs_its_value() {
    let len = |number| if number == 5 { 30_000 } else { 100 };
    let report = salvage_without_a_block(VALUES, len, 2 * BLOCK, |world, at| world.lose_page(VALUES, at));
    assert_eq!(report.incomplete, 1);
}
