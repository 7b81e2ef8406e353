//! The slab engine over a pool and tables that were harmed: header, class and commit words, records and their parts,
//! groups of changes, removed ranges, records of tables.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tierdb_base::mutant::Site;
use tierdb_fuzz::{Base, Harm, checksum_sites, slab, unchecked};

static BASES: LazyLock<(Vec<Base>, Vec<Site>)> = LazyLock::new(|| {
    let worlds = slab::stores();
    let copies: Vec<_> = worlds.iter().map(tierdb_sim::World::copy).collect();
    let sites = checksum_sites(|| copies.iter().for_each(slab::exercise));
    (worlds.into_iter().map(Base::new).collect(), sites)
});

fuzz_target!(|input: (u8, u8, Vec<Harm>)| {
    let (base, site, harms) = input;
    let (bases, sites) = &*BASES;
    let world = bases[usize::from(base) % bases.len()].harmed(&harms);
    unchecked(sites, site, || slab::exercise(&world));
});
