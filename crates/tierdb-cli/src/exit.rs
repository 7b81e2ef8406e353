//! How the command ends: its exit codes, and the failures that lead to them.

use std::fmt::Write;
use std::io;
use std::path::Path;
use tierdb_base::{Error, ErrorKind};

/// What the command's exit code says. Scripts rely on the numbers: they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// `get`: the key is not in the store.
    KeyNotFound = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A key, value, input file or configuration is not valid.
    Invalid = 3,
    /// There is no store there, or no file to read, or it must not be opened.
    Refused = 4,
    /// The store is open elsewhere.
    Locked = 5,
    /// Stored bytes are damaged.
    Damaged = 6,
    /// A tier is full.
    NoSpace = 7,
    /// A read or write failed, of the store or of another file.
    Io = 8,
}

impl Exit {
    /// Every code, with the line that explains it in `--help` and in the manual.
    pub const TABLE: [(Exit, &'static str); 9] = [
        (Exit::Ok, "done"),
        (Exit::KeyNotFound, "key not found (get)"),
        (Exit::Usage, "wrong usage: an unknown option, a missing argument"),
        (
            Exit::Invalid,
            "invalid input: a key, value, input line or configuration; or what is to be made is there already",
        ),
        (
            Exit::Refused,
            "no such store or input file, or refused: another file, another store's tier, a newer format, an unsupported mode",
        ),
        (Exit::Locked, "locked: the store is open elsewhere"),
        (
            Exit::Damaged,
            "damage found: stored bytes are not what was written, or (verify, repair) the medium does not give them back",
        ),
        (Exit::NoSpace, "no space: a tier is full"),
        (Exit::Io, "a read or a write failed, or the store is read-only after a failed write"),
    ];

    /// The table as it stands below `--help`.
    pub fn help() -> String {
        let mut out = String::from("Exit codes:\n");
        for (exit, meaning) in Exit::TABLE {
            let _ = writeln!(out, "  {}  {meaning}", exit as u8);
        }
        out
    }
}

/// Why a command did not end well.
#[derive(Debug)]
pub enum Failure {
    /// The reader of the output went away (`| head`): nothing is wrong, and nothing more to do.
    OutputClosed,
    /// The result itself says it, and it was printed.
    Reported(Exit),
    /// To be told on standard error.
    Told(Exit, String),
}

impl Failure {
    /// Input that cannot be used: says what is wrong, and what would be right.
    pub fn invalid(what: impl Into<String>) -> Self {
        Failure::Told(Exit::Invalid, what.into())
    }

    /// A failed read of an input file or of standard input.
    pub fn read(from: &Path, cause: &io::Error) -> Self {
        let exit = if cause.kind() == io::ErrorKind::NotFound { Exit::Refused } else { Exit::Io };
        Failure::Told(exit, format!("cannot read {}: {cause}", from.display()))
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        match self {
            Failure::OutputClosed => Exit::Ok,
            Failure::Reported(exit) | Failure::Told(exit, _) => *exit,
        }
    }

    /// The same failure with `more` after its message.
    #[must_use]
    pub fn and(self, more: &str) -> Self {
        match self {
            Failure::Told(exit, what) => Failure::Told(exit, format!("{what}; {more}")),
            other => other,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::Invalid => Exit::Invalid,
            ErrorKind::NotFound | ErrorKind::Refused | ErrorKind::Unsupported => Exit::Refused,
            ErrorKind::Locked => Exit::Locked,
            ErrorKind::Corrupt => Exit::Damaged,
            ErrorKind::NoSpace => Exit::NoSpace,
            _ => Exit::Io,
        };
        Failure::Told(exit, error.to_string())
    }
}

/// A failed write of the command's own output. Reads are reported by [`Failure::read`].
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::OutputClosed;
        }
        Failure::Told(Exit::Io, format!("cannot write the output: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_the_same_table() {
        let manual = include_str!("../../../docs/cli.md");
        for (exit, meaning) in Exit::TABLE {
            assert!(manual.contains(&format!("| {} | {meaning} |\n", exit as u8)), "{exit:?}");
        }
    }

    #[test]
    fn each_kind_of_error_has_its_code_and_a_closed_pipe_is_no_failure() {
        assert_eq!(Failure::from(Error::invalid("x")).exit(), Exit::Invalid);
        let misspelt = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(Failure::read(Path::new("x"), &misspelt).exit(), Exit::Refused);
        assert_eq!(Failure::from(Error::Poisoned { cause: "x".into() }).exit(), Exit::Io);
        assert_eq!(Failure::from(Error::Unsupported { what: "x".into() }).exit(), Exit::Refused);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit(), Exit::Ok);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::StorageFull)).exit(), Exit::Io);
        for (place, (exit, _)) in Exit::TABLE.iter().enumerate() {
            assert_eq!(*exit as usize, place, "the table lists every code once, in order");
        }
    }
}
