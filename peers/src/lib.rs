//! What people would use instead of TierDB, behind the benchmark's seam.
//!
//! Each peer gets the same memory limit as TierDB, the same directories, direct I/O where it has it, and no
//! compression: the benchmark's values do not compress. What it caches beyond the limit is said in its `about`.

mod fjall;
mod lmdb;
#[cfg(feature = "rocksdb")]
mod paced;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;

use tierdb_bench::store::{System, Systems};

/// The version of the crate `name` that was built in.
fn version(name: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let mut packages = lock.split("[[package]]").filter_map(|package| {
        let field = |field: &str| package.split(&format!("\n{field} = \"")).nth(1)?.split('"').next();
        Some((field("name")?, field("version")?))
    });
    packages.find(|(own, _)| *own == name).map_or("of an unknown version", |(_, version)| version)
}

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
        Box::new(rocks::Rocks(rocks::Arrangement::BlockTiers)),
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks(rocks::Arrangement::Fast)),
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks(rocks::Arrangement::Blob)),
        Box::new(fjall::Fjall),
        Box::new(redb::Redb),
        Box::new(lmdb::Lmdb),
    ]
}
