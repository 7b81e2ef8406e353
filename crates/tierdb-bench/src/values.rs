//! Values that can be checked: their bytes follow from the key's number, the version and the length.
//!
//! ```text
//!  0                   8         16
//!  ├───────────────────┼─────────┼───
//!  │ number << 28      │ word 1  │ ...   little-endian; word i is a mix of the first and the length,
//!  │      | version    │         │       plus i times an odd constant
//!  └───────────────────┴─────────┴───
//! ```
//!
//! So a value of another key, an old one, one that was cut, and any damaged byte are told apart, at the cost of
//! an addition and a comparison for each eight bytes.

use crate::ledger::VERSION_BITS;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Fewest bytes of a value.
pub const MIN_VALUE_BYTES: u32 = 8;
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A seed of its own for each of several parts of what `seed` seeds, also where seeds are neighbours.
pub(crate) fn part_seed(seed: u64, part: u64) -> u64 {
    mix(mix(seed ^ STEP) ^ part.wrapping_mul(STEP))
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// How long values are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sizes {
    /// All alike.
    Fixed(u32),
    /// Evenly between two sizes, both included.
    Uniform(u32, u32),
    /// Generalised Pareto with location 0, shape `k` and scale `sigma`, as `mixgraph` of RocksDB's `db_bench`
    /// draws it: at least 10 bytes, and above `most` the remainder of a division by it.
    Pareto {
        /// Shape.
        k: f64,
        /// Scale.
        sigma: f64,
        /// Most bytes.
        most: u32,
    },
}

impl Sizes {
    /// Those of `mixgraph`.
    pub const MIXGRAPH: Sizes = Sizes::Pareto { k: 0.2615, sigma: 25.45, most: 1024 };

