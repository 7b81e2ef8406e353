//! Random operations, as data: they can be printed, and left out to reduce a failure.

use super::Limits;
use super::keys::{Keys, value_len};
use crate::engine::{Durability, KeyRange};
use fastrand::Rng;
use std::fmt;
use std::ops::Bound;
use tierdb_base::hex::printable;

/// Snapshots that may be open at once, and as many cursors.
pub(super) const SLOTS: usize = 4;

/// A value to write: see [`value`](super::values::value).
#[derive(Clone, Copy)]
pub(super) struct Spec {
    pub tag: u64,
    pub len: usize,
}

/// A move of a cursor.
#[derive(Clone)]
pub(super) enum Move {
    Next,
    Prev,
    Seek(Vec<u8>),
    First,
    Last,
}

/// An operation. One on a slot that is empty does nothing, so any may be left out.
#[derive(Clone)]
pub(super) enum Step {
    Put(Vec<u8>, Spec, Durability),
    Delete(Vec<u8>, Durability),
    Batch(Vec<(Vec<u8>, Option<Spec>)>, Durability),
    DeleteRange(KeyRange, Durability),
    Get(Vec<u8>),
    MultiGet(Vec<Vec<u8>>),
    Scan(KeyRange),
    Snapshot(usize),
    Release(usize),
    GetAt(usize, Vec<u8>),
    ScanAt(usize, KeyRange),
    /// Opens a cursor in a slot, on a snapshot's slot or as of now.
    Open(usize, KeyRange, Option<usize>),
    Move(usize, Vec<Move>),
    Shut(usize),
    Sync,
    Flush,
    Compact,
    Verify,
    Everything,
    /// Closes, drops and opens again.
    Close,
    /// Drops without close, and opens again.
    Drop,
}

/// Makes `count` operations from `rng`.
pub(super) fn generate(rng: &mut Rng, count: usize, limits: &Limits) -> Vec<Step> {
    let key_count = [3, 12, 40, 400, 2000][rng.usize(..5)];
    let keys = Keys::choose(rng, key_count);
    let grouped_pct = [0, 10, 50, 95][rng.usize(..4)];
    let mut maker = Maker { rng, keys, limits, tag: 0, grouped_pct };
    (0..count).map(|_| maker.step()).collect()
}

struct Maker<'a> {
    rng: &'a mut Rng,
    keys: Keys,
    limits: &'a Limits,
    tag: u64,
    grouped_pct: u8,
}

impl Maker<'_> {
    fn step(&mut self) -> Step {
        match self.rng.u16(..1000) {
            0..300 => Step::Put(self.key(), self.spec(), self.durability()),
            300..380 => Step::Delete(self.key(), self.durability()),
            380..450 => {
                let count = self.rng.usize(..12);
                let ops = (0..count).map(|_| {
                    let delete = self.rng.u8(..4) == 0;
                    (self.key(), (!delete).then(|| self.spec()))
                });
                Step::Batch(ops.collect(), self.durability())
            }
            450..460 => Step::DeleteRange(self.keys.range(self.rng), self.durability()),
            460..600 => Step::Get(self.key()),
            600..640 => Step::MultiGet((0..self.rng.usize(..20)).map(|_| self.key()).collect()),
            640..680 => Step::Scan(self.keys.range(self.rng)),
            680..710 => Step::Snapshot(self.slot()),
            710..730 => Step::Release(self.slot()),
            730..790 => Step::GetAt(self.slot(), self.key()),
            790..820 => Step::ScanAt(self.slot(), self.keys.range(self.rng)),
            820..850 => {
                let on = self.rng.bool().then(|| self.slot());
                Step::Open(self.slot(), self.keys.range(self.rng), on)
            }
            850..950 => {
                Step::Move(self.slot(), (0..self.rng.usize(1..16)).map(|_| self.cursor_move()).collect())
            }
            950..960 => Step::Shut(self.slot()),
            960..970 => Step::Sync,
            970..976 => Step::Flush,
            976..980 => Step::Compact,
            980..984 => Step::Verify,
            984..990 => Step::Everything,
            990..995 => Step::Close,
            _ => Step::Drop,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        self.keys.any(self.rng)
    }

    fn slot(&mut self) -> usize {
        self.rng.usize(..SLOTS)
    }

    fn spec(&mut self) -> Spec {
        self.tag += 1;
        Spec { tag: self.tag, len: value_len(self.rng, self.limits) }
    }

    fn durability(&mut self) -> Durability {
        if self.rng.u8(..100) < self.grouped_pct { Durability::Grouped } else { Durability::Durable }
    }

    fn cursor_move(&mut self) -> Move {
        match self.rng.u8(..20) {
            0..9 => Move::Next,
            9..16 => Move::Prev,
            16..18 => Move::Seek(self.keys.near(self.rng)),
            18 => Move::First,
            _ => Move::Last,
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value {} of {} bytes", self.tag, self.len)
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Move::Next => f.write_str("next"),
            Move::Prev => f.write_str("prev"),
            Move::Seek(key) => write!(f, "seek {}", printable(key)),
            Move::First => f.write_str("first"),
            Move::Last => f.write_str("last"),
        }
    }
}

