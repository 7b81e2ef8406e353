//! What people would use instead of TierDB, behind the benchmark's seam.
//!
//! Each peer gets the same memory limit as TierDB, the same directories, direct I/O where it has it, and no
//! compression: the benchmark's values do not compress. What it caches beyond the limit is said in its `about`.

mod fjall;
mod lmdb;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;

use tierdb_bench::store::{System, Systems};

/// TierDB and its peers.
pub fn all_systems() -> Systems {
    let mut systems = tierdb_bench::our_systems();
    systems.0.extend(peers());
    systems
}

/// The peers.
pub fn peers() -> Vec<Box<dyn System>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks(rocks::Arrangement::Ssd)),
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks(rocks::Arrangement::Tiers)),
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks(rocks::Arrangement::Fast)),
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks(rocks::Arrangement::Blob)),
        Box::new(fjall::Fjall),
        Box::new(redb::Redb),
        Box::new(lmdb::Lmdb),
    ]
}
