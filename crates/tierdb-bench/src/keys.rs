//! Which keys there are, and which one an operation takes.

use crate::ledger::Ledger;
use crate::zipf::Zipfian;
use serde::{Deserialize, Serialize};

/// Fewest bytes of a key: the hash of its number in hexadecimal digits.
pub const MIN_KEY_BYTES: usize = 16;
/// The ranks that YCSB's scrambled zipfian draws from, whatever the number of keys.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;

/// Bytes of a tail by which keys of one length on average differ, on average and at the most: six standard deviations of the sum of three
/// draws.
const MEAN_TAIL: usize = 11;
const LONGEST_TAIL: f64 = 22.2;

/// FNV-1a over the eight bytes of a number, as YCSB's `Utils.fnvhash64` computes it.
pub fn fnv(mut number: u64) -> u64 {
    let mut hash: u64 = 0xCBF2_9CE4_8422_2325;
    for _ in 0..8 {
        hash = (hash ^ (number & 0xff)).wrapping_mul(1_099_511_628_211);
        number >>= 8;
    }
    (hash as i64).unsigned_abs()
}

/// How the keys are called. Sixteen hexadecimal digits stand behind as many letters as it takes to fill the
/// length, and before a tail where lengths differ; keys are inserted by their numbers, and so never in the order of their names.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    bytes: usize,
    places: Option<Places>,
}

impl Naming {
    /// Keys of `bytes` bytes, by the hash of their numbers, as YCSB does.
    pub fn hashed(bytes: usize) -> Self {
        Naming { bytes, places: None }
    }

    /// Keys of `bytes` bytes on average, of which those of the first `keys` numbers are the places `0..keys` in key order, so
    /// that neighbours are known. Numbers from there on are their own places. Lengths are spread as those of ZippyDB's keys
    /// (47.9 bytes, standard deviation 3.7: Cao et al., FAST '20, table 2) where `bytes` leaves room for that.
    pub fn placed(bytes: usize, keys: u64) -> Self {
        Naming { bytes, places: Some(Places::new(keys)) }
    }

    /// What stands in the digits of the key of `number`: names are in the order of keys.
    pub fn name(&self, number: u64) -> u64 {
        match self.places {
            None => fnv(number),
            Some(places) => places.of(number),
        }
    }

    /// Makes `key` the key of `number`.
    pub fn write(&self, number: u64, key: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let name = self.name(number);
        let lengths = MIN_KEY_BYTES + MEAN_TAIL..=tierdb::MAX_KEY_BYTES - MEAN_TAIL - 1;
        let spread = self.places.is_some() && lengths.contains(&self.bytes);
        let (tail, least) = if spread { (tail(number), MEAN_TAIL) } else { (0, 0) };
        let head = self.bytes - MIN_KEY_BYTES - least;
        key.clear();
        key.extend((0..head).map(|i| b"user"[i % 4]));
        key.extend((0..16).rev().map(|digit| DIGITS[(name >> (digit * 4) & 15) as usize]));
        // Behind what tells keys apart, it changes nothing about their order.
        key.extend(std::iter::repeat_n(b'.', tail));
    }
}

/// Bytes of the tail of the key of `number`: the sum of three draws, and so nearly normal, with a standard deviation of 3.7.
fn tail(number: u64) -> usize {
    let hash = fnv(number);
    let draw = |third: u32| (hash >> (16 * third) & 0xffff) as f64 / 65536.0 * LONGEST_TAIL / 3.0;
    (0..3).map(draw).sum::<f64>().round() as usize
}

/// A permutation of `0..n` that takes neighbours far apart.
#[derive(Clone, Copy, Debug)]
struct Places {
    n: u64,
    step: u64,
    inverse: u64,
}

impl Places {
    fn new(n: u64) -> Self {
        let n = n.max(1);
        let mut step = (n as f64 * 0.618_033_988_75) as u64 | 1;
        while gcd(step, n) != 1 {
            step += 2;
        }
        Places { n, step, inverse: inverse(step, n) }
    }

    fn times(&self, number: u64, factor: u64) -> u64 {
        (u128::from(number) * u128::from(factor) % u128::from(self.n)) as u64
    }

    /// The place of `number`.
    fn of(&self, number: u64) -> u64 {
        if number < self.n { self.times(number, self.step) } else { number }
    }

