//! Which keys there are, and which one an operation takes.

use crate::ledger::Ledger;
use crate::zipf::Zipfian;
use serde::{Deserialize, Serialize};

/// Fewest bytes of a key: the hash of its number in hexadecimal digits.
pub const MIN_KEY_BYTES: usize = 16;
/// The ranks that YCSB's scrambled zipfian draws from, whatever the number of keys.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;

/// FNV-1 over the eight bytes of a number, as YCSB's `Utils.fnvhash64` computes it.
pub fn fnv(mut number: u64) -> u64 {
    let mut hash: u64 = 0xCBF2_9CE4_8422_2325;
    for _ in 0..8 {
        hash = (hash ^ (number & 0xff)).wrapping_mul(1_099_511_628_211);
        number >>= 8;
    }
    (hash as i64).unsigned_abs()
}

/// Writes the key of `number` into `key`: the hash of the number in hexadecimal digits, so that the order of
/// keys is not that of their numbers, behind as many letters as it takes to fill `bytes`.
pub fn write_key(number: u64, bytes: usize, key: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    key.clear();
    key.extend((MIN_KEY_BYTES..bytes).map(|i| b"user"[i % 4]));
    let hash = fnv(number);
    key.extend((0..16).rev().map(|digit| DIGITS[(hash >> (digit * 4) & 15) as usize]));
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
}

impl Distribution {
    /// Its name in reports, exponent included.
    pub fn name(self) -> String {
        match self {
            Distribution::Uniform => "uniform".to_owned(),
            Distribution::Scrambled(theta) => format!("scrambled zipfian {theta}"),
            Distribution::Zipfian(theta) => format!("zipfian over the keys {theta}"),
            Distribution::Latest(theta) => format!("latest {theta}"),
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
    Zipfian { ranks: Zipfian, over: u64, step: u64 },
    Latest { ages: Zipfian },
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
                How::Zipfian { ranks: Zipfian::new(stored, theta), over: stored, step: coprime_step(stored) }
            }
            Distribution::Latest(theta) => How::Latest { ages: Zipfian::new(stored, theta) },
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
            How::Zipfian { ranks, over, step } => {
                // Hot keys are spread over the order of insertion: a rank is not an age.
                (u128::from(ranks.next(rng)) * u128::from(*step) % u128::from(*over)) as u64
            }
            How::Latest { ages } => {
                ages.grow(stored);
                stored - 1 - ages.next(rng)
            }
        }
    }
}

/// A multiplier that maps `0..n` onto itself, far apart.
fn coprime_step(n: u64) -> u64 {
    let mut step = (n as f64 * 0.618_033_988_75) as u64 | 1;
    while gcd(step, n) != 1 {
        step += 2;
    }
    step
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
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
            ledger.inserted();
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

        let step = coprime_step(keys);
        let over = (0..keys / 5).map(|rank| (u128::from(rank) * u128::from(step) % u128::from(keys)) as u64);
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
            ledger.inserted();
        }
        let newest = (0..10_000).filter(|_| chooser.next(&ledger, &mut rng) >= 9_000).count();
        assert!(newest > 5_000, "{newest} of 10,000 draws were of the newest tenth");
    }

    #[test]
    fn keys_are_of_the_length_asked_for_and_differ() {
        let (mut key, mut seen) = (Vec::new(), HashSet::new());
        for number in 0..100_000 {
            write_key(number, 16, &mut key);
            assert_eq!(key.len(), 16);
            assert!(seen.insert(key.clone()));
        }
        write_key(7, 48, &mut key);
        assert_eq!(key.len(), 48);
    }
}
