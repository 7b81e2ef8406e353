//! The command line: every subcommand, option and example.

use crate::exit::{Exit, Failure};
use crate::text::Notation;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::path::PathBuf;
use tierdb_engine::{Durability, KeyRange};

/// Puts, gets, scans, loads, dumps, checks and repairs TierDB stores.
///
/// STORE is a store directory, or a TOML configuration file that names the store's tiers.
#[derive(Debug, Parser)]
#[command(name = "tierdb", version, max_term_width = 100, after_help = main_help())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn main_help() -> String {
    format!(
        "{}\nExamples:\n  tierdb put ./store user42 'Zurich'\n  tierdb get ./store user42\n  tierdb load ./store people.csv --key-column id --prefix person/\n  tierdb scan ./store --prefix person/ --limit 10\n\nErrors go to standard error as 'tierdb: MESSAGE', an option that there is not, or an argument that is missing, as 'error: MESSAGE'.",
        Exit::help()
    )
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Store a value under a key
    ///
    /// Creates the store if there is none. The write is durable when the command returns. Without VALUE and
    /// --file, the value is read from standard input, byte for byte.
    #[command(after_help = "Examples:
  tierdb put ./store user42 'Zurich'
  tierdb put ./store photo/7 --file photo.jpg
  date | tierdb put ./store started
  tierdb put ./store --hex 00ff 2a")]
    Put(Put),

    /// Print the value of a key
    ///
    /// Prints the value's bytes and nothing else (on a terminal, or with --hex or --escaped, also a line feed). Ends with code 1 if the
    /// key is not in the store.
    #[command(after_help = "Examples:
  tierdb get ./store user42
  tierdb get ./store photo/7 > photo.jpg
  tierdb get ./store user42 --json")]
    Get(Get),

    /// Remove a key, or all keys of a range
    ///
    /// Removing a key that is not there is no error. Removing a range prints how many keys it held.
    #[command(after_help = "Examples:
  tierdb delete ./store user42
  tierdb delete ./store --prefix session/
  tierdb delete ./store --start 2024-01-01 --end 2025-01-01")]
    Delete(Delete),

    /// Print the entries of a range, in key order
    ///
    /// --format text prints KEY, a tab and VALUE, each in the escaped form: a backslash is \\, a tab \t, a
    /// line feed \n, a carriage return \r; control characters, U+FEFF and bytes that are not UTF-8 are \xNN. hex
    /// prints both in hexadecimal digits. jsonl prints {"key":...,"value":...}, with key_hex or value_hex
    /// for what is not UTF-8.
    #[command(after_help = "Examples:
  tierdb scan ./store --prefix user --limit 10
  tierdb scan ./store --start 2024 --end 2025 --format jsonl
  tierdb scan ./store --reverse --limit 1 --keys-only
  tierdb scan ./store --prefix user --count")]
    Scan(Scan),

    /// Load entries from a TSV, CSV or JSON lines file
    ///
    /// Creates the store if there is none. What a line without an entry is, is reported with its number.
    /// What its last line, and lines of progress, report as loaded is durable: after a crash it is in the store, and the store
    /// holds the input up to some line, without a hole. (A bar of progress on a terminal is ahead of that.)
    ///
    /// tsv: KEY, a tab and VALUE, each in the escaped form (see 'tierdb scan --help'), or with --raw as they
    /// are. csv: the key is made of --key-column; the value is --value-column, or the whole row as a JSON
    /// object (with --no-header, as an array). jsonl: the key is made of --key-field, and the value is the
    /// line's JSON text; without --key-field the lines are those that 'tierdb dump' writes.
    #[command(after_help = "Examples:
  tierdb load ./store people.csv --key-column id --prefix person/
  tierdb load ./store events.jsonl --key-field user.id,at --on-error skip
  tierdb load ./store words.tsv --durability durable
  tierdb dump ./old | tierdb load ./new - --format jsonl")]
    Load(Load),

    /// Print the whole store, or a range, so that 'load' reads it back
    ///
    /// What is printed is the store as it was at one moment. Any bytes come back the same, in both formats.
    #[command(after_help = "Examples:
  tierdb dump ./store > store.jsonl
  tierdb dump ./store --format tsv --prefix person/ > people.tsv
  tierdb dump ./store | tierdb load ./copy - --format jsonl")]
    Dump(Dump),

    /// Show what the store holds, on which tiers, and what that cost
    ///
    /// Counters start at zero whenever a store is opened; what was counted before, in each use that ended with a close, is summed
    /// up under 'before this open'. 'tierdb load --stat' shows the counters of a load. What was never counted is left out; --json has it.
    #[command(after_help = "Examples:
  tierdb stat ./store
  tierdb stat ./store --json")]
    Stat(Stat),

    /// Give the space of what was deleted or overwritten back to the file system
    ///
    /// Reads and writes the values that garbage lies between. Never needed to make room for writes: the store does
    /// that by itself, and keeps the space for them. Prints how much room the store's files took before and after.
    #[command(after_help = "Example:
  tierdb compact ./store")]
    Compact(Compact),

    /// Read and check everything that is stored
    ///
    /// Changes nothing. Names each damaged place, and the keys it affects where they are known. Ends with code 6
    /// if there is damage.
    #[command(after_help = "Examples:
  tierdb verify ./store
  tierdb verify ./store --json")]
    Verify(Verify),

    /// Save what can be read of a damaged store into a new one
    ///
    /// SRC is only read, and some of its tiers may be missing. DST must not be there yet, or be an empty directory; it gets a file that
    /// lists what was lost, and the keys that may have been overwritten or deleted since. Ends with code 6 if
    /// there are any, or anything of SRC is damaged. DST has the engine of its configuration, whatever that of SRC is.
    #[command(after_help = "Example:
  tierdb repair ./broken ./saved")]
    Repair(Repair),

    /// Copy the store, as of now, into a directory
    ///
    /// DIR must not be there yet. 'tierdb restore' makes a store of it again.
    #[command(after_help = "Example:
  tierdb checkpoint ./store /backup/2024-06-01")]
    Checkpoint(Checkpoint),

    /// Make a store from a checkpoint
    ///
    /// STORE must not hold a store yet. A configuration file may name other tiers than those that the
    /// checkpoint was taken from.
    #[command(after_help = "Examples:
  tierdb restore /backup/2024-06-01 ./store
  tierdb restore /backup/2024-06-01 store.toml")]
    Restore(Restore),
}

