//! The slab engine: PrismDB (ASPLOS 2023) with a full crash and correctness contract.
//!
//! Read in this order: [`config`], then `layout`, `slabs` and `record` (what is on the fast tier), `heap` and `commit`
//! (how it changes), `flash`, `live`, `parts`, `tables`, `levels` and `build` (what is on flash, and where indexes and filters of it are), `partition`, `index`, `kept`, `cache` and `core` (what is in
//! DRAM), `read`, `write`, `batch`
//! and `cursor` (operations), `tracker`, `tune`, `bucket`, `choose`, `migrate`, `descend`, `promote` and `read_trigger` (what moves between the tiers), `clean` and
//! `tidy` (what else frees space), `rounds` (which of it when), `work` (who does it), `divide`, `recover`; `verify` and `salvage` (damage).

#![forbid(unsafe_code)]

mod batch;
mod bucket;
mod build;
mod cache;
mod choose;
mod clean;
mod commit;
pub mod config;
mod core;
mod counters;
mod cursor;
mod descend;
mod divide;
mod engine;
mod flash;
mod heap;
mod index;
mod kept;
mod key;
mod layout;
mod levels;
mod live;
mod lost;
mod mend;
mod merge;
mod migrate;
mod partition;
mod parts;
mod plan;
mod promote;
mod rate;
mod read;
mod read_trigger;
mod record;
mod recover;
#[cfg(test)]
mod removed;
#[cfg(test)]
mod rig;
mod room;
mod rounds;
mod salvage;
mod scan;
mod slabs;
mod snapshots;
mod stats;
mod tables;
mod tidy;
mod tracker;
mod tune;
mod unmerged;
mod verify;
mod work;
mod write;

pub use config::{Metric, Options, Promotion};
pub use engine::SlabStore;
pub use salvage::{SalvageReport, Salvaged, salvage};
