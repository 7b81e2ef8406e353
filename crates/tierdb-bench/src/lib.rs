//! Measures TierDB, and beside it what people would use instead.
//!
//! Read in this order: [`store`] (the seam to the stores), [`workload`] and [`keys`] (what is asked of them),
//! [`values`] and [`ledger`] (how answers are checked), [`phase`] (threads, and what is measured), [`case`] and
//! [`child`] (one system from its load to its recovery, in a process of its own), [`plan`] and [`report`].
//!
//! A library, so that a program with more systems can use all of it: it calls [`run`] with its own [`store::Systems`].

#![forbid(unsafe_code)]

pub mod args;
pub mod case;
pub mod child;
pub mod failure;
pub mod group;
pub mod keys;
pub mod knobs;
pub mod ledger;
pub mod machine;
pub mod measure;
mod order;
pub mod ours;
pub mod pace;
pub mod paper;
pub mod phase;
pub mod plan;
pub mod plots;
mod progress;
pub mod reference;
pub mod report;
pub mod settling;
pub mod store;
pub mod table;
pub mod tables;
pub mod tally;
mod tuned;
pub mod values;
mod worker;
pub mod workload;
pub mod zipf;

use args::{Cli, Command, Place};
use failure::Failure;
use ours::{Mode, TierDb};
use report::Report;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use store::{System, Systems};
use tierdb::EngineKind;
use workload::Workload;

/// TierDB with all its engines in all its modes.
pub fn our_systems() -> Systems {
    let direct = [EngineKind::Valuelog, EngineKind::Slab].into_iter().flat_map(|engine| {
        let system = |mode| TierDb { engine, mode, page_cache: false, device_records: false };
        [Mode::Byte, Mode::Block, Mode::Ssd].map(system)
    });
    let (mode, page_cache, device_records) = (Mode::Ssd, true, false);
    let cached = TierDb { engine: EngineKind::Valuelog, mode, page_cache, device_records };
    let (mode, page_cache, device_records) = (Mode::Block, false, true);
    let device = TierDb { engine: EngineKind::Slab, mode, page_cache, device_records };
    Systems(direct.chain([cached, device]).map(|system| Box::new(system) as Box<dyn System>).collect())
}

/// Runs the command line `cli` on `systems`, and reports its failure.
pub fn run(cli: &Cli, systems: &Systems) -> ExitCode {
    match dispatch(cli, systems) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tierdb-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: &Cli, systems: &Systems) -> Result<(), Failure> {
    match &cli.command {
        Command::Run(run) => finish(plan::of_run(systems, run)?, &run.place),
        Command::First(first) => finish(plan::of_first(systems, first)?, &first.place),
        Command::Paper(paper) => {
            let paper::Experiment { plan, view } = paper::prepare(systems, paper)?;
            let report = plan::carry_out(plan, &|line| eprintln!("{line}"));
            deliver(&report, paper.place())?;
            if paper.place().json.as_deref() != Some(Path::new("-")) {
                print(&view.text(&report))?;
            }
            if let Some(dir) = &paper.place().site.plots {
                for plot in view.plots(&report) {
                    plots::write(dir, &plot, &table::notes(&report))?;
                }
            }
            ended(report)
        }
        Command::Tables(asked) => failed(tables::run(systems, asked, &|line| eprintln!("{line}"), &print)?),
        Command::Plot(plot) => {
            let text = std::fs::read_to_string(&plot.report)
                .map_err(|e| Failure::io("cannot read", &plot.report, e))?;
            let report = serde_json::from_str(&text)
                .map_err(|e| Failure::Invalid(format!("{} is not a report: {e}", plot.report.display())))?;
            plots::draw(&report, &plot.dir)
        }
        Command::List => print(&list(systems)),
        Command::Case => {
            let bar = progress::Bar::new();
            child::serve(systems, &mut io::stdin(), &mut io::stdout(), &|phase, share, ops| {
                bar.show(phase, share, ops);
            })
        }
    }
}

fn finish(plan: plan::Plan, place: &Place) -> Result<(), Failure> {
    let report = plan::carry_out(plan, &|line| eprintln!("{line}"));
    deliver(&report, place)?;
    ended(report)
}

/// A run in which a case failed has failed.
fn ended(report: Report) -> Result<(), Failure> {
    failed(report.failures)
}

fn failed(failures: Vec<String>) -> Result<(), Failure> {
    if failures.is_empty() { Ok(()) } else { Err(Failure::Cases(failures)) }
}

/// Prints `report`, and writes it and its plots where the command line says.
fn deliver(report: &Report, place: &Place) -> Result<(), Failure> {
    if let Some(dir) = &place.site.plots {
        plots::draw(report, dir)?;
    }
    let json = |path: &Path| {
        serde_json::to_string(report)
            .map_err(|e| Failure::io("cannot write the report to", path, io::Error::other(e)))
    };
    match &place.json {
        Some(path) if path.as_os_str() == "-" => print(&(json(path)? + "\n")),
        Some(path) => {
            print(&table::text(report))?;
            std::fs::write(path, json(path)?).map_err(|e| Failure::io("cannot write the report to", path, e))
        }
        None => print(&table::text(report)),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match printed {
        // The reader of the output went away: there is nobody to tell.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| Failure::io("cannot write", "standard output", e)),
    }
}

fn list(systems: &Systems) -> String {
    let mut lines = vec!["Systems".to_owned()];
    lines.extend(systems.0.iter().map(|system| format!("  {:<16}{}", system.name(), system.about())));
    lines.push("\nWorkloads".to_owned());
    lines.extend(Workload::ALL.iter().map(|workload| format!("  {:<16}{}", workload.name, workload.about)));
    lines.push(
        "\nDistributions of keys
  scrambled       YCSB's own zipfian: over 10^10 ranks, hashed onto the keys. Of 4 million keys the hottest
                  20 % take about 64 % of accesses
  zipfian         zipfian over the stored keys: the hottest 20 % take about 89 %
  uniform         every key alike
  (latest)        workload d: zipfian over the age of keys\n"
            .to_owned(),
    );
    lines.join("\n")
}
