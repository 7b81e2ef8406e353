//! The engine's suites, in one program because each would compile the whole engine again.

mod admission;
mod configurations;
mod conformance;
mod crash;
mod full;
mod held;
mod image;
mod mutants;
#[path = "../rig/mod.rs"]
mod rig;
mod salvage;
mod scans;
mod second_level;
mod snapshots;

/// Stores that are opened by the million allocate all the time: with the C library's allocator they take a tenth more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What the engine has counted under this name since it was opened.
fn figure(engine: &dyn tierdb_engine::Engine, name: &str) -> u64 {
    engine.stats().figure(name).expect("it is counted")
}
