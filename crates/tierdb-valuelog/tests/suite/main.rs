//! The engine's suites, in one program because each would compile the whole engine again.

mod admission;
mod configurations;
mod conformance;
mod crash;
mod full;
mod image;
mod mutants;
#[path = "../rig/mod.rs"]
mod rig;
mod scans;
mod second_level;
