//! Simulated pools and block files with crash states, faults and damage, for tests.
//!
//! A [`World`] is a set of devices that lose power together: pools ([`SimPool`]) and directories of
//! files ([`SimDir`], [`SimFile`]), used through the same traits as real ones. What a program sees and
//! what media hold are two things, and flush, fence, durable write and sync are the only bridge. From
//! any moment ([`World::capture`]) come the images that media may hold after a crash there, each
//! a world of its own that shares all unchanged pages with it.
//!
//! Read in this order: [`world`], [`crash`] (what a crash may leave), [`crashtest`] (every event of a
//! script crashed, every image checked), [`fault`] (the N-th operation fails), [`damage`].
//!
//! # Example
//!
//! A counter of which every acknowledged step must survive:
//!
//! ```
//! use tierdb_pmem::{Pool, Stage};
//! use tierdb_sim::crashtest::{Options, Oracle, explore};
//! use tierdb_sim::{FaultKind, FaultPlan, Ops, World};
//!
//! let world = World::new();
//! let pool = world.add_pool("fast", 4096);
//! let oracle = Oracle::new(0);
//! let run = explore(
//!     &world,
//!     &Options::default().seed(7).depth(2),
//!     &oracle,
//!     |_, acknowledged| {
//!         for step in 1..=10 {
//!             Stage::new(&pool).drain().publish(0, step);
//!             pool.fence();
//!             acknowledged.update(|last| *last = step);
//!         }
//!     },
//!     |_image| Ok(()), // recovery, crashed in its turn: nothing to do here
//!     |acknowledged, image| {
//!         let found = image.pool("fast").load(0);
//!         // The step in flight may be there or not.
//!         let right = (*acknowledged..=acknowledged + 1).contains(&found);
//!         right.then_some(()).ok_or_else(|| format!("{found} found, {acknowledged} acknowledged"))
//!     },
//! )
//! .unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(run.images > 10);
//!
//! // Faults: run a script once for every N, until the plan meets nothing.
//! let dir = world.add_dir("flash");
//! world.inject(FaultPlan::nth(1, FaultKind::Eio).on(Ops::SYNC));
//! assert!(tierdb_device::Dir::sync(&dir).is_err());
//! assert_eq!(world.heal().hit, 1);
//! ```

#![forbid(unsafe_code)]

pub mod crash;
pub mod crashtest;
pub mod damage;
mod dir;
pub mod fault;
mod file;
mod lines;
mod live;
mod pool;
mod space;
pub mod world;

pub use crash::{Budget, CrashModel, CrashPoint, Image, Images, Words};
pub use damage::Area;
pub use dir::SimDir;
pub use fault::{FaultCount, FaultKind, FaultPlan, Ops};
pub use file::SimFile;
pub use pool::{SimPool, as_thread};
pub use world::{Event, EventKind, Hook, World};
