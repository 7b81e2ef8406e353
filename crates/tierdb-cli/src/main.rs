//! The `tierdb` command.

#![forbid(unsafe_code)]

use clap::Parser;
use std::io::{self, BufWriter, IsTerminal};
use std::process::ExitCode;
use tierdb_cli::args::Cli;
use tierdb_cli::disk::Disk;
use tierdb_cli::{Streams, run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let stdout = io::stdout();
    let mut out = BufWriter::with_capacity(256 << 10, stdout.lock());
    let streams = Streams {
        stdin: Box::new(io::stdin()),
        out: &mut out,
        err: &mut io::stderr(),
        out_is_terminal: io::stdout().is_terminal(),
        err_is_terminal: io::stderr().is_terminal(),
    };
    ExitCode::from(run(&cli, &Disk, streams) as u8)
}
