//! The filter of a table: tells of most keys that are not in it that they are not. A binary fuse filter with
//! fingerprints of 8 bits (Graf and Lemire, "Binary Fuse Filters", 2022): of the keys that are not there, 1 in 256
//! passes. That takes 9.3 bits a key in a table of 200,000 keys, 10.2 of 10,000, 11.3 of 1,000, 15.4 of 100; a Bloom
//! filter of 10 bits a key passes 1 in 120. A lookup reads three bytes. A byte string of its own, so that it can
//! be kept on a faster tier than the table. Little-endian; offsets from the start of the filter.
//!
//! ```text
//!  0          8       16       20      24     32           36         40     48
//!  ├──────────┼───────┼────────┼───────┼──────┼────────────┼──────────┼──────┼──────────────┐
//!  │ checksum │ magic │ format │ flags │ seed │ segment    │ segments │ keys │ fingerprints │
//!  │ xxh3-64  │ u64   │ u32    │ u32   │ u64  │ len u32    │ u32      │ u64  │              │
//!  └──────────┴───────┴────────┴───────┴──────┴────────────┴──────────┴──────┴──────────────┘
//! ```
//!
//! * A key hashes to three fingerprints in three neighbouring segments; it may be in the table if they combine to the
//!   key's own. There are `(segments + 2) * segment len` of them; `segment len` is a power of 2.
//! * `checksum` covers all but itself and is seeded with the table's id. Unknown flags are refused.
//!
//! Since format 1 of the footer.

use crate::block::Flaw;
use crate::bytes::{get_u32, get_u64, put};
use crate::id::TableId;
use tierdb_base::{checksum, matches};

const MAGIC: u64 = u64::from_le_bytes(*b"TierTFlt");
const FORMAT: u32 = 1;
const MAGIC_AT: usize = 8;
const HEADER: usize = 48;
/// Longest segment, as the paper has it.
const MAX_SEGMENT: u32 = 1 << 18;
/// Seeds tried before a filter is given up; each one fails with a probability under 1/10.
const ATTEMPTS: u64 = 100;

fn sum_of(bytes: &[u8], id: &TableId) -> u64 {
    checksum(id.seed_of(b"filter"), &bytes[MAGIC_AT..])
}

/// The hash of a key that filters are built from.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    checksum(0x5469_6572_4442, key)
}

/// Sizes of a filter, and the hash that spreads keys over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    seed: u64,
    segment_len: u32,
    segments: u32,
}

impl Shape {
    /// The shape for `keys` keys, by the formulas of the paper (section 3).
    fn of(keys: usize) -> Self {
        let n = keys.max(2) as f64;
        let power = (n.ln() / 3.33f64.ln() + 2.25).floor() as u32;
        let segment_len = (1u32 << power.min(18)).min(MAX_SEGMENT);
        let factor = (0.875 + 0.25 * 1e6f64.ln() / n.ln()).max(1.125);
        let capacity = (n * factor).round() as u32;
        let segments = capacity.div_ceil(segment_len).saturating_sub(2).max(1);
        Shape { seed: 0, segment_len, segments }
    }

    fn len(&self) -> usize {
        (self.segments as usize + 2) * self.segment_len as usize
    }

    /// Spreads the hash of a key, differently for each seed (the finalizer of MurmurHash3).
    fn mix(&self, hash: u64) -> u64 {
        let mut h = hash.wrapping_add(self.seed);
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^ (h >> 33)
    }

    /// The places of a mixed hash, in three neighbouring segments.
    #[inline]
    fn places(&self, mixed: u64) -> [usize; 3] {
        let span = u64::from(self.segments) * u64::from(self.segment_len);
        let first = ((u128::from(mixed) * u128::from(span)) >> 64) as u32;
        let mask = self.segment_len - 1;
        let second = (first + self.segment_len) ^ ((mixed >> 18) as u32 & mask);
        let third = (first + 2 * self.segment_len) ^ (mixed as u32 & mask);
        [first as usize, second as usize, third as usize]
    }
}

#[inline]
fn fingerprint(mixed: u64) -> u8 {
    (mixed ^ (mixed >> 32)) as u8
}

