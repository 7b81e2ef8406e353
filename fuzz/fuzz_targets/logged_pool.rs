//! A logged pool over files that were harmed: the log's blocks, the tables of a checkpoint, the pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tierdb_base::FailureLatch;
use tierdb_base::mutant::Site;
use tierdb_fuzz::{Base, Harm, checksum_sites, entries, store, unchecked};
use tierdb_log::LoggedOptions;
use tierdb_pmem::Pool;
use tierdb_sim::World;

static BASE: LazyLock<(Base, Vec<Site>)> = LazyLock::new(|| {
    let world = store::on_log();
    let copy = world.copy();
    let sites = checksum_sites(|| exercise(&copy, false));
    (Base::new(world), sites)
});

fn exercise(world: &World, salvage: bool) {
    let options = LoggedOptions { salvage, ..store::logged_options() };
    for _ in 0..2 {
        let Ok(pool) = entries::open_pool(world, options.clone(), FailureLatch::new()) else { return };
        let mut page = [0; 4096];
        for at in (0..pool.len()).step_by(4096) {
            let _ = pool.read(at, &mut page);
        }
        if pool.admit(8).is_ok() {
            pool.publish(0, pool.load(0).wrapping_add(1));
        }
        let _ = pool.commit();
        let _ = pool.checkpoint();
    }
}

fuzz_target!(|input: (bool, u8, Vec<Harm>)| {
    let (salvage, site, harms) = input;
    let (base, sites) = &*BASE;
    let world = base.harmed(&harms);
    unchecked(sites, site, || exercise(&world, salvage));
});
