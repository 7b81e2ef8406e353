//! The `tierdb-peers` command: everything that `tierdb-bench` does, with what people would use instead of TierDB
//! among the systems.

use clap::Parser;
use std::process::ExitCode;
use tierdb_bench::args::Cli;

fn main() -> ExitCode {
    tierdb_bench::run(&Cli::parse(), &tierdb_peers::all_systems())
}
