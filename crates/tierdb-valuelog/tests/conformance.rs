//! The engine keeps the contract on a byte-addressable fast tier.

mod rig;

use rig::{SimHarness, Sizes};
use tierdb_engine::conformance::Limits;

tierdb_engine::conformance!(SimHarness::new(Sizes::roomy(), Limits::default()));
