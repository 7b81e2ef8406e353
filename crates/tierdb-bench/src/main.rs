//! The `tierdb-bench` command.

#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use tierdb_bench::args::Cli;

fn main() -> ExitCode {
    tierdb_bench::run(&Cli::parse(), &tierdb_bench::our_systems())
}