/// A range as people write it: `[a, b)`.
fn shown(range: &KeyRange) -> String {
    let start = match &range.start {
        Bound::Included(key) => format!("[{}", printable(key)),
        Bound::Excluded(key) => format!("({}", printable(key)),
        Bound::Unbounded => "(".into(),
    };
    let end = match &range.end {
        Bound::Included(key) => format!("{}]", printable(key)),
        Bound::Excluded(key) => format!("{})", printable(key)),
        Bound::Unbounded => ")".into(),
    };
    format!("{start}, {end}")
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Put(key, value, durability) => write!(f, "put {}: {value}, {durability:?}", printable(key)),
            Step::Delete(key, durability) => write!(f, "delete {}, {durability:?}", printable(key)),
            Step::Batch(ops, durability) => {
                write!(f, "batch, {durability:?}:")?;
                for (key, value) in ops {
                    match value {
                        Some(value) => write!(f, " put {}: {value};", printable(key))?,
                        None => write!(f, " delete {};", printable(key))?,
                    }
                }
                Ok(())
            }
            Step::DeleteRange(range, durability) => {
                write!(f, "delete_range {}, {durability:?}", shown(range))
            }
            Step::Get(key) => write!(f, "get {}", printable(key)),
            Step::MultiGet(keys) => {
                f.write_str("multi_get")?;
                keys.iter().try_for_each(|key| write!(f, " {};", printable(key)))
            }
            Step::Scan(range) => write!(f, "scan {}", shown(range)),
            Step::Snapshot(slot) => write!(f, "snapshot s{slot}"),
            Step::Release(slot) => write!(f, "drop snapshot s{slot}"),
            Step::GetAt(slot, key) => write!(f, "get at s{slot} {}", printable(key)),
            Step::ScanAt(slot, range) => write!(f, "scan at s{slot} {}", shown(range)),
            Step::Open(slot, range, None) => write!(f, "cursor c{slot} over {}", shown(range)),
            Step::Open(slot, range, Some(on)) => write!(f, "cursor c{slot} at s{on} over {}", shown(range)),
            Step::Move(slot, moves) => {
                write!(f, "move c{slot}:")?;
                moves.iter().try_for_each(|step| write!(f, " {step}"))
            }
            Step::Shut(slot) => write!(f, "drop cursor c{slot}"),
            Step::Sync => f.write_str("sync"),
            Step::Flush => f.write_str("flush"),
            Step::Compact => f.write_str("compact"),
            Step::Verify => f.write_str("verify"),
            Step::Everything => f.write_str("check everything"),
            Step::Close => f.write_str("close and open again"),
            Step::Drop => f.write_str("drop and open again"),
        }
    }
}
