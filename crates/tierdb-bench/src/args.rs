//! The command line.

use crate::keys::{Distribution, MIN_KEY_BYTES};
use crate::paper::{prism, slab};
use crate::store::Durability;
use crate::tables::Comparison;
use crate::values::Sizes;
use crate::workload::Workload;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use tierdb::ByteSize;

/// Measures TierDB: workloads of YCSB and of production, latencies, space, wear and recovery.
///
/// Every value is derived from its key and version and checked whenever it is read: a store that gives wrong bytes,
/// or an old version, fails the run. Each case (a system with a durability and a number of threads) runs in a process
/// of its own on a new store, which is loaded first.
#[derive(Debug, Parser)]
#[command(
    name = "tierdb-bench",
    version,
    max_term_width = 100,
    after_help = "Examples:
  tierdb-bench first --dir /mnt/ssd/bench
  tierdb-bench run --dir /mnt/ssd/bench --keys 4000000 --threads 1,2,4 --repeat 3
  tierdb-bench run --workload a,c --system tierdb-byte --distribution zipfian --json c.json
  tierdb-bench run --workload a --durability grouped --rate 20000 --seconds 30

Measure with an optimised build: cargo run --release -p tierdb-bench -- ..."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run workloads on systems
    ///
    /// Loads a new store for each case, runs the workloads on it one after another, closes it, opens it again, kills
    /// it while it writes and opens it once more. Prints a table, and with --json everything that was measured.
    #[command(after_help = "Examples:
  tierdb-bench run --keys 1000000 --workload a,b,c,f,e,d
  tierdb-bench run --system tierdb-byte,tierdb-ssd --threads 1,2,4 --workload put,get
  tierdb-bench run --workload c --distribution zipfian --theta 1.2 --ops 1000000 --repeat 5
  tierdb-bench run --value-size 100..2000 --workload a --json a.json")]
    Run(Run),

    /// Puts and gets of 1 KiB values, uniform keys, with 1, 2 and 4 threads in every mode of TierDB
    #[command(after_help = "Example:
  tierdb-bench first --dir /mnt/ssd/bench --json first.json")]
    First(First),

    /// Repeat an experiment of a paper, scaled to this machine, and show its findings beside ours
    #[command(after_help = "Examples:
  tierdb-bench paper prism 7 --dir /mnt/ssd/bench
  tierdb-bench paper slab table4 --dir /mnt/ssd/bench")]
    Paper(Paper),

    /// Fill the tables that compare TierDB with its peers and with what it is meant to reach
    ///
    /// Runs every comparison: systems take turns, and each gets the same devices, memory and fast tier. Systems that this
    /// program was not built with are left out, and named. What each comparison found is written when it ends, so that
    /// nothing of it is lost if a later one is interrupted.
    #[command(after_help = "Examples:
  tierdb-peers tables --dir /mnt/ssd/bench --markdown docs/comparison.md --plots docs/plots --json tables
  tierdb-peers tables --dir /mnt/ssd/bench --scale 0.25 --dry-run
  tierdb-peers tables --dir /mnt/ssd/bench --only slab,limits --markdown docs/comparison.md
  tierdb-bench tables --scale 0.01 --repeat 1")]
    Tables(Tables),

    /// Draw the plots of a report that --json has written
    #[command(after_help = "Example:
  tierdb-bench plot ycsb.json plots/")]
    Plot(Plot),

    /// List the systems, the workloads and the distributions of keys
    List,

    /// Run one case, given as JSON on standard input
    #[command(name = crate::child::SUBCOMMAND, hide = true)]
    Case,
}

/// `tables`.
#[derive(Clone, Debug, Args)]
pub struct Tables {
    /// Only these comparisons (default: all)
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    pub only: Option<Vec<Comparison>>,
    /// How large: 1 is 4 million keys with values of 1 KiB, and proportionally less where a comparison takes fewer
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    pub scale: f64,
    /// Run every case N times; systems take turns, and medians are shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Length of each workload in seconds, after a warm-up of half of it or more (default: 20 times the root of the scale)
    #[arg(long, value_name = "S", value_parser = positive)]
    pub seconds: Option<f64>,
    /// Write the tables into FILE, each between marks of its own: what else stands in it stays
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Keep all that was measured in DIR as JSON, a file for each comparison
    #[arg(long, value_name = "DIR")]
    pub json: Option<PathBuf>,
    /// Take what DIR has of an earlier run instead of measuring it again
    #[arg(long, requires = "json")]
    pub resume: bool,
    /// Write plots as PNG too, beside the SVG
    #[arg(long, requires = "plots")]
    pub png: bool,
    /// Say what would run, and how long it would take
    #[arg(long)]
    pub dry_run: bool,
    /// On what.
    #[command(flatten)]
    pub site: Site,
}

