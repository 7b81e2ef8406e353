//! The slab engine over a pool and tables that were harmed: header, class and commit words, records and their parts,
//! groups of changes, removed ranges, records of tables; on a fast block device its log, image and tables as well.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tierdb_base::mutant::Site;
use tierdb_fuzz::slab::{Fast, exercise, stores};
use tierdb_fuzz::{Base, Harm, checksum_sites, unchecked};

type Store = (Base, Fast);

static BASES: LazyLock<(Vec<Store>, Vec<Site>)> = LazyLock::new(|| {
    let worlds: Vec<_> = [Fast::Memory, Fast::Device]
        .into_iter()
        .flat_map(|fast| stores(fast).into_iter().map(move |world| (world, fast)))
        .collect();
    let copies: Vec<_> = worlds.iter().map(|(world, fast)| (world.copy(), *fast)).collect();
    let sites = checksum_sites(|| copies.iter().for_each(|(world, fast)| exercise(world, *fast)));
    (worlds.into_iter().map(|(world, fast)| (Base::new(world), fast)).collect(), sites)
});

fuzz_target!(|input: (u8, u8, Vec<Harm>)| {
    let (base, site, harms) = input;
    let (bases, sites) = &*BASES;
    let (base, fast) = &bases[usize::from(base) % bases.len()];
    let world = base.harmed(&harms);
    unchecked(sites, site, || exercise(&world, *fast));
});
