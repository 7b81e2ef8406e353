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
mod two_devices;
