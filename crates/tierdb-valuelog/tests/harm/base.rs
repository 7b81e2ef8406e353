//! The store that is damaged, and that fails.

use crate::rig::{SEED, Sizes};
pub use tierdb_engine::conformance::harm::damage::Look;
use tierdb_engine::conformance::harm::harms::{Harmed, PoolParts};
use tierdb_engine::conformance::harm::{LogPlace, Rig, damage};
use tierdb_sim::World;

const PAGE: u64 = 4096;

/// A store to damage copies of.
pub type Base = damage::Base<Sizes>;

/// What the fast tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A byte-addressable pool.
    Memory,
    /// A logged pool, in a directory of its own.
    Logged,
}

impl Mode {
    /// A store of these sizes.
    pub fn rig(self, sizes: Sizes) -> Rig<Sizes> {
        Rig::new(sizes, (self == Mode::Logged).then_some(LogPlace::FastTier))
    }
}

/// A store of a few chunks, with as few pages as it can have.
pub fn sizes() -> Sizes {
    sizes_with(576 << 10)
}

/// The same, with so many bytes of flash.
pub fn sizes_with(flash: u64) -> Sizes {
    Sizes { name: "harmed", pool: 112 << 10, rings: 1, flash: vec![flash], memory: 64 << 10, ..Sizes::tiny() }
}

impl Harmed for Sizes {
    fn parts(&self, world: &World) -> PoolParts {
        let ring = 2 * PAGE..2 * PAGE + u64::from(self.rings) * self.ring;
        let mut pages = vec![0, PAGE];
        if world.areas().iter().any(|area| area.name == "pool" && area.len > 0) {
            let table = world.peek("pool", PAGE, PAGE as usize);
            let first = ring.end / PAGE;
            let used = |page: &u64| table[(page - first) as usize * 8] != 0;
            pages.extend((first..self.pool / PAGE).filter(used).map(|page| page * PAGE));
        }
        PoolParts {
            metadata: pages.iter().flat_map(|page| *page..page + PAGE).collect(),
            pages,
            data: ring,
            // The index's head, the seqno limit and the commit slot.
            words: vec![64, 72, 128],
            unit: self.chunk,
        }
    }
}

/// A store to damage, whose last write is in the write buffer.
pub fn base(mode: Mode) -> Base {
    let sizes = sizes();
    let foreign = Sizes { seed: SEED + 1, ..sizes.clone() };
    Base::new(mode.rig(sizes), foreign)
}