/// The mixed hashes, about in the order of their places, so that neighbours meet in the processor's caches.
fn by_place(shape: &Shape, hashes: &[u64]) -> Vec<u64> {
    // Places ascend with mixed hashes, so their top bits are the number of a group.
    let bits = (hashes.len() / 64 + 1).ilog2().clamp(1, 12);
    let group = |mixed: u64| (mixed >> (64 - bits)) as usize;
    let mut ends = vec![0usize; 1 << bits];
    for hash in hashes {
        ends[group(shape.mix(*hash))] += 1;
    }
    let mut before = 0;
    for end in &mut ends {
        before += std::mem::replace(end, before);
    }
    let mut ordered = vec![0; hashes.len()];
    for hash in hashes {
        let mixed = shape.mix(*hash);
        let next = &mut ends[group(mixed)];
        ordered[*next] = mixed;
        *next += 1;
    }
    ordered
}

/// Fingerprints under which every one of `hashes` passes; `None` if this seed has no solution.
///
/// Every place knows how many keys map to it, and their hashes combined. A place with one key is that key's
/// alone: the key is taken off, which makes other places single, until none is left. Then fingerprints are
/// given in reverse, each at the place that was its key's alone.
fn solve(shape: &Shape, hashes: &[u64]) -> Option<Vec<u8>> {
    // Keys mapped to the place, times 4; the low two bits combine which of their three places it is.
    let mut counts = vec![0u8; shape.len()];
    let mut combined = vec![0u64; shape.len()];
    for mixed in by_place(shape, hashes) {
        for (which, place) in shape.places(mixed).into_iter().enumerate() {
            counts[place] = counts[place].checked_add(4)? ^ which as u8;
            combined[place] ^= mixed;
        }
    }
    let mut order: Vec<(u64, u8)> = Vec::with_capacity(hashes.len());
    let mut single: Vec<u32> =
        (0..shape.len() as u32).filter(|place| counts[*place as usize] >> 2 == 1).collect();
    while let Some(place) = single.pop() {
        let place = place as usize;
        if counts[place] >> 2 != 1 {
            continue;
        }
        let mixed = combined[place];
        order.push((mixed, counts[place] & 3));
        for (which, place) in shape.places(mixed).into_iter().enumerate() {
            counts[place] = (counts[place] - 4) ^ which as u8;
            combined[place] ^= mixed;
            if counts[place] >> 2 == 1 {
                single.push(place as u32);
            }
        }
    }
    if order.len() != hashes.len() {
        return None;
    }
    let mut fingerprints = vec![0u8; shape.len()];
    for (mixed, which) in order.into_iter().rev() {
        let places = shape.places(mixed);
        let others = places.iter().fold(fingerprint(mixed), |all, place| all ^ fingerprints[*place]);
        fingerprints[places[usize::from(which)]] ^= others;
    }
    Some(fingerprints)
}

/// The filter as stored, through which every key passes that one of `hashes` belongs to. `None` if there are none.
///
/// Takes up to 40 bytes of memory a key while it works.
pub(crate) fn encode(mut hashes: Vec<u64>, id: &TableId) -> Option<Vec<u8>> {
    if hashes.is_empty() {
        return None;
    }
    let solved = (0..ATTEMPTS).find_map(|attempt| {
        if attempt == 1 {
            // Two equal hashes have no solution under any seed.
            hashes.sort_unstable();
            hashes.dedup();
        }
        let shape = Shape { seed: checksum(attempt, b"filter"), ..Shape::of(hashes.len()) };
        solve(&shape, &hashes).map(|fingerprints| (shape, fingerprints))
    });
    solved.map(|(shape, fingerprints)| {
        let mut out = vec![0; HEADER];
        put(&mut out, MAGIC_AT, &MAGIC.to_le_bytes());
        put(&mut out, 16, &FORMAT.to_le_bytes());
        put(&mut out, 24, &shape.seed.to_le_bytes());
        put(&mut out, 32, &shape.segment_len.to_le_bytes());
        put(&mut out, 36, &shape.segments.to_le_bytes());
        put(&mut out, 40, &(hashes.len() as u64).to_le_bytes());
        out.extend_from_slice(&fingerprints);
        let sum = sum_of(&out, id);
        put(&mut out, 0, &sum.to_le_bytes());
        out
    })
}

