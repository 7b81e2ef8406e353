//! The keys of a leaf, and the heads by which keys are found ([`crate::index`]).

use super::ROOM;
use crate::key::{ALLOCATED, Key};
use std::cmp::Ordering;
use std::ops::Range;

/// If all keys of a part begin with so many bytes or more, heads are of what is behind these: the first eight bytes would differ too seldom.
const LONG_PREFIX: usize = 6;
/// Of more heads those that are less are not counted, but found by halves: a root may have any number.
const MOST_COUNTED: usize = 256;

/// Keys by their number, in order.
pub trait Keys {
    fn len(&self) -> usize;
    fn key(&self, number: usize) -> &[u8];
}

impl Keys for Vec<Key> {
    fn len(&self) -> usize {
        self.len()
    }

    fn key(&self, number: usize) -> &[u8] {
        &self[number]
    }
}

/// Keys side by side.
#[derive(Default)]
pub struct Packed {
    bytes: Vec<u8>,
    /// Where each ends in `bytes`.
    ends: Vec<u32>,
}

/// The heads of some keys: eight bytes of each as a number.
#[derive(Default)]
pub struct Heads {
    /// How many bytes, which all of them begin with, are before these.
    skipped: usize,
    heads: Vec<u64>,
}

/// The eight bytes that `key` begins with as a number. Zeros follow a shorter key: heads of two keys are equal, or in their order.
#[inline]
fn head_of(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    match key.first_chunk() {
        Some(chunk) => first = *chunk,
        None => first[..key.len()].copy_from_slice(key),
    }
    u64::from_be_bytes(first)
}

impl Heads {
    /// Which of `keys`, whose heads these are, have the head of `key`: an empty range where `key` would be, if there are none.
    #[inline]
    pub fn places_of(&self, key: &[u8], keys: &impl Keys) -> Range<usize> {
        if self.skipped > 0 {
            let prefix = &keys.key(0)[..self.skipped];
            match key[..key.len().min(self.skipped)].cmp(prefix) {
                Ordering::Less => return 0..0,
                Ordering::Equal => {}
                Ordering::Greater => return self.heads.len()..self.heads.len(),
            }
        }
        let head = head_of(&key[self.skipped..]);
        let from = match self.heads.len() {
            // All of them, instead of halves: so no look into memory waits for another, and there is no branch to guess.
            ..=MOST_COUNTED => self.heads.iter().map(|other| usize::from(*other < head)).sum(),
            _ => self.heads.partition_point(|other| *other < head),
        };
        let equal = self.heads[from..].iter().take_while(|other| **other == head).count();
        from..from + equal
    }

    /// Key `number` of `keys` has come.
    pub fn insert(&mut self, number: usize, keys: &impl Keys) {
        let (key, other) = (keys.key(number), keys.key(usize::from(number == 0 && keys.len() > 1)));
        if key.get(..self.skipped) == other.get(..self.skipped) {
            self.heads.insert(number, head_of(&key[self.skipped..]));
        } else {
            self.renew(keys);
        }
    }

    /// Makes room for so many more, exactly.
    pub fn reserve(&mut self, room: usize) {
        self.heads.reserve_exact(room);
    }

    /// Gives back room beyond that for `room` more.
    pub fn give_back(&mut self, room: usize) {
        self.heads.shrink_to(self.heads.len() + room);
    }

    /// Bytes of DRAM that they take beside themselves.
    pub fn heap_bytes(&self) -> usize {
        self.heads.capacity() * size_of::<u64>() + ALLOCATED
    }

    /// Whether they are those of `keys`.
    #[cfg(test)]
    pub fn are_of(&self, keys: &impl Keys) -> bool {
        let head = |number| head_of(&keys.key(number)[self.skipped..]);
        (0..keys.len()).map(head).eq(self.heads.iter().copied())
    }

    /// Key `number` has gone.
    pub fn remove(&mut self, number: usize) {
        self.heads.remove(number);
        if self.heads.is_empty() {
            self.skipped = 0;
        }
    }

    /// They are those of `keys`.
    pub fn renew(&mut self, keys: &impl Keys) {
        let all = 0..keys.len();
        self.skipped = all.clone().next_back().map_or(0, |last| {
            let common =
                keys.key(0).iter().zip(keys.key(last)).take_while(|(one, other)| one == other).count();
            if common >= LONG_PREFIX && last > 0 { common } else { 0 }
        });
        self.heads.clear();
        self.heads.extend(all.map(|number| head_of(&keys.key(number)[self.skipped..])));
    }
}

impl Packed {
    /// Where key `number` begins in `bytes`.
    fn start(&self, number: usize) -> usize {
        number.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }

    /// Puts `key` before key `number`.
    pub fn insert(&mut self, number: usize, key: &[u8]) {
        if self.ends.len() == self.ends.capacity() {
            self.ends.reserve_exact(ROOM);
        }
        if self.bytes.len() + key.len() > self.bytes.capacity() {
            self.bytes.reserve_exact(key.len() + (ROOM - 1) * self.mean_len().min(key.len()));
        }
        let (start, len) = (self.start(number), self.bytes.len());
        self.bytes.resize(len + key.len(), 0);
        self.bytes.copy_within(start..len, start + key.len());
        self.bytes[start..start + key.len()].copy_from_slice(key);
        self.ends.insert(number, start as u32);
        self.ends[number..].iter_mut().for_each(|end| *end += key.len() as u32);
    }

    /// Removes key `number`.
    pub fn remove(&mut self, number: usize) {
        let key = self.start(number)..self.ends[number] as usize;
        self.ends.remove(number);
        self.ends[number..].iter_mut().for_each(|end| *end -= key.len() as u32);
        self.bytes.drain(key);
    }

    /// Takes the keys from `number` on off.
    pub fn split_off(&mut self, number: usize) -> Self {
        let start = self.start(number);
        let ends = self.ends[number..].iter().map(|end| end - start as u32).collect();
        self.ends.truncate(number);
        Packed { bytes: self.bytes.split_off(start), ends }
    }

    /// Puts those of `other` behind them.
    pub fn append(&mut self, other: &Self) {
        let len = self.bytes.len() as u32;
        self.ends.extend(other.ends.iter().map(|end| end + len));
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// Bytes of a key on average.
    fn mean_len(&self) -> usize {
        self.bytes.len().div_ceil(self.ends.len().max(1))
    }

    /// Gives back room beyond that for `room` keys.
    pub fn give_back(&mut self, room: usize) {
        self.ends.shrink_to(self.ends.len() + room);
        self.bytes.shrink_to(self.bytes.len() + room * self.mean_len());
    }

    /// Bytes of DRAM that they take beside themselves.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>() + 2 * ALLOCATED
    }

    /// Whether there is room for so many keys more.
    pub fn has_room_for(&self, keys: usize) -> bool {
        self.ends.capacity() >= self.ends.len() + keys
            || self.bytes.capacity() >= self.bytes.len() + keys * self.mean_len()
    }
}

impl Keys for Packed {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn key(&self, number: usize) -> &[u8] {
        &self.bytes[self.start(number)..self.ends[number] as usize]
    }
}
