//! Keys, ranges and value lengths that random operations choose from.

use super::Limits;
use crate::engine::KeyRange;
use fastrand::Rng;
use std::ops::Bound;
use tierdb_base::MAX_KEY_BYTES;

/// The keys of one run.
pub(super) struct Keys(Vec<Vec<u8>>);

impl Keys {
    /// `count` keys: unusual ones first, and numbered ones where those do not suffice.
    pub(super) fn choose(rng: &mut Rng, count: usize) -> Self {
        let mut keys = unusual();
        rng.shuffle(&mut keys);
        keys.truncate(count);
        keys.extend((keys.len()..count).map(|i| format!("user{i:08}").into_bytes()));
        Keys(keys)
    }

    /// One of them.
    pub(super) fn any(&self, rng: &mut Rng) -> Vec<u8> {
        // Every second time one of the first few, which are overwritten again and again.
        let among = if rng.bool() { self.0.len().min(6) } else { self.0.len() };
        self.0[rng.usize(..among)].clone()
    }

    /// A byte string at or near a key: a place to seek to, or a bound.
    pub(super) fn near(&self, rng: &mut Rng) -> Vec<u8> {
        let mut key = self.any(rng);
        match rng.u8(..16) {
            0 => key.push(0),
            1 => key.push(0xff),
            2 | 3 => key.truncate(key.len() - 1),
            4 => key.truncate(rng.usize(..key.len())),
            5 => key.extend([0x7f; MAX_KEY_BYTES]),
            6 => key.clear(),
            _ => {}
        }
        key
    }

    /// A range of any kind: all, by prefix, with bounds of each kind, reversed, empty.
    pub(super) fn range(&self, rng: &mut Rng) -> KeyRange {
        match rng.u8(..8) {
            0 => KeyRange::all(),
            1 | 2 => {
                let mut prefix = self.any(rng);
                prefix.truncate(rng.usize(..=prefix.len()));
                KeyRange::prefix(&prefix)
            }
            3 => {
                let key = self.near(rng);
                KeyRange { start: bound(rng, key.clone()), end: bound(rng, key) }
            }
            _ => {
                let (mut low, mut high) = (self.near(rng), self.near(rng));
                if low > high && rng.u8(..5) > 0 {
                    std::mem::swap(&mut low, &mut high);
                }
                KeyRange { start: bound(rng, low), end: bound(rng, high) }
            }
        }
    }
}

fn bound(rng: &mut Rng, key: Vec<u8>) -> Bound<Vec<u8>> {
    match rng.u8(..9) {
        0..=3 => Bound::Included(key),
        4..=7 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

/// Keys of one byte, of the greatest length, with long common prefixes, that are prefixes of each other,
/// and with the lowest and highest bytes.
fn unusual() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = [0x00, 0x01, b'a', 0x7f, 0x80, 0xfe, 0xff].map(|byte| vec![byte]).into();
    keys.extend(
        [&b"\x00\x00"[..], b"\x00\xff", b"a\x00", b"a\x00\x00", b"a\xff", b"ab", b"\xff\x00", b"\xff\xff"]
            .map(Vec::from),
    );
    for tail in [&b""[..], b"\x00", b"\xff", b"0", b"00", b"01", b"1"] {
        for prefix in [vec![b'p'; 40], vec![b'p'; 300], vec![0xff; 100]] {
            keys.push([&prefix, tail].concat());
        }
    }
    for (fill, last) in [(0x00, 0x00), (b'm', b'm'), (b'm', b'n'), (0xff, 0xfe), (0xff, 0xff)] {
        let mut key = vec![fill; MAX_KEY_BYTES];
        key[MAX_KEY_BYTES - 1] = last;
        keys.push(key);
    }
    keys.push(vec![b'm'; MAX_KEY_BYTES - 1]);
    keys
}

/// A value length: mostly small, sometimes close to where engines change their ways.
pub(super) fn value_len(rng: &mut Rng, limits: &Limits) -> usize {
    let about = |rng: &mut Rng, len: usize| match rng.u8(..4) {
        0 => len,
        1 => len - 1,
        2 => len + 1,
        // Less by what a record's head and key may take.
        _ => len - rng.usize(..128),
    };
    limits.value_len(match rng.u16(..400) {
        0..40 => 0,
        40..240 => rng.usize(1..64),
        240..350 => rng.usize(900..1200),
        350..385 => about(rng, 4 << 10),
        385..393 => about(rng, 128 << 10),
        393..396 => about(rng, 256 << 10),
        396..399 => about(rng, 512 << 10),
        _ => rng.usize(1 << 20..3 << 20),
    })
}