/// `paper`.
#[derive(Clone, Debug, Args)]
pub struct Paper {
    /// Which paper.
    #[command(subcommand)]
    pub source: Source,
}

/// A paper.
#[derive(Clone, Debug, Subcommand)]
pub enum Source {
    /// PRISM, ASPLOS '23: the value log engine
    #[command(after_help = "Examples:
  tierdb-bench paper prism 7 --dir /mnt/ssd/bench
  tierdb-bench paper prism 16 --threads 8 --plots plots")]
    Prism(Prism),
    /// PrismDB, ASPLOS '23: the slab engine
    #[command(after_help = "Examples:
  tierdb-bench paper slab table4 --dir /mnt/ssd/bench
  tierdb-bench paper slab 9 --system slab-byte,tierdb-byte --emulate-flash none --plots plots")]
    Slab(Slab),
}

/// `paper prism`.
#[derive(Clone, Debug, Args)]
pub struct Prism {
    /// The figure
    #[arg(value_enum)]
    pub figure: prism::Figure,
    /// How large.
    #[command(flatten)]
    pub scale: Scale,
}

/// `paper slab`.
#[derive(Clone, Debug, Args)]
pub struct Slab {
    /// The figure
    #[arg(value_enum)]
    pub figure: slab::Figure,
    /// How large.
    #[command(flatten)]
    pub scale: Scale,
}

/// What of a figure can be chosen.
#[derive(Clone, Debug, Args)]
pub struct Scale {
    /// Systems (see 'list'; default: those of the figure)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub system: Option<Vec<String>>,
    /// Keys to load (default: 200000, more where the figure needs them)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: Option<u64>,
    /// Threads; where they are what is varied, the most (default: 4, 40 for PRISM's Figure 11; 8 for PrismDB's figures, 16 for its 11d)
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Length of each workload in seconds, its warm-up not counted (default: 5; less where there are many)
    #[arg(long, value_name = "S", value_parser = positive)]
    pub seconds: Option<f64>,
    /// Distribution of the zipfian workloads, of exponent 0.99, where the figure does not vary it (default: scrambled; for
    /// PrismDB's figures, zipfian)
    #[arg(long, value_enum)]
    pub distribution: Option<Keys>,
    /// Where and how large.
    #[command(flatten)]
    pub place: Place,
}

impl Paper {
    /// Where and how large.
    pub fn place(&self) -> &Place {
        match &self.source {
            Source::Prism(prism) => &prism.scale.place,
            Source::Slab(slab) => &slab.scale.place,
        }
    }
}

fn threads(text: &str) -> Result<usize, String> {
    let threads: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1..=crate::ledger::MAX_WRITERS).contains(&threads) {
        return Ok(threads);
    }
    Err(format!("1 to {} threads are possible", crate::ledger::MAX_WRITERS))
}

/// `plot`.
#[derive(Clone, Debug, Args)]
pub struct Plot {
    /// The report
    pub report: PathBuf,
    /// Where the plots go
    pub dir: PathBuf,
}

/// Which zipfian distribution the zipfian workloads use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keys {
    /// YCSB's own: over 10^10 ranks, hashed onto the keys
    Scrambled,
    /// Over the stored keys
    Zipfian,
    /// Every key alike
    Uniform,
}

impl Keys {
    /// The distribution, where zipfian ones have this exponent.
    pub fn of(self, theta: f64) -> Distribution {
        match self {
            Keys::Scrambled => Distribution::Scrambled(theta),
            Keys::Zipfian => Distribution::Zipfian(theta),
            Keys::Uniform => Distribution::Uniform,
        }
    }
}

