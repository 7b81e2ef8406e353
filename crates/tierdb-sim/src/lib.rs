//! Simulated pools and block files with crash states and fault plans, for tests.

#![forbid(unsafe_code)]

mod dir;
pub mod fault;
mod file;
mod live;
mod pool;
mod space;
pub mod world;

pub use dir::SimDir;
pub use fault::{FaultCount, FaultKind, FaultPlan, Ops};
pub use file::SimFile;
pub use pool::SimPool;
pub use world::{Event, EventKind, Hook, World};