/// The filter of a table, checked. Holds the bytes as stored, and looks keys up there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    bytes: Box<[u8]>,
    shape: Shape,
}

impl Filter {
    /// The filter in `bytes`, if it is that of the table `id`.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: impl Into<Box<[u8]>>, id: &TableId) -> Result<Self, Flaw> {
        const CUT: Flaw = "a filter has not the length it says";
        let bytes = bytes.into();
        if bytes.len() < HEADER || get_u64(&bytes, MAGIC_AT) != Some(MAGIC) {
            return Err("no filter begins here");
        }
        if !matches(get_u64(&bytes, 0).ok_or(CUT)?, sum_of(&bytes, id)) {
            return Err("the checksum of a filter does not match");
        }
        if get_u32(&bytes, 16) != Some(FORMAT) || get_u32(&bytes, 20) != Some(0) {
            return Err("a filter has a format or flags that this version does not read");
        }
        let seed = get_u64(&bytes, 24).ok_or(CUT)?;
        let (segment_len, segments) = (get_u32(&bytes, 32).ok_or(CUT)?, get_u32(&bytes, 36).ok_or(CUT)?);
        if !segment_len.is_power_of_two() || segment_len > MAX_SEGMENT || segments == 0 {
            return Err("a filter has a shape that none has");
        }
        let shape = Shape { seed, segment_len, segments };
        // Places are of 32 bits, so a filter is shorter than that.
        if bytes.len() - HEADER != shape.len() || u32::try_from(shape.len()).is_err() {
            return Err(CUT);
        }
        Ok(Filter { bytes, shape })
    }

    /// The filter as stored.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether `key` may be in the table: always if it is, and for about 1 in 256 of those that are not.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        let mixed = self.shape.mix(hash_of(key));
        let fingerprints = &self.bytes[HEADER..];
        let all = self.shape.places(mixed).iter().fold(0, |all, place| all ^ fingerprints[*place]);
        all == fingerprint(mixed)
    }

    /// Number of keys it was made of.
    pub fn keys(&self) -> u64 {
        get_u64(&self.bytes, 40).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TableId = TableId { store: 3, number: 9 };

    fn key(n: u32) -> [u8; 4] {
        n.to_be_bytes()
    }

    fn filter_of(keys: u32) -> Filter {
        let bytes = encode((0..keys).map(|n| hash_of(&key(n))).collect(), &ID).expect("keys");
        Filter::decode(bytes, &ID).expect("just made")
    }

    #[test]
    fn all_keys_pass_and_few_others() {
        for keys in [1, 2, 3, 10, 100, 1_000, 10_000, 200_000] {
            let filter = filter_of(keys);
            assert_eq!(filter.keys(), u64::from(keys));
            assert!((0..keys).all(|n| filter.may_contain(&key(n))), "{keys} keys");
            let others = 200_000;
            let passed = (keys..keys + others).filter(|n| filter.may_contain(&key(*n))).count();
            let rate = passed as f64 / f64::from(others);
            let bits = (filter.bytes().len() - HEADER) as f64 * 8.0 / f64::from(keys);
            println!("{keys} keys: {bits:.2} bits a key, {:.3} % pass", rate * 100.0);
            assert!(rate < 0.0046, "{keys} keys: {rate}");
            assert!(keys < 100 || bits < if keys < 10_000 { 16.5 } else { 10.5 }, "{keys} keys: {bits} bits");
        }
    }

    #[test]
    fn a_key_given_twice_counts_once() {
        let bytes = encode(vec![hash_of(b"a"), hash_of(b"b"), hash_of(b"a")], &ID).expect("keys");
        let filter = Filter::decode(bytes, &ID).expect("just made");
        assert_eq!((filter.keys(), filter.may_contain(b"a"), filter.may_contain(b"b")), (2, true, true));
        assert_eq!(encode(Vec::new(), &ID), None);
    }

    #[test]
    fn no_flipped_bit_passes() {
        let filter = filter_of(50);
        let mut bytes = filter.bytes().to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Filter::decode(bytes.clone(), &ID).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(Filter::decode(bytes.clone(), &TableId { number: 8, ..ID }).is_err());
        assert_eq!(Filter::decode(bytes, &ID), Ok(filter));
    }
}