    /// Bytes of the value of `number` at `version`: drawn, but the same whenever it is asked for.
    pub fn of(&self, number: u64, version: u32) -> usize {
        if let Sizes::Fixed(bytes) = self {
            return *bytes as usize;
        }
        let drawn = mix(number.wrapping_mul(STEP) ^ u64::from(version));
        match *self {
            Sizes::Fixed(bytes) => bytes as usize,
            Sizes::Uniform(low, high) => (u64::from(low) + drawn % u64::from(high - low + 1)) as usize,
            Sizes::Pareto { k, sigma, most } => {
                let u = ((drawn >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
                let bytes = pareto(u, k, sigma).ceil() as u64;
                let bytes = if bytes > u64::from(most) { bytes % u64::from(most) } else { bytes };
                bytes.max(10) as usize
            }
        }
    }

    /// Their mean.
    pub fn mean(&self) -> f64 {
        match *self {
            Sizes::Fixed(bytes) => f64::from(bytes),
            Sizes::Uniform(low, high) => (f64::from(low) + f64::from(high)) / 2.0,
            Sizes::Pareto { .. } => (0..10_000).map(|n| self.of(n, 1) as f64).sum::<f64>() / 10_000.0,
        }
    }

    /// Their name in reports.
    pub fn name(&self) -> String {
        match self {
            Sizes::Fixed(bytes) => format!("{bytes} B"),
            Sizes::Uniform(low, high) => format!("{low} to {high} B, uniform"),
            Sizes::Pareto { k, sigma, most } => {
                format!("generalised Pareto, k {k}, sigma {sigma}, at most {most} B")
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?}: write a size, as in 1024 or 4KiB, a range, as in 100..2000, or 'pareto'");
        let bytes = |text: &str| -> Result<u32, String> {
            let bytes = text.parse::<tierdb::ByteSize>().map_err(|_| wrong())?.bytes();
            let bytes = u32::try_from(bytes).map_err(|_| wrong())?;
            if bytes < MIN_VALUE_BYTES || bytes as usize > tierdb::MAX_VALUE_BYTES {
                return Err(format!(
                    "{text:?}: values have {MIN_VALUE_BYTES} to {} bytes",
                    tierdb::MAX_VALUE_BYTES
                ));
            }
            Ok(bytes)
        };
        if text == "pareto" {
            return Ok(Sizes::MIXGRAPH);
        }
        let Some((low, high)) = text.split_once("..") else { return Ok(Sizes::Fixed(bytes(text)?)) };
        let (low, high) = (bytes(low)?, bytes(high)?);
        if low > high { Err(wrong()) } else { Ok(Sizes::Uniform(low, high)) }
    }
}

/// A generalised Pareto distribution with location 0, where `u` is drawn evenly from above 0 to 1.
pub fn pareto(u: f64, k: f64, sigma: f64) -> f64 {
    sigma * (u.powf(-k) - 1.0) / k
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The first bytes, which say whose value it is, are not there.
    #[error("it has only {0} bytes")]
    Short(usize),
    /// It was written under another key.
    #[error("it is the value of key number {0}")]
    OtherKey(u64),
    /// It has another length than what was written.
    #[error("it has {found} bytes where {expected} were written (version {version})")]
    Length {
        /// Bytes found.
        found: usize,
        /// Bytes written.
        expected: usize,
        /// The version it says it is.
        version: u32,
    },
    /// A byte differs from what was written.
    #[error("byte {at} differs from what was written (version {version})")]
    Byte {
        /// Which byte.
        at: usize,
        /// The version it says it is.
        version: u32,
    },
    /// A version that was replaced before the read began, or was never written.
    #[error("it is version {found} where {oldest} to {newest} are possible")]
    Version {
        /// The version found.
        found: u32,
        /// The oldest that would be right.
        oldest: u32,
        /// The newest that would be right.
        newest: u32,
    },
    /// Nothing is stored under a key that was written.
    #[error("there is none, though version {0} was acknowledged")]
    Missing(u32),
    /// A scan gave a key that is not the one its value names.
    #[error("it stands under another key than the one it was written under")]
    Misplaced,
    /// A scan gave a key, and none that was stored before it began and lies below.
    #[error("the scan left out a key below it")]
    LeftOut,
    /// A scan gave a key below the one before, or below where it began.
    #[error("the keys of a scan are not in order")]
    Unordered,
}

fn head(number: u64, version: u32) -> u64 {
    number << VERSION_BITS | u64::from(version)
}

fn seed(head: u64, len: usize) -> u64 {
    mix(head ^ (len as u64).rotate_left(48))
}

/// Makes `value` the value of `number` at `version`, `len` bytes long.
pub fn write(number: u64, version: u32, len: usize, value: &mut Vec<u8>) {
    let head = head(number, version);
    let mut word = seed(head, len);
    value.clear();
    value.resize(len, 0);
    let (first, rest) = value.split_at_mut(MIN_VALUE_BYTES as usize);
    first.copy_from_slice(&head.to_le_bytes());
    let (words, last) = rest.as_chunks_mut();
    for bytes in words {
        word = word.wrapping_add(STEP);
        *bytes = word.to_le_bytes();
    }
    last.copy_from_slice(&word.wrapping_add(STEP).to_le_bytes()[..last.len()]);
}

/// The number and version that `value` says it has, if it is of the length that `sizes` says and every byte is
/// as written.
///
/// # Errors
/// What is wrong with it.
pub fn read(value: &[u8], sizes: &Sizes) -> Result<(u64, u32), Wrong> {
    let Some((first, rest)) = value.split_first_chunk::<8>() else { return Err(Wrong::Short(value.len())) };
    let head = u64::from_le_bytes(*first);
    let (number, version) = (head >> VERSION_BITS, (head & ((1 << VERSION_BITS) - 1)) as u32);
    let expected = sizes.of(number, version);
    if expected != value.len() {
        return Err(Wrong::Length { found: value.len(), expected, version });
    }
    let mut word = seed(head, value.len());
    let mut differ = 0;
    let (words, last) = rest.as_chunks();
    for bytes in words {
        word = word.wrapping_add(STEP);
        differ |= u64::from_le_bytes(*bytes) ^ word;
    }
    if differ != 0 || *last != word.wrapping_add(STEP).to_le_bytes()[..last.len()] {
        let mut written = Vec::new();
        write(number, version, value.len(), &mut written);
        let at = value.iter().zip(&written).position(|(a, b)| a != b).unwrap_or(0);
        return Err(Wrong::Byte { at, version });
    }
    Ok((number, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_right_and_any_other_byte_is_wrong() {
        for len in [8, 9, 15, 16, 100, 1024] {
            let sizes = Sizes::Fixed(len as u32);
            let mut value = Vec::new();
            write(123_456, 7, len, &mut value);
            assert_eq!(read(&value, &sizes), Ok((123_456, 7)));
            for at in 0..len {
                value[at] ^= 0x40;
                // The first eight bytes say what the others must be; alone, they are right for another key.
                assert!(len == 8 || read(&value, &sizes).is_err(), "byte {at} of {len}");
                value[at] ^= 0x40;
            }
            value.push(0);
            assert!(matches!(read(&value, &sizes), Err(Wrong::Length { .. })));
        }
        assert_eq!(read(b"abc", &Sizes::Fixed(8)), Err(Wrong::Short(3)));
    }

    #[test]
    fn drawn_sizes_stay_in_their_range_and_have_their_mean() {
        let uniform: Sizes = "100..2000".parse().expect("range");
        assert!((0..10_000).all(|n| (100..=2000).contains(&uniform.of(n, 1))));
        let mean = (0..100_000).map(|n| uniform.of(n, 1) as f64).sum::<f64>() / 1e5;
        assert!((mean - 1050.0).abs() < 10.0, "{mean}");
        let pareto: Sizes = "pareto".parse().expect("pareto");
        assert!((0..100_000).all(|n| (10..=1024).contains(&pareto.of(n, 1))));
        // The mean of the distribution is sigma / (1 - k) = 34.5; no value is below 10 bytes.
        assert!((34.0..40.0).contains(&pareto.mean()), "{}", pareto.mean());
        assert!("9..8".parse::<Sizes>().is_err() && "4".parse::<Sizes>().is_err());
    }
}
