//! What the operations are, and how often each comes: YCSB's core workloads and others.

use crate::keys::Distribution;
use crate::values::pareto;
use serde::{Deserialize, Serialize};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Reads one value.
    Read,
    /// Replaces one value without reading it.
    Update,
    /// Stores a value under a new key.
    Insert,
    /// Reads entries in key order from a key on.
    Scan,
    /// Reads a value, then replaces it.
    ReadModifyWrite,
    /// Reads [`AT_ONCE`] values in one call.
    MultiRead,
}

/// Keys of a [`Op::MultiRead`].
pub const AT_ONCE: usize = 16;

impl Op {
    /// Every operation.
    pub const ALL: [Op; 6] = [Op::Read, Op::Update, Op::Insert, Op::Scan, Op::ReadModifyWrite, Op::MultiRead];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Update => "update",
            Op::Insert => "insert",
            Op::Scan => "scan",
            Op::ReadModifyWrite => "read-modify-write",
            Op::MultiRead => "multi-read",
        }
    }
}

/// The shape of a workload's choice of keys, before the command line says which zipfian is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Zipfian,
    Latest,
    Uniform,
    Mixgraph,
}

/// How many entries a scan asks for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scans {
    /// From 1 to this, evenly, as YCSB draws it.
    Uniform(usize),
    /// As `mixgraph` draws it: generalised Pareto with k 2.517 and sigma 14.236, and the remainder of a division
    /// by 10,000.
    Mixgraph,
}

impl Scans {
    /// The next scan's.
    pub fn next(self, rng: &mut fastrand::Rng) -> usize {
        match self {
            Scans::Uniform(most) => rng.usize(1..=most.max(1)),
            Scans::Mixgraph => (pareto(1.0 - rng.f64(), 2.517, 14.236) as usize % 10_000).max(1),
        }
    }
}

/// A workload by its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in words.
    pub about: &'static str,
    /// Operations in percent.
    mix: &'static [(Op, u32)],
    shape: Shape,
}

impl Workload {
    /// Every workload, in the order in which YCSB asks for them: those that insert come last.
    pub const ALL: [Workload; 11] = [
        Workload::new("a", "YCSB A: 50 % reads, 50 % updates", &[(Op::Read, 50), (Op::Update, 50)]),
        Workload::new("b", "YCSB B: 95 % reads, 5 % updates", &[(Op::Read, 95), (Op::Update, 5)]),
        Workload::new("c", "YCSB C: 100 % reads", &[(Op::Read, 100)]),
        Workload::new(
            "f",
            "YCSB F: 50 % reads, 50 % read-modify-writes",
            &[(Op::Read, 50), (Op::ReadModifyWrite, 50)],
        ),
        Workload {
            shape: Shape::Latest,
            ..Workload::new(
                "d",
                "YCSB D: 95 % reads of the latest, 5 % inserts",
                &[(Op::Read, 95), (Op::Insert, 5)],
            )
        },
        Workload::new(
            "e",
            "YCSB E: 95 % scans of 1 to 100 entries, 5 % inserts",
            &[(Op::Scan, 95), (Op::Insert, 5)],
        ),
        Workload::new(
            "nutanix",
            "PRISM's production mix: 57 % updates, 41 % reads, 2 % scans",
            &[(Op::Update, 57), (Op::Read, 41), (Op::Scan, 2)],
        ),
        Workload {
            shape: Shape::Mixgraph,
            ..Workload::new(
                "mixgraph",
                "Facebook's mixgraph (FAST '20): 85 % reads, 14 % updates, 1 % scans",
                &[(Op::Read, 85), (Op::Update, 14), (Op::Scan, 1)],
            )
        },
        Workload { shape: Shape::Uniform, ..Workload::new("put", "100 % updates", &[(Op::Update, 100)]) },
        Workload { shape: Shape::Uniform, ..Workload::new("get", "100 % reads", &[(Op::Read, 100)]) },
        Workload {
            shape: Shape::Uniform,
            ..Workload::new("multiget", "100 % reads of 16 keys in one call", &[(Op::MultiRead, 100)])
        },
    ];

    const fn new(name: &'static str, about: &'static str, mix: &'static [(Op, u32)]) -> Self {
        Workload { name, about, mix, shape: Shape::Zipfian }
    }

    /// The workload `name`, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name == name)
    }

    /// Its operations.
    pub fn mix(&self) -> Mix {
        Mix { shares: self.mix.to_vec() }
    }

    /// Its choice of keys, where `zipfian` is what to use for the zipfian ones.
    pub fn distribution(&self, zipfian: Distribution) -> Distribution {
        match (self.shape, zipfian) {
            (Shape::Zipfian, _) => zipfian,
            (Shape::Uniform, _) => Distribution::Uniform,
            (Shape::Latest, Distribution::Scrambled(theta) | Distribution::Zipfian(theta)) => {
                Distribution::Latest(theta)
            }
            (Shape::Latest, _) => Distribution::Latest(0.99),
            (Shape::Mixgraph, _) => Distribution::Mixgraph,
        }
    }

    /// How long its scans are, where `most` is asked for.
    pub fn scans(&self, most: usize) -> Scans {
        if self.shape == Shape::Mixgraph { Scans::Mixgraph } else { Scans::Uniform(most) }
    }
}

/// Operations in percent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// Each operation with its share; the shares add up to 100.
    pub shares: Vec<(Op, u32)>,
}

impl Mix {
    /// Only `op`.
    pub fn only(op: Op) -> Self {
        Mix { shares: vec![(op, 100)] }
    }

    /// The next operation.
    pub fn pick(&self, rng: &mut fastrand::Rng) -> Op {
        let mut drawn = rng.u32(0..100);
        for (op, share) in &self.shares {
            if drawn < *share {
                return *op;
            }
            drawn -= share;
        }
        self.shares.last().map_or(Op::Read, |(op, _)| *op)
    }

    /// Whether it writes keys that are there.
    pub fn overwrites(&self) -> bool {
        self.share(Op::Update) + self.share(Op::ReadModifyWrite) > 0.0
    }

    /// The share of `op`, from 0 to 1.
    pub fn share(&self, op: Op) -> f64 {
        let percent: u32 = self.shares.iter().filter(|(own, _)| *own == op).map(|(_, share)| share).sum();
        f64::from(percent) / 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_adds_up_and_is_drawn_as_it_says() {
        let mut rng = fastrand::Rng::with_seed(5);
        for workload in Workload::ALL {
            let mix = workload.mix();
            assert_eq!(mix.shares.iter().map(|(_, share)| share).sum::<u32>(), 100, "{}", workload.name);
            let (op, share) = mix.shares[0];
            let drawn = (0..100_000).filter(|_| mix.pick(&mut rng) == op).count() as f64 / 1e5;
            assert!((drawn - f64::from(share) / 100.0).abs() < 0.01, "{}: {drawn}", workload.name);
        }
    }
}
