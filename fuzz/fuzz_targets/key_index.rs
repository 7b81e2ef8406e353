//! The key index over pages that were harmed, or that hold anything.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::ops::Bound;
use std::sync::{Arc, LazyLock};
use tierdb_base::Result;
use tierdb_base::mutant::Site;
use tierdb_fuzz::{Base, Harm, checksum_sites, unchecked};
use tierdb_pmem::{Pool, Stage};
use tierdb_sim::{SimPool, World};
use tierdb_valuelog::index::Index;
use tierdb_valuelog::pages::{PAGE, Pages};

const HEAD: u64 = 64;
const TABLE: u64 = PAGE;
const FIRST: u64 = 2;
const COUNT: u64 = 40;
const SEED: u64 = 0x5eed;

static BASE: LazyLock<(Base, Vec<Site>)> = LazyLock::new(|| {
    let world = World::new();
    let pool = Arc::new(world.add_pool("pool", (FIRST + COUNT) * PAGE).opened());
    let mut stage = Stage::new(&*pool);
    let pages = Arc::new(Pages::format(pool.clone(), &mut stage, TABLE, FIRST, COUNT, SEED));
    let _drained = stage.drain();
    let index = Index::create(pool, pages, HEAD).expect("an index is created");
    for number in 0..200 {
        index.get_or_insert(&key(number), || Ok(number)).expect("room");
    }
    for number in (0..200).step_by(3) {
        index.remove(&key(number), number).expect("no faults");
    }
    index.run_structure_updates();
    drop(index);
    let copy = world.copy();
    let sites = checksum_sites(|| {
        let _ = exercise(&copy);
    });
    (Base::new(world), sites)
});

fn key(number: u64) -> Vec<u8> {
    match number % 5 {
        0 => [&[b'p'; 300][..], &number.to_be_bytes()].concat(),
        1 => [&number.to_le_bytes()[..], &vec![7; 250 + number as usize * 5]].concat(),
        2 => vec![0xff; 1 + number as usize],
        _ => format!("user{number:06}").into_bytes(),
    }
}

fn open(pool: Arc<SimPool>) -> Result<Index<SimPool>> {
    let pages = Arc::new(Pages::open(pool.clone(), TABLE, FIRST, COUNT, SEED));
    let (index, _damage) = Index::open(pool, pages.clone(), HEAD, 1)?;
    pages.settle();
    Ok(index)
}

/// All keys, a few at a time, in one direction.
fn scan(index: &Index<SimPool>, reverse: bool) {
    let mut found: Vec<(Vec<u8>, u64)> = Vec::new();
    loop {
        let before = found.len();
        let last = found.last().map(|(key, _)| key.clone());
        let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let add = |key: &[u8], entry| found.push((key.to_vec(), entry));
        if index.scan(from, reverse, 16, add).is_err() || found.len() < before + 16 {
            return;
        }
        assert!(found.len() < 1 << 16, "the scan does not end");
    }
}

fn exercise(world: &World) -> Result<()> {
    for _ in 0..2 {
        let index = open(Arc::new(world.pool("pool").opened()))?;
        index.verify();
        scan(&index, false);
        scan(&index, true);
        for number in 0..220 {
            let _ = index.get(&key(number));
        }
        for number in (0..260).step_by(9) {
            let _ = index.get_or_insert(&key(number), || Ok(number));
            let _ = index.remove(&key(number + 1), number + 1);
        }
        index.run_structure_updates();
        let _ = index.visit(1, &|_, _| Ok(()));
    }
    Ok(())
}

#[derive(Arbitrary, Debug)]
struct Input {
    site: u8,
    /// Pages that hold what is given here, and nothing of the index.
    pages: Vec<(u8, Vec<u8>)>,
    harms: Vec<Harm>,
}

fuzz_target!(|input: Input| {
    let (base, sites) = &*BASE;
    let world = base.harmed(&input.harms);
    for (page, bytes) in input.pages.iter().take(4) {
        let page = u64::from(*page) % (FIRST + COUNT);
        world.overwrite("pool", page * PAGE, &bytes[..bytes.len().min(PAGE as usize)]);
    }
    unchecked(sites, input.site, || {
        let _ = exercise(&world);
    });
    assert_eq!(world.pool("pool").len(), (FIRST + COUNT) * PAGE);
});
