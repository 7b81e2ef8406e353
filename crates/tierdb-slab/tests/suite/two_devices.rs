//! Goal: where the fast tier is a block device with room beside the pool, tables of the first level lie there; what is popular stays or
//! comes there, what is not goes to flash; and where that device has no room, flash has it.
//! Method: stores with a directory of such a device, whose files are looked at.

use crate::rig::Sizes;
use tierdb_engine::conformance::harm::{LogPlace, Rig};
use tierdb_engine::{Durability, Engine, TierStats};
use tierdb_sim::World;

const KIB: u64 = 1 << 10;
const KEYS: usize = 4000;
const HOT: usize = 400;
/// Bytes of the fast device.
const FAST: u64 = 1984 * KIB;
const VALUE: usize = 1500;

fn sizes() -> Sizes {
    Sizes {
        pool: 1 << 20,
        slab: 16 * KIB,
        table: 64 * KIB,
        fast_dirs: vec![FAST],
        flash: vec![64 << 20],
        ..Sizes::beside()
    }
}

fn rig() -> Rig<Sizes> {
    Rig::new(sizes(), Some(LogPlace::FastTier))
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn value(number: usize, version: u8) -> Vec<u8> {
    [number.to_string().into_bytes(), vec![version; VALUE]].concat()
}

fn put_all(engine: &dyn Engine, version: u8) {
    for number in 0..KEYS {
        // In no order.
        let number = number * 7 % KEYS;
        engine.put(&key(number), &value(number, version), Durability::Grouped).expect("room");
    }
}

fn check_all(engine: &dyn Engine, version: u8) {
    for number in 0..KEYS {
        let found = engine.get(&key(number)).expect("whole").expect("there");
        assert_eq!(&found[..], value(number, version), "key {number}");
    }
    assert!(engine.verify().expect("open").is_clean());
}

/// Bytes of tables on the fast device, and on flash.
fn table_bytes(engine: &dyn Engine) -> (u64, u64) {
    let stats = engine.stats();
    let used = |place: &str| {
        let here = |tier: &&TierStats| tier.path.starts_with(place);
        stats.tiers.iter().filter(here).map(|tier| tier.used).sum()
    };
    (used("beside"), used("flash"))
}

fn figure(engine: &dyn Engine, name: &str) -> u64 {
    engine.stats().figure(name).unwrap_or_else(|| panic!("no figure {name}"))
}

fn tables_in(world: &World, dir: &str) -> usize {
    let names = tierdb_device::Dir::list(&world.dir(dir)).expect("listed");
    names.iter().filter(|name| tierdb_table::file_number(name).is_some()).count()
}

#[test]
fn a_fast_device_is_used_as_far_as_it_goes_and_flash_has_the_rest() {
    let rig = rig();
    let world = rig.empty_world();
    let engine = rig.open(&world).expect("opens");
    put_all(&*engine, 1);
    engine.flush().expect("room");
    let (fast, flash) = table_bytes(&*engine);
    assert!((FAST / 4..=FAST).contains(&fast), "{fast} bytes on the fast device");
    assert!(flash > (KEYS * VALUE) as u64 - FAST, "{flash} bytes on flash");
    assert!(tables_in(&world, "beside0") > 3 && tables_in(&world, "flash0") > 10);
    put_all(&*engine, 2);
    check_all(&*engine, 2);
    engine.compact().expect("room");
    check_all(&*engine, 2);
    assert!(table_bytes(&*engine).0 <= FAST);
    engine.close().expect("no faults");
    drop(engine);
    check_all(&*rig.open(&world).expect("opens"), 2);
    check_all(&*rig.open(&world.capture().nothing()).expect("opens after a crash"), 2);
}

/// Half of the keys that a device has room for are read again and again, the others are written: the former are answered without flash.
#[test]
fn what_is_read_often_comes_to_the_fast_device() {
    // With an object cache that does not answer most of it.
    fastrand::seed(1);
    let rig = Rig::new(Sizes { memory: 96 * KIB, ..sizes() }, None);
    let world = rig.empty_world();
    let engine = rig.open(&world).expect("opens");
    put_all(&*engine, 1);
    engine.flush().expect("room");
    // Spread over all keys.
    let hot = || (0..HOT).map(|number| number * (KEYS / HOT) + 3);
    let reads = |engine: &dyn Engine| {
        let before = figure(engine, "reads_flash");
        for number in hot() {
            assert!(engine.get(&key(number)).expect("whole").is_some());
        }
        figure(engine, "reads_flash") - before
    };
    let cold = reads(&*engine);
    assert!(cold as usize > HOT / 2, "{cold} of {HOT} from flash");
    for round in 0..20 {
        reads(&*engine);
        for number in (0..KEYS).filter(|number| number % 8 != 3 && number % 7 == round % 7) {
            engine.put(&key(number), &value(number, 1), Durability::Grouped).expect("room");
        }
    }
    let hot_now = reads(&*engine);
    assert!(hot_now * 2 < cold, "{hot_now} of {HOT} from flash, {cold} before");
    assert!(figure(&*engine, "bytes_that_stayed_in_the_first_level") > 0);
    check_all(&*engine, 1);
}

/// The device's file system is full, long before the capacity that was configured.
#[test]
fn what_a_full_fast_device_does_not_take_goes_to_flash() {
    let rig = Rig::new(sizes(), None);
    let world = rig.empty_world();
    let engine = rig.open(&world).expect("opens");
    put_all(&*engine, 1);
    world.dir("beside0").set_capacity(Some(0));
    put_all(&*engine, 2);
    engine.flush().expect("flash has room");
    check_all(&*engine, 2);
    engine.close().expect("no faults");
    drop(engine);
    world.dir("beside0").set_capacity(None);
    let engine = rig.open(&world).expect("opens");
    check_all(&*engine, 2);
    put_all(&*engine, 3);
    engine.flush().expect("room");
    assert!(table_bytes(&*engine).0 > FAST / 8, "it is used again");
    check_all(&*engine, 3);
}

/// A store that is to have one level only does not use the device, but reads what is there.
#[test]
fn a_store_of_one_level_leaves_the_device_alone() {
    let one = Rig::new(Sizes { levels: (1, 1000), ..sizes() }, None);
    let world = one.empty_world();
    let engine = one.open(&world).expect("opens");
    put_all(&*engine, 1);
    engine.flush().expect("room");
    assert_eq!((table_bytes(&*engine).0, tables_in(&world, "beside0")), (0, 0));
    drop(engine);
    let engine = Rig::new(sizes(), None).open(&world).expect("opens");
    put_all(&*engine, 2);
    engine.flush().expect("room");
    assert!(tables_in(&world, "beside0") > 0);
    drop(engine);
    check_all(&*one.open(&world).expect("opens"), 2);
}

/// The stores that crash, and those that meet faults, have tables on a device; and all of those of a configuration are used.
#[test]
fn the_devices_of_the_stores_that_are_tried_are_used() {
    let stores = [Sizes::beside()].into_iter().chain(crate::configurations::all_sizes());
    for sizes in stores.filter(|sizes| !sizes.fast_dirs.is_empty()) {
        let (name, devices) = (sizes.name, sizes.fast_dirs.len());
        let rig = Rig::new(sizes, Some(LogPlace::FastTier));
        let engine = rig.open(&rig.empty_world()).expect("opens");
        let stats = engine.stats();
        let used = stats.tiers.iter().filter(|tier| tier.path.starts_with("beside") && tier.capacity > 0);
        assert_eq!(used.count(), devices, "{name}");
    }
}