/// How keys and values stand on the command line.
#[derive(Debug, Args)]
pub struct NotationArgs {
    /// Keys and values are hexadecimal digits
    #[arg(long, conflicts_with = "escaped")]
    hex: bool,
    /// Keys and values are in the escaped form: \\ \t \n \r \xNN
    ///
    /// Without --hex or --escaped they are the bytes as given, and a backslash is a backslash.
    #[arg(long)]
    escaped: bool,
}

impl NotationArgs {
    /// The notation that was asked for.
    pub fn notation(&self) -> Notation {
        match (self.hex, self.escaped) {
            (true, _) => Notation::Hex,
            (_, true) => Notation::Escaped,
            _ => Notation::Raw,
        }
    }
}

/// A range of keys.
#[derive(Debug, Args)]
pub struct RangeArgs {
    /// Only keys that start with PREFIX
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["start", "end"])]
    prefix: Option<OsString>,
    /// Only keys from KEY on
    #[arg(long, value_name = "KEY")]
    start: Option<OsString>,
    /// Only keys before KEY
    #[arg(long, value_name = "KEY")]
    end: Option<OsString>,
}

impl RangeArgs {
    /// The range they name, with their keys in `notation`.
    pub fn range(&self, notation: Notation) -> Result<KeyRange, Failure> {
        if let Some(prefix) = &self.prefix {
            return Ok(KeyRange::prefix(&notation.read("prefix", prefix)?));
        }
        let start = self.start.as_deref().map(|start| notation.read("start", start)).transpose()?;
        let end = self.end.as_deref().map(|end| notation.read("end", end)).transpose()?;
        Ok(KeyRange {
            start: start.map_or(Bound::Unbounded, Bound::Included),
            end: end.map_or(Bound::Unbounded, Bound::Excluded),
        })
    }
}

/// `put`.
#[derive(Debug, Args)]
pub struct Put {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// The key: 1 to 4,096 bytes (after '--' where it starts with a hyphen)
    pub key: OsString,
    /// The value; left out, it is read from standard input (after '--' where it starts with a hyphen)
    pub value: Option<OsString>,
    /// Read the value from FILE, byte for byte
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub file: Option<PathBuf>,
    /// How key and value are given.
    #[command(flatten)]
    pub notation: NotationArgs,
}