    /// The number at `place`.
    fn number(&self, place: u64) -> u64 {
        self.times(place, self.inverse)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What `step` must be multiplied by to give 1 modulo `n`, which it has no divisor in common with.
fn inverse(step: u64, n: u64) -> u64 {
    let (mut old, mut new) = ((i128::from(step), 1i128), (i128::from(n), 0));
    while new.0 != 0 {
        let times = old.0 / new.0;
        (old, new) = (new, (old.0 - times * new.0, old.1 - times * new.1));
    }
    old.1.rem_euclid(i128::from(n)) as u64
}

/// How operations choose among the keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every key alike.
    Uniform,
    /// YCSB's own: zipfian over 10^10 ranks, hashed onto the keys, so the tail of the ranks is spread evenly.
    Scrambled(f64),
    /// Zipfian over the keys that were stored when the phase began: the skew the exponent says.
    Zipfian(f64),
    /// YCSB's skewed latest: zipfian over the age of a key.
    Latest(f64),
    /// The production workload of "Characterizing, Modeling, and Benchmarking RocksDB Key-Value Workloads at
    /// Facebook", FAST '20, section 7: hot and cold ranges of neighbouring keys, and hot keys in each.
    Mixgraph,
}

impl Distribution {
    /// Its name in reports, exponent included.
    pub fn name(self) -> String {
        match self {
            Distribution::Uniform => "uniform".to_owned(),
            Distribution::Scrambled(theta) => format!("scrambled zipfian {theta}"),
            Distribution::Zipfian(theta) => format!("zipfian over the keys {theta}"),
            Distribution::Latest(theta) => format!("latest {theta}"),
            Distribution::Mixgraph => "mixgraph".to_owned(),
        }
    }
}

/// Chooses keys for one thread, by their numbers.
pub struct Chooser {
    how: How,
}

enum How {
    Uniform,
    Scrambled { ranks: Zipfian, over: u64 },
    Zipfian { ranks: Zipfian, over: Places },
    Latest { ages: Zipfian },
    Mixgraph(Ranges),
}

impl Chooser {
    /// Chooses among the `stored` keys, and as YCSB does among the `expected` new ones that the phase will insert.
    pub fn new(distribution: Distribution, stored: u64, expected: u64) -> Self {
        let stored = stored.max(1);
        let how = match distribution {
            Distribution::Uniform => How::Uniform,
            Distribution::Scrambled(theta) => {
                How::Scrambled { ranks: Zipfian::new(SCRAMBLED_RANKS, theta), over: stored + expected }
            }
            Distribution::Zipfian(theta) => {
                How::Zipfian { ranks: Zipfian::new(stored, theta), over: Places::new(stored) }
            }
            Distribution::Latest(theta) => How::Latest { ages: Zipfian::new(stored, theta) },
            Distribution::Mixgraph => How::Mixgraph(Ranges::new(stored)),
        };
        Chooser { how }
    }

    /// The number of a key whose insertion was acknowledged. At least one must have been.
    pub fn next(&mut self, ledger: &Ledger, rng: &mut fastrand::Rng) -> u64 {
        let stored = ledger.acknowledged().max(1);
        match &mut self.how {
            How::Uniform => rng.u64(0..stored),
            How::Scrambled { ranks, over } => loop {
                let number = fnv(ranks.next(rng)) % *over;
                if number < stored {
                    return number;
                }
            },
            // Hot keys are spread over the order of insertion: a rank is not an age.
            How::Zipfian { ranks, over } => over.of(ranks.next(rng)),
            How::Mixgraph(ranges) => ranges.next(rng),
            How::Latest { ages } => {
                ages.grow(stored);
                stored - 1 - ages.next(rng)
            }
        }
    }
}

/// The choice of keys of `mixgraph`, with the parameters that its authors give.
struct Ranges {
    /// The sum of the weights of the ranges up to and with each, in the order of their places.
    weights: Vec<f64>,
    range: u64,
    places: Places,
}

impl Ranges {
    const COUNT: u64 = 30;

    fn new(keys: u64) -> Self {
        let count = Self::COUNT.min(keys);
        let weight = |rank: u64| {
            let x = rank as f64;
            14.18 * (-2.917 * x).exp() + 0.0164 * (-0.08082 * x).exp()
        };
        // The hottest range is not the first in key order, nor are the hot ones together.
        let mut ranks: Vec<u64> = (1..=count).collect();
        fastrand::Rng::with_seed(count).shuffle(&mut ranks);
        let mut sum = 0.0;
        let weights = ranks.into_iter().map(|rank| {
            sum += weight(rank);
            sum
        });
        Ranges { weights: weights.collect(), range: keys / count, places: Places::new(keys) }
    }

