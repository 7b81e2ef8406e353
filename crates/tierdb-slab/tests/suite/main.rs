//! The engine's suites, in one program because each would compile the whole engine again.

mod beside;
mod cleaning;
mod configurations;
mod conformance;
mod copies;
mod crash;
mod crowd;
mod harm;
mod levels;
mod mutants;
mod parts;
mod rig;
mod snapshots;
mod two_devices;

/// Stores that are opened by the million allocate all the time: with the C library's allocator they take a tenth more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
