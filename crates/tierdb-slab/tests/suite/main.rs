//! The engine's suites, in one program because each would compile the whole engine again.

mod beside;
mod cleaning;
mod configurations;
mod conformance;
mod copies;
mod crash;
mod crowd;
mod levels;
mod mutants;
mod parts;
#[path = "../rig/mod.rs"]
mod rig;
mod two_devices;