    fn next(&self, rng: &mut fastrand::Rng) -> u64 {
        let drawn = rng.f64() * self.weights.last().copied().unwrap_or(0.0);
        let range = self.weights.partition_point(|sum| *sum <= drawn).min(self.weights.len() - 1);
        // The share of accesses that the x hottest keys of a range take is a power of x; which keys those are, a
        // hash of x says.
        let x = (rng.f64() / 0.002312).powf(1.0 / 0.3467).ceil() as u64;
        let place = range as u64 * self.range + fnv(x) % self.range;
        self.places.number(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn ledger_of(keys: u64) -> Ledger {
        let ledger = Ledger::new();
        for _ in 0..keys {
            let number = ledger.next_insert();
            ledger.begin_write(number);
            ledger.end_write(number);
            ledger.inserted(0);
        }
        ledger
    }

    /// The share of draws that fall on the fifth of the keys that are hottest.
    fn share_of_the_hottest_fifth(distribution: Distribution, keys: u64, hottest: &HashSet<u64>) -> f64 {
        let (ledger, mut rng) = (ledger_of(keys), fastrand::Rng::with_seed(11));
        let mut chooser = Chooser::new(distribution, keys, 0);
        assert_eq!(hottest.len() as u64, keys / 5);
        let draws = 400_000;
        let hot = (0..draws).filter(|_| hottest.contains(&chooser.next(&ledger, &mut rng))).count();
        hot as f64 / f64::from(draws)
    }

    #[test]
    fn the_hottest_fifth_takes_what_the_name_of_the_distribution_says() {
        let keys = 2_000_000;
        // The hottest keys are those that the lowest ranks fall on.
        let mut scrambled = HashSet::new();
        let mut rank = 0;
        while (scrambled.len() as u64) < keys / 5 {
            scrambled.insert(fnv(rank) % keys);
            rank += 1;
        }
        let share = share_of_the_hottest_fifth(Distribution::Scrambled(0.99), keys, &scrambled);
        assert!((0.62..0.66).contains(&share), "scrambled: {share}");

        let places = Places::new(keys);
        let over = (0..keys / 5).map(|rank| places.of(rank));
        let share = share_of_the_hottest_fifth(Distribution::Zipfian(0.99), keys, &over.collect());
        assert!((0.87..0.91).contains(&share), "over the keys: {share}");

        let any: HashSet<u64> = (0..keys / 5).collect();
        let share = share_of_the_hottest_fifth(Distribution::Uniform, keys, &any);
        assert!((0.19..0.21).contains(&share), "uniform: {share}");
        let newest: HashSet<u64> = (keys - keys / 5..keys).collect();
        let share = share_of_the_hottest_fifth(Distribution::Latest(0.99), keys, &newest);
        assert!((0.87..0.91).contains(&share), "latest: {share}");
    }

    #[test]
    fn latest_follows_insertions() {
        let ledger = ledger_of(1_000);
        let mut rng = fastrand::Rng::with_seed(3);
        let mut chooser = Chooser::new(Distribution::Latest(0.99), 1_000, 0);
        for _ in 0..9_000 {
            let number = ledger.next_insert();
            ledger.begin_write(number);
            ledger.end_write(number);
            ledger.inserted(0);
        }
        let newest = (0..10_000).filter(|_| chooser.next(&ledger, &mut rng) >= 9_000).count();
        assert!(newest > 5_000, "{newest} of 10,000 draws were of the newest tenth");
    }

    #[test]
    fn keys_are_of_the_length_asked_for_and_differ() {
        let (mut key, mut seen) = (Vec::new(), HashSet::new());
        for number in 0..100_000 {
            Naming::hashed(16).write(number, &mut key);
            assert_eq!(key.len(), 16);
            assert!(seen.insert(key.clone()));
        }
        Naming::placed(20, 100).write(7, &mut key);
        assert_eq!(key.len(), 20);
    }

    #[test]
    fn keys_of_mixgraph_are_of_the_lengths_of_zippydb_and_in_the_order_of_their_places() {
        let naming = Naming::placed(48, 20_000);
        let mut keys: Vec<(u64, Vec<u8>)> = (0..20_000)
            .map(|number| {
                let mut key = Vec::new();
                naming.write(number, &mut key);
                (naming.name(number), key)
            })
            .collect();
        let lengths = || keys.iter().map(|(_, key)| key.len() as f64);
        let mean = lengths().sum::<f64>() / 20_000.0;
        let deviation = (lengths().map(|len| (len - mean).powi(2)).sum::<f64>() / 20_000.0).sqrt();
        assert!((47.8..48.3).contains(&mean) && (3.5..3.9).contains(&deviation), "{mean} and {deviation}");
        keys.sort_by(|(_, one), (_, other)| one.cmp(other));
        assert!(keys.iter().map(|(place, _)| *place).eq(0..20_000));
    }

    #[test]
    fn places_are_a_permutation_and_its_inverse() {
        for n in [1, 2, 3, 10, 30, 4096, 99_991] {
            let places = Places::new(n);
            let all: HashSet<u64> = (0..n).map(|number| places.of(number)).collect();
            assert_eq!(all.len() as u64, n);
            assert!((0..n).all(|number| places.of(number) < n && places.number(places.of(number)) == number));
        }
    }

    #[test]
    fn the_hot_ranges_of_mixgraph_are_ranges_of_neighbours() {
        let keys = 300_000;
        let (ledger, mut rng) = (ledger_of(keys), fastrand::Rng::with_seed(2));
        let mut chooser = Chooser::new(Distribution::Mixgraph, keys, 0);
        let places = Places::new(keys);
        let mut drawn = vec![0u32; 30];
        (0..100_000).for_each(|_| {
            let number = chooser.next(&ledger, &mut rng);
            drawn[(places.of(number) / (keys / 30)) as usize] += 1;
        });
        drawn.sort_unstable_by(|a, b| b.cmp(a));
        // The weight of the hottest range: 0.782 of a sum of 0.989.
        assert!((75_000..81_000).contains(&drawn[0]), "{drawn:?}");
    }
}