/// On what every command measures.
#[derive(Clone, Debug, Args)]
pub struct Site {
    /// Directory on flash; stores are made below it and removed again
    #[arg(long, value_name = "DIR", default_value = "bench-data")]
    pub dir: PathBuf,
    /// Directory in shared memory that stands for a byte-addressable fast tier
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub fast_dir: PathBuf,
    /// Device to imitate on the byte-addressable fast tier, or 'none'
    #[arg(long, value_name = "NAME", default_value = "optane-pmem")]
    pub emulate_fast: String,
    /// Seed of every choice
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Read flash by itself for S seconds at each of seven depths before each round of cases, and for four times as long at two
    /// behind each workload that only reads, to say what it allows (0: not)
    #[arg(long, value_name = "S", default_value_t = 0.25, value_parser = not_negative)]
    pub reference: f64,
    /// Hold each case's process, page cache included, to the store's memory and SIZE more by a control group; where systems have
    /// a fast tier in shared memory it is refused, and 'tables' does without
    #[arg(long, value_name = "SIZE")]
    pub memory_group: Option<ByteSize>,
    /// Write plots into DIR: throughput, latencies, and what else the command draws
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

/// Where and how large.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// On what.
    #[command(flatten)]
    pub site: Site,
    /// Directory on a fast block device (default: the flash directory)
    #[arg(long, value_name = "DIR")]
    pub block_dir: Option<PathBuf>,
    /// Device to imitate on the fast block device: optane-ssd, pcie4-ssd, tlc, qlc or 'none' (default: none; for PrismDB's
    /// figures, optane-ssd)
    #[arg(long, value_name = "NAME")]
    pub emulate_block: Option<String>,
    /// Device to imitate on flash: optane-ssd, pcie4-ssd, tlc, qlc or 'none'; TierDB and RocksDB can (default: none; for
    /// PRISM's figures but 11, pcie4-ssd, for PrismDB's, qlc)
    #[arg(long, value_name = "NAME")]
    pub emulate_flash: Option<String>,
    /// Bytes of a key, of mixgraph on average (default: 16; for mixgraph alone, 48)
    #[arg(long, value_name = "BYTES", value_parser = key_bytes)]
    pub key_size: Option<usize>,
    /// Memory for each store (default: 20 % of the data, for PrismDB's figures 10 %, or what a system of the run needs
    /// for its keys)
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Space on the fast tier for each store (default: 20 % of the data, for PRISM's figures 21.4 %, or what a system of the run
    /// needs for its keys)
    #[arg(long, value_name = "SIZE")]
    pub fast_capacity: Option<ByteSize>,
    /// Run every case N times; systems take turns, and medians are shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Watch each store idle for S seconds after its last workload, and as long before to come to rest (0: not)
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = not_negative)]
    pub idle: f64,
    /// Do not close, kill and reopen the store at the end
    #[arg(long)]
    pub no_recovery: bool,
    /// Write all that was measured to FILE as JSON; '-' prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn key_bytes(text: &str) -> Result<usize, String> {
    let bytes: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if (MIN_KEY_BYTES..=tierdb::MAX_KEY_BYTES).contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("keys have {MIN_KEY_BYTES} to {} bytes", tierdb::MAX_KEY_BYTES))
}

/// `run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Systems (see 'list')
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "tierdb-byte,tierdb-block,tierdb-ssd"
    )]
    pub system: Vec<String>,
    /// Workloads, in this order after the load (see 'list'); with 'load', the load is as durable as the rest
    ///
    /// Without 'load' among them the load is grouped, and over sooner; its figures are shown all the same.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "a,b,c,f,e,d", value_parser = workload)]
    pub workload: Vec<String>,
    /// Keys to load
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Bytes of a value: a size, a range (100..2000) or 'pareto' (default: 1024; for mixgraph alone, pareto)
    #[arg(long, value_name = "SIZE")]
    pub value_size: Option<Sizes>,
    /// Numbers of threads; each is a case
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "2",
        value_parser = clap::value_parser!(u16).range(1..=crate::ledger::MAX_WRITERS as i64))]
    pub threads: Vec<u16>,
    /// Durabilities; each is a case
    #[arg(long, value_enum, value_delimiter = ',', default_value = "durable")]
    pub durability: Vec<Durability>,
    /// Distribution of the zipfian workloads
    #[arg(long, value_enum, default_value_t = Keys::Scrambled)]
    pub distribution: Keys,
    /// Exponent of the zipfian distributions, above 0 and not 1
    #[arg(long, value_name = "X", default_value_t = 0.99, value_parser = theta)]
    pub theta: f64,
    /// Length of each workload in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = positive)]
    pub seconds: f64,
    /// Length of each workload in operations, instead of seconds
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub ops: Option<u64>,
    /// Warm-up before each workload in seconds, not measured
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = not_negative)]
    pub warmup: f64,
    /// Open loop: begin N operations a second (at most 10 million), and count latencies from when they were due
    #[arg(long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,
    /// Most entries of a scan
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub scan_entries: u16,
    /// Where and how large.
    #[command(flatten)]
    pub place: Place,
}