/// `get`.
#[derive(Debug, Args)]
pub struct Get {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// The key (after '--' where it starts with a hyphen)
    pub key: OsString,
    /// Print the entry as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// How the key is given and the value is printed.
    #[command(flatten)]
    pub notation: NotationArgs,
}

/// `delete`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["key", "prefix", "start", "end", "all"]))]
pub struct Delete {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// The key (after '--' where it starts with a hyphen)
    #[arg(conflicts_with_all = ["prefix", "start", "end", "all"])]
    pub key: Option<OsString>,
    /// The keys to remove.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Every key of the store
    #[arg(long, conflicts_with_all = ["prefix", "start", "end"])]
    pub all: bool,
    /// How keys are given.
    #[command(flatten)]
    pub notation: NotationArgs,
}

/// How `scan` prints entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScanFormat {
    /// Key, tab, value, in the escaped form
    Text,
    /// Key, tab, value, in hexadecimal digits
    Hex,
    /// A JSON object on each line
    Jsonl,
}

/// `scan`.
#[derive(Debug, Args)]
pub struct Scan {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// Which entries.
    #[command(flatten)]
    pub range: RangeArgs,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// At most N entries
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Keys without values
    #[arg(long)]
    pub keys_only: bool,
    /// Only the number of entries
    #[arg(long, conflicts_with_all = ["keys_only", "format"])]
    pub count: bool,
    /// How entries are printed
    #[arg(long, value_enum, default_value_t = ScanFormat::Text)]
    pub format: ScanFormat,
    /// How the keys of --prefix, --start and --end are given.
    #[command(flatten)]
    pub notation: NotationArgs,
}

/// What `load` does with a line that is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnError {
    /// Report it and go on
    Skip,
    /// Report it and stop; the entries before it are loaded
    Fail,
}

/// What `load` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// Key, tab, value
    Tsv,
    /// Comma-separated values
    Csv,
    /// A JSON object on each line
    Jsonl,
}

/// [`Durability`], as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// Each batch is durable before the next is read
    Durable,
    /// Many batches become durable together; all of them before the command reports them
    Grouped,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Self {
        match arg {
            DurabilityArg::Durable => Durability::Durable,
            DurabilityArg::Grouped => Durability::Grouped,
        }
    }
}

/// `load`.
#[derive(Debug, Args)]
pub struct Load {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// The file to read, or - for standard input
    pub file: PathBuf,
    /// What the file holds; guessed from its name where that ends in .tsv, .csv, .jsonl or .ndjson
    #[arg(long, value_enum)]
    pub format: Option<LoadFormat>,
    /// csv: the column of the key, by its name, or else by its number from 1; several are joined
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub key_column: Vec<String>,
    /// csv: the column of the value (default: the whole row as JSON)
    #[arg(long, value_name = "COLUMN")]
    pub value_column: Option<String>,
    /// csv: the character between columns
    #[arg(long, value_name = "CHAR", default_value = ",")]
    pub delimiter: String,
    /// csv: the first row is an entry like the others
    #[arg(long)]
    pub no_header: bool,
    /// jsonl: the field of the key; a dotted path goes into objects; several are joined
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    pub key_field: Vec<String>,
    /// What joins several key columns or fields
    #[arg(long, value_name = "TEXT", default_value = "/")]
    pub key_separator: OsString,
    /// tsv: backslashes are ordinary characters
    #[arg(long)]
    pub raw: bool,
    /// Put PREFIX before every key
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub prefix: OsString,
    /// What to do with a line that is no entry
    #[arg(long, value_enum, default_value_t = OnError::Fail)]
    pub on_error: OnError,
    /// With --on-error skip, report at most N lines one by one
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub max_errors_shown: u64,
    /// Entries that are written together: all of them are in the store, or none
    #[arg(long, value_name = "N", default_value = "256")]
    pub batch_size: NonZeroUsize,
    /// When batches become durable
    #[arg(long, value_enum, default_value_t = DurabilityArg::Grouped)]
    pub durability: DurabilityArg,
    /// Off a terminal: seconds between lines of progress, for example 0.5
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub progress_every: f64,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
    /// After the load, show the store's statistics: write amplification, latencies and I/O are the load's own
    #[arg(long)]
    pub stat: bool,
}

