//! The store that is damaged, and that fails.

use crate::rig::{SEED, Sizes};
use tierdb_engine::conformance::harm::harms::{Harmed, PoolParts};
use tierdb_engine::conformance::harm::{LogPlace, Rig, damage};
use tierdb_sim::World;

const HEADER_PAGE: u64 = 4096;
/// Bytes of a slab's commit words, at the most: those of the smallest class.
const WORDS: u64 = 1024;

/// A store to damage copies of.
pub type Base = damage::Base<Sizes>;

/// A store of a few slabs and tables, with so many bytes of flash.
pub fn sizes(flash: u64) -> Sizes {
    Sizes { name: "harmed", flash: vec![flash], ..Sizes::tiny() }
}

/// The same with two levels of tables, the first of so many percent of the fast tier.
pub fn deep(flash: u64, first_pct: u16) -> Sizes {
    Sizes { name: "harmed, two levels", levels: (2, first_pct), ..sizes(flash) }
}

/// The same with tables of the first level on a fast device beside the pool, which has room for a few.
pub fn beside(flash: u64) -> Sizes {
    let Sizes { fast_dirs, levels, .. } = Sizes::beside();
    Sizes { name: "harmed, tables beside the pool", fast_dirs, levels, ..sizes(flash) }
}

/// The same with records that are read from the device of the log.
pub fn paged(flash: u64) -> Sizes {
    Sizes { name: "harmed, paged", paged: Some(16 << 10), ..sizes(flash) }
}

impl Harmed for Sizes {
    fn parts(&self, _world: &World) -> PoolParts {
        let slabs = (HEADER_PAGE..self.pool).step_by(self.slab as usize);
        let words = slabs.clone().flat_map(|slab| slab..slab + WORDS);
        PoolParts {
            metadata: (0..512).chain(words).collect(),
            pages: std::iter::once(0).chain(slabs.clone()).collect(),
            data: HEADER_PAGE..self.pool,
            // The seqno limit, commit slots, and the class of each slab.
            words: [64, 128, 136].into_iter().chain(slabs).collect(),
            unit: self.slab,
        }
    }
}

/// A store to damage: on memory, or with a log on a fast tier, and two levels of tables.
pub fn base(logged: bool) -> Base {
    let sizes = if logged { deep(1 << 20, 50) } else { sizes(1 << 20) };
    base_of(sizes, logged)
}

/// The same of these sizes.
pub fn base_of(sizes: Sizes, logged: bool) -> Base {
    let foreign = Sizes { seed: SEED + 1, ..sizes.clone() };
    Base::new(Rig::new(sizes, logged.then_some(LogPlace::FastTier)), foreign)
}