fn workload(name: &str) -> Result<String, String> {
    if name == "load" || Workload::named(name).is_some() {
        return Ok(name.to_owned());
    }
    Err(format!("there are load, {}", Workload::ALL.map(|workload| workload.name).join(", ")))
}

fn theta(text: &str) -> Result<f64, String> {
    let theta = positive(text)?;
    if (theta - 1.0).abs() < 1e-3 { Err("must not be 1: use 0.999 or 1.001".to_owned()) } else { Ok(theta) }
}

/// Longer than anybody waits, in seconds, and more than anybody scales by.
const MOST: f64 = 1e7;
/// Fewer operations a second than anybody waits for.
const LEAST_RATE: f64 = 1e-6;
/// More operations a second than any store begins: beyond, to count what was due and never begun would take longer than the run.
const MOST_RATE: f64 = 10e6;

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| 0.0 < number && number <= MOST, &format!("above 0, and at most {MOST}"))
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=MOST).contains(&number), &format!("0 to {MOST}"))
}

fn rate(text: &str) -> Result<f64, String> {
    let range = LEAST_RATE..=MOST_RATE;
    let words = format!("{LEAST_RATE} to {MOST_RATE} operations a second");
    number(text, |number| range.contains(&number), &words)
}

/// The number that `text` is, if that is one of those `words` tells.
fn number(text: &str, is_right: impl Fn(f64) -> bool, words: &str) -> Result<f64, String> {
    let number = text.parse().map_err(|_| "not a number".to_owned())?;
    if is_right(number) { Ok(number) } else { Err(format!("must be {words}")) }
}

impl Run {
    /// `workload` on `system`, with `keys` keys and values of 1 KiB, and all else as the command line has it.
    pub fn of(system: &[&str], workload: &[&str], keys: u64, place: Place) -> Self {
        Run {
            system: system.iter().map(|name| (*name).to_owned()).collect(),
            workload: workload.iter().map(|name| (*name).to_owned()).collect(),
            keys,
            value_size: Some(Sizes::Fixed(1024)),
            threads: vec![2],
            durability: vec![Durability::Durable],
            distribution: Keys::Scrambled,
            theta: 0.99,
            seconds: 10.0,
            ops: None,
            warmup: 2.0,
            rate: None,
            scan_entries: 100,
            place,
        }
    }

    /// The distribution of the zipfian workloads.
    pub fn distribution(&self) -> Distribution {
        self.distribution.of(self.theta)
    }
}

/// `first`.
#[derive(Clone, Debug, Args)]
pub struct First {
    /// Keys to load
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Length of each workload in seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = positive)]
    pub seconds: f64,
    /// Where and how large.
    #[command(flatten)]
    pub place: Place,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_no_store_reaches_is_refused() {
        let asked = |rate: &str| Cli::try_parse_from(["tierdb-bench", "run", "--rate", rate]);
        assert!(asked("1e7").is_ok() && asked("0.5").is_ok());
        for rate in ["1.1e7", "1e12", "inf", "0", "1e-20"] {
            let refused = asked(rate).expect_err(rate).to_string();
            assert!(refused.contains("--rate") && refused.contains("must be"), "{refused}");
        }
        let too_many = asked("1.1e7").expect_err("too many").to_string();
        assert!(too_many.contains("to 10000000 operations a second"), "{too_many}");
    }

    #[test]
    fn times_longer_than_anybody_waits_are_refused() {
        for option in ["--seconds", "--warmup", "--idle"] {
            let asked = |seconds| Cli::try_parse_from(["tierdb-bench", "run", option, seconds]);
            asked("10").expect(option);
            for seconds in ["1e300", "inf", "-1", "x"] {
                asked(seconds).expect_err(seconds);
            }
        }
    }
}