fn seconds(given: &str) -> Result<f64, String> {
    match given.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds, from 0 to 86400".to_owned()),
    }
}

/// What `dump` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DumpFormat {
    /// A JSON object on each line
    Jsonl,
    /// Key, tab, value, in the escaped form
    Tsv,
}

/// `dump`.
#[derive(Debug, Args)]
pub struct Dump {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// How entries are printed
    #[arg(long, value_enum, default_value_t = DumpFormat::Jsonl)]
    pub format: DumpFormat,
    /// Which entries.
    #[command(flatten)]
    pub range: RangeArgs,
    /// How the keys of --prefix, --start and --end are given.
    #[command(flatten)]
    pub notation: NotationArgs,
}

/// `stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// Print one JSON object, with the same names in every version
    #[arg(long)]
    pub json: bool,
}

/// `compact`.
#[derive(Debug, Args)]
pub struct Compact {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
}

/// `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `repair`.
#[derive(Debug, Args)]
pub struct Repair {
    /// The damaged store: its directory or TOML configuration file
    pub src: PathBuf,
    /// The new store: its directory or TOML configuration file
    pub dst: PathBuf,
}

/// `checkpoint`.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// Store directory or TOML configuration file
    pub store: PathBuf,
    /// The directory to make
    pub dir: PathBuf,
}

/// `restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// The checkpoint's directory
    pub dir: PathBuf,
    /// The new store: its directory or TOML configuration file
    pub store: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent_and_every_subcommand_has_an_example() {
        let command = Cli::command();
        command.clone().debug_assert();
        for sub in command.get_subcommands() {
            let name = sub.get_name();
            let after = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Example") && after.contains(&format!("tierdb {name} ")), "{name}");
            assert!(sub.get_long_about().is_some(), "{name} says more than a line");
            for argument in sub.get_arguments() {
                assert!(argument.get_help().is_some(), "{name}: {} is explained", argument.get_id());
            }
        }
    }

    #[test]
    fn the_manual_names_every_subcommand() {
        let manual = include_str!("../../../docs/cli.md");
        for sub in Cli::command().get_subcommands() {
            assert!(manual.contains(&format!("| `{} ", sub.get_name())), "{}", sub.get_name());
        }
    }

    /// Goal: no example in the help is out of date. Method: parse each as a shell would split it.
    #[test]
    fn every_example_parses() {
        let command = Cli::command();
        let mut pages: Vec<String> =
            command.get_subcommands().filter_map(|s| s.get_after_help()).map(|h| h.to_string()).collect();
        pages.push(main_help());
        let mut seen = 0;
        for line in pages.iter().flat_map(|page| page.lines()).filter(|line| line.starts_with("  ")) {
            for part in line.split('|').filter(|part| part.trim_start().starts_with("tierdb ")) {
                let words = part.split('>').next().unwrap_or(part).replace('\'', "");
                Cli::try_parse_from(words.split_whitespace()).unwrap_or_else(|e| panic!("{line}: {e}"));
                seen += 1;
            }
        }
        assert!(seen >= 20, "only {seen} examples were found");
    }

    #[test]
    fn a_range_is_asked_for_in_one_way() {
        let parse = |words: &[&str]| Cli::try_parse_from(words.iter().copied()).is_ok();
        assert!(parse(&["tierdb", "delete", "s", "k"]));
        assert!(parse(&["tierdb", "delete", "s", "--start", "a", "--end", "b"]));
        assert!(parse(&["tierdb", "delete", "s", "--all"]));
        assert!(!parse(&["tierdb", "delete", "s"]));
        assert!(!parse(&["tierdb", "delete", "s", "k", "--all"]));
        assert!(!parse(&["tierdb", "delete", "s", "--prefix", "a", "--start", "b"]));
        assert!(!parse(&["tierdb", "delete", "s", "--all", "--end", "b"]));
        assert!(!parse(&["tierdb", "load", "s", "f", "--progress-every", "-1"]));
        assert!(!parse(&["tierdb", "load", "s", "f", "--progress-every", "nan"]));
    }
}
