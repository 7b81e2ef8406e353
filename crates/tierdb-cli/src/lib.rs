//! The `tierdb` command: puts, gets, scans, loads, dumps, checks and repairs stores.
//!
//! Read in this order: [`args`] (what can be asked for), [`exit`] (how it ends), [`store`] (the seam to the
//! stores, which are on disk: [`disk`]), [`text`] and [`jsonl`] (how bytes are shown), then the commands.
//!
//! A library, so that every command can be run in tests on any engine; it is not an API for programs.

#![forbid(unsafe_code)]

pub mod args;
pub mod disk;
pub mod entries;
pub mod exit;
pub mod health;
pub mod jsonl;
pub mod load;
pub mod placement;
pub mod scan;
pub mod stat;
pub mod store;
pub mod text;

use args::{Cli, Command};
use exit::{Exit, Failure};
use std::io::{Read, Write};
use std::time::Duration;
use store::{OpenHow, Stores};
use tierdb_engine::Durability;

/// The standard streams.
pub struct Streams<'a> {
    /// Standard input.
    pub stdin: Box<dyn Read>,
    /// Standard output; the caller flushes it.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
    /// Whether standard output is a terminal.
    pub out_is_terminal: bool,
    /// Whether standard error is a terminal.
    pub err_is_terminal: bool,
}

/// Runs a command and reports its failure; returns the exit code.
pub fn run(cli: &Cli, stores: &dyn Stores, streams: Streams<'_>) -> Exit {
    let Streams { stdin, out, err, out_is_terminal, err_is_terminal } = streams;
    let ended = dispatch(
        cli,
        stores,
        Streams { stdin, out: &mut *out, err: &mut *err, out_is_terminal, err_is_terminal },
    );
    let ended = ended.and_then(|()| out.flush().map_err(Failure::from));
    let Err(failure) = ended else { return Exit::Ok };
    // What was printed before the failure belongs before its message.
    let _ = out.flush();
    if let Failure::Told(_, message) = &failure {
        let _ = writeln!(err, "tierdb: {message}");
    }
    failure.exit()
}

fn dispatch(cli: &Cli, stores: &dyn Stores, mut io: Streams<'_>) -> Result<(), Failure> {
    match &cli.command {
        Command::Put(put) => {
            let (key, value) = entries::input(put, &mut io.stdin)?;
            stores.with(&put.store, OpenHow::Create, &mut |engine| {
                Ok(engine.put(&key, &value, Durability::Durable)?)
            })
        }
        Command::Get(get) => stores.with(&get.store, OpenHow::Existing, &mut |engine| {
            entries::get(engine, get, io.out, io.out_is_terminal)
        }),
        Command::Delete(delete) => stores
            .with(&delete.store, OpenHow::Existing, &mut |engine| entries::delete(engine, delete, io.out)),
        Command::Scan(scan) => {
            stores.with(&scan.store, OpenHow::Existing, &mut |engine| scan::scan(engine, scan, io.out))
        }
        Command::Dump(dump) => {
            stores.with(&dump.store, OpenHow::Existing, &mut |engine| scan::dump(engine, dump, io.out))
        }
        Command::Load(load) => {
            let progress = match (load.quiet, io.err_is_terminal) {
                (true, _) => load::Progress::silent(),
                (_, true) => load::Progress::bar(),
                _ => load::Progress::lines(Duration::from_secs_f64(load.progress_every)),
            };
            let mut input = Some(load::Input::open(load, io.stdin, progress)?);
            stores.with(&load.store, OpenHow::Create, &mut |engine| match input.take() {
                Some(input) => load::run(engine, load, input, io.out, io.err),
                None => Ok(()),
            })
        }
        Command::Stat(stat) => stores.stat(&stat.store, &mut |stats, history| {
            if stat.json {
                stat::write_json(stats, history, io.out)?;
            } else {
                stat::write_table(stats, history, io.out)?;
            }
            Ok(())
        }),
        Command::Compact(compact) => {
            let before = stores.flash_bytes(&compact.store)?;
            stores.with(&compact.store, OpenHow::Existing, &mut |engine| Ok(engine.compact()?))?;
            health::compacted(before, stores.flash_bytes(&compact.store)?, io.out)
        }
        Command::Verify(verify) => health::report(&stores.verify(&verify.store)?, verify.json, io.out),
        Command::Repair(repair) => health::saved(&stores.repair(&repair.src, &repair.dst)?, io.out),
        Command::Checkpoint(checkpoint) => {
            health::copied("copied", &stores.checkpoint(&checkpoint.store, &checkpoint.dir)?, io.out)
        }
        Command::Restore(restore) => {
            health::copied("restored", &stores.restore(&restore.dir, &restore.store)?, io.out)
        }
    }
}
