//! What media do to a store beside crashes: operations that fail, and bytes that change.
//!
//! One program, because each would compile the whole engine again.

mod base;
mod crafted;
mod damage;
mod faults;
mod mutants;
#[allow(dead_code, reason = "the other suites use the rest")]
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../sites/mod.rs"]
mod sites;
mod sums;

/// Stores that are opened by the million allocate all the time: with the C library's allocator they take a tenth more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
