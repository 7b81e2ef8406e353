//! A sorted table whose file was harmed: opening, lookups, scans in both directions, the check, salvage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::ops::Bound;
use std::sync::{Arc, LazyLock};
use tierdb_base::mutant::Site;
use tierdb_device::{Cause, Meter};
use tierdb_fuzz::{Base, Harm, checksum_sites, unchecked};
use tierdb_sim::{SimDir, World};
use tierdb_table::{Direction, EntryRef, ReadAhead, Source, Table, TableDir, WriterOptions};

fn tables(world: &World) -> TableDir<SimDir> {
    TableDir::new(world.dir("flash"), 7, Meter::new(), None)
}

fn key(number: u64) -> Vec<u8> {
    format!("row{number:04}").into_bytes()
}

static BASE: LazyLock<(Base, Vec<Site>)> = LazyLock::new(|| {
    let world = World::new();
    world.add_dir("flash");
    let options = WriterOptions { allocate: 64 << 10, filter: true };
    let mut writer = tables(&world).create(1, Cause::Gc, &options).expect("room");
    for number in 0..120 {
        for seqno in [9, 4] {
            let len = if number == 50 { 9000 } else { number as usize * 7 % 400 };
            let value = vec![number as u8; len];
            let value = (number % 9 > 0).then_some(&value[..]);
            writer.add(&EntryRef { key: &key(number), seqno, value }).expect("in order");
        }
    }
    writer.finish().expect("no faults");
    let copy = world.copy();
    let sites = checksum_sites(|| exercise(&copy));
    (Base::new(world), sites)
});

fn drain(source: &mut impl Source) {
    for _ in 0..1 << 16 {
        if source.advance().is_err() || source.entry().is_none() {
            return;
        }
    }
    panic!("the scan does not end");
}

fn exercise(world: &World) {
    let tables = tables(world);
    if let Ok(mut salvage) = tables.salvage(1, Cause::Verify) {
        drain(&mut salvage);
    }
    let Ok(table) = tables.open(1, Cause::Recovery).map(Arc::new) else { return };
    for number in 0..124 {
        let _ = table.get(&key(number), 5, Cause::Foreground);
    }
    let keys: Vec<_> = (0..40).map(|number| key(number * 3)).collect();
    let keys: Vec<_> = keys.iter().map(|key| (&*table, &key[..], 9)).collect();
    let _ = Table::get_many(&keys, Cause::Foreground);
    let _ = table.verify(Cause::Verify);
    for direction in [Direction::Forward, Direction::Backward] {
        let range = (Bound::Unbounded, Bound::Unbounded);
        let ahead = ReadAhead { first: 4096, most: 32 << 10 };
        drain(&mut table.iter(range, direction, ahead, Cause::Foreground));
        let from = key(30);
        let range = (Bound::Excluded(&from[..]), Bound::Unbounded);
        drain(&mut table.iter(range, direction, ahead, Cause::Foreground));
    }
    for block in 0..table.index().blocks() {
        let _ = (table.keys_of(block), table.extent(block));
    }
}

fuzz_target!(|input: (u8, Vec<Harm>)| {
    let (site, harms) = input;
    let (base, sites) = &*BASE;
    let world = base.harmed(&harms);
    unchecked(sites, site, || exercise(&world));
});
