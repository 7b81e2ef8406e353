//! The index: an ordered map, in DRAM, from the keys that a partition has on the fast tier to their newest versions.
//!
//! ```text
//! root ──► branches, up to 128 leaves each ──► leaves, up to 63 keys each
//! leaf:  keys, one behind the other │ where each ends │ heads │ entries
//! ```
//!
//! A B+ tree of three levels, whose root has as many branches as it takes. The first eight bytes of each key, or those
//! behind what all keys of a leaf begin with, are its head, a number. A search counts how many heads are less than that of
//! its key: they lie side by side, so none of these looks into memory waits for the one before, and keys themselves are
//! compared only where heads are equal. Keys have no pointer of their own, and leaves room for few more than they have.
//!
//! Parts of the tree that are full are divided, and neighbours that have little are joined.

mod packed;

use crate::key::{ALLOCATED, Key, apart_bytes};
use crate::partition::{Bounds, Entry};
use std::cmp::Ordering;
use std::mem;
use std::ops::{Bound, Range};

use packed::{Heads, Keys, Packed};

/// For how many keys a leaf gets room at a time.
const ROOM: usize = 8;
/// Most keys of a leaf; one more comes before it is divided.
const LEAF: usize = 8 * ROOM - 1;
/// Most leaves of a branch.
const BRANCH: usize = 128;

/// See the module's description.
pub struct Index {
    root: Level<Level<Leaf>>,
    len: usize,
    /// Bytes of DRAM that it takes, but for those of an empty one.
    bytes: usize,
}

/// Parts of the tree, in the order of their keys. There is one at the least.
struct Level<T> {
    /// A lower bound of the keys of each part but the first one, which has all that is less than the second one's.
    lows: Vec<Key>,
    heads: Heads,
    parts: Vec<T>,
    /// Bytes of `lows` that do not stand there.
    apart: usize,
}

/// Some keys, with their entries.
#[derive(Default)]
struct Leaf {
    keys: Packed,
    heads: Heads,
    entries: Vec<Entry>,
}

/// What a level is made of.
trait Part {
    /// The most there may be of it.
    const MOST: usize;
    /// How much of it there is: none, if it has no key.
    fn size(&self) -> usize;
    /// Takes what comes from `number` on off, with a lower bound of its keys.
    fn split(&mut self, number: usize) -> (Key, Self);
    /// Puts `other`, whose keys begin at `low`, behind it.
    fn join(&mut self, low: Key, other: Self);
    /// Bytes of DRAM that it takes beside itself, with those of all that is in it.
    fn heap_bytes(&self) -> usize;
}

impl Leaf {
    /// Which key it is, or before which one it would be.
    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let Range { start: mut from, end: mut to } = self.heads.places_of(key, &self.keys);
        while from < to {
            let middle = from.midpoint(to);
            match self.keys.key(middle).cmp(key) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    fn insert(&mut self, number: usize, key: &[u8], entry: Entry) {
        if self.size() == self.entries.capacity() {
            self.entries.reserve_exact(ROOM);
            self.heads.reserve(ROOM);
        }
        self.keys.insert(number, key);
        self.heads.insert(number, &self.keys);
        self.entries.insert(number, entry);
    }

    fn remove(&mut self, number: usize) -> Entry {
        self.keys.remove(number);
        self.heads.remove(number);
        let entry = self.entries.remove(number);
        if self.keys.has_room_for(2 * ROOM) {
            self.give_back(ROOM);
        }
        entry
    }

    /// Gives back room beyond that for `room` keys.
    fn give_back(&mut self, room: usize) {
        self.keys.give_back(room);
        self.heads.give_back(room);
        self.entries.shrink_to(self.size() + room);
    }

    /// The keys within `bounds`, with their entries.
    fn within<'i>(
        &'i self,
        (start, end): Bounds<'_>,
    ) -> impl DoubleEndedIterator<Item = (&'i [u8], Entry)> + Clone + use<'i> {
        let before = |key| self.find(key).unwrap_or_else(|number| number);
        let behind = |key| self.find(key).map_or_else(|number| number, |number| number + 1);
        let from = match start {
            Bound::Unbounded => 0,
            Bound::Included(key) => before(key),
            Bound::Excluded(key) => behind(key),
        };
        let to = match end {
            Bound::Unbounded => self.size(),
            Bound::Included(key) => behind(key),
            Bound::Excluded(key) => before(key),
        };
        (from..to).map(|number| (self.keys.key(number), self.entries[number]))
    }
}

impl Part for Leaf {
    const MOST: usize = LEAF;

    fn size(&self) -> usize {
        self.entries.len()
    }

    fn split(&mut self, number: usize) -> (Key, Self) {
        let mut upper = Leaf {
            keys: self.keys.split_off(number),
            heads: Heads::default(),
            entries: self.entries.split_off(number),
        };
        upper.heads.renew(&upper.keys);
        self.heads.renew(&self.keys);
        self.give_back(0);
        (Key::from_slice(upper.keys.key(0)), upper)
    }

    fn join(&mut self, _low: Key, other: Self) {
        self.keys.append(&other.keys);
        self.heads.renew(&self.keys);
        self.entries.extend_from_slice(&other.entries);
        self.give_back(ROOM);
    }

    fn heap_bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<Entry>() + ALLOCATED;
        self.keys.heap_bytes() + self.heads.heap_bytes() + entries
    }
}

impl<T: Part> Level<T> {
    fn of(part: T) -> Self {
        Level { lows: Vec::new(), heads: Heads::default(), parts: vec![part], apart: 0 }
    }

    /// The part that has `key`, if any has.
    #[inline]
    fn find(&self, key: &[u8]) -> usize {
        let places = self.heads.places_of(key, &self.lows);
        places.start + self.lows[places].partition_point(|low| low[..] <= *key)
    }

    /// The parts that have keys within `bounds`.
    fn within(&self, (start, end): Bounds<'_>) -> &[T] {
        let part_of = |bound, unbounded| match bound {
            Bound::Unbounded => unbounded,
            Bound::Included(key) | Bound::Excluded(key) => self.find(key),
        };
        self.parts.get(part_of(start, 0)..=part_of(end, self.parts.len() - 1)).unwrap_or_default()
    }

    /// Bytes of DRAM that it takes, but for itself and what its parts take beside themselves.
    fn own_bytes(&self) -> usize {
        let (lows, parts) = (self.lows.capacity() * size_of::<Key>(), self.parts.capacity() * size_of::<T>());
        self.heads.heap_bytes() + lows + parts + self.apart + 2 * ALLOCATED
    }

    /// Puts `part`, whose keys begin at `low`, behind part `number`.
    fn insert_behind(&mut self, number: usize, low: Key, part: T) {
        self.apart += apart_bytes(&low) as usize;
        self.lows.insert(number, low);
        // Anew: they may all begin with the same bytes by now.
        self.heads.renew(&self.lows);
        self.parts.insert(number + 1, part);
    }

    /// Removes a part that is not the only one, with what divides it from the one before; or from the one behind, if it is the first one.
    fn remove(&mut self, number: usize) -> (Key, T) {
        let bound = number.saturating_sub(1);
        let (low, part) = (self.lows.remove(bound), self.parts.remove(number));
        self.heads.remove(bound);
        self.apart -= apart_bytes(&low) as usize;
        if self.parts.capacity() > 2 * self.parts.len() + ROOM {
            self.give_back();
        }
        (low, part)
    }

    /// Gives back room beyond that for some parts.
    fn give_back(&mut self) {
        self.lows.shrink_to(self.parts.len() + ROOM);
        self.heads.give_back(ROOM);
        self.parts.shrink_to(self.parts.len() + ROOM);
    }

    /// Divides part `number` if it is more than full: in halves, or where `at_end`, as keys that come in their order want it, behind all
    /// but the last.
    fn divide(&mut self, number: usize, at_end: bool) {
        let part = &mut self.parts[number];
        let size = part.size();
        if size > T::MOST {
            let (low, upper) = part.split(if at_end { size - 1 } else { size / 2 });
            self.insert_behind(number, low, upper);
        }
    }

    /// What there is to do of part `number`, which has lost something.
    fn thinned(&self, number: usize) -> Option<Thinned> {
        let size = |number: usize| self.parts[number].size();
        if self.parts.len() == 1 {
            return None;
        }
        if size(number) == 0 {
            return Some(Thinned::Drop);
        }
        let fits = |upper: &usize| {
            (1..self.parts.len()).contains(upper) && size(upper - 1) + size(*upper) <= T::MOST / 2
        };
        [number, number + 1].into_iter().find(fits).map(Thinned::Join)
    }

    fn tidy(&mut self, number: usize) {
        match self.thinned(number) {
            Some(Thinned::Drop) => _ = self.remove(number),
            Some(Thinned::Join(upper)) => {
                let (low, part) = self.remove(upper);
                self.parts[upper - 1].join(low, part);
            }
            None => {}
        }
    }
}

/// What becomes of a part that has little.
enum Thinned {
    /// It has nothing, and goes.
    Drop,
    /// This part and the one before it have little together, and are joined.
    Join(usize),
}

impl<T: Part> Part for Level<T> {
    const MOST: usize = BRANCH;

    fn size(&self) -> usize {
        if self.parts.len() == 1 && self.parts[0].size() == 0 { 0 } else { self.parts.len() }
    }

    fn split(&mut self, number: usize) -> (Key, Self) {
        let mut upper = Level {
            lows: self.lows.split_off(number),
            heads: Heads::default(),
            parts: self.parts.split_off(number),
            apart: 0,
        };
        upper.heads.renew(&upper.lows);
        upper.apart = upper.lows.iter().map(|low| apart_bytes(low) as usize).sum();
        let low = self.lows.remove(number - 1);
        self.heads.renew(&self.lows);
        self.apart -= upper.apart + apart_bytes(&low) as usize;
        self.give_back();
        (low, upper)
    }

    fn join(&mut self, low: Key, mut other: Self) {
        self.apart += other.apart + apart_bytes(&low) as usize;
        self.lows.push(low);
        self.lows.append(&mut other.lows);
        self.heads.renew(&self.lows);
        self.parts.append(&mut other.parts);
    }

    fn heap_bytes(&self) -> usize {
        self.own_bytes() + self.parts.iter().map(T::heap_bytes).sum::<usize>()
    }
}

impl Default for Index {
    fn default() -> Self {
        Index { root: Level::of(Level::of(Leaf::default())), len: 0, bytes: 0 }
    }
}

impl Index {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of DRAM that its keys take: without those of an empty index, some 400, which stay when keys go.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Where `key` is: the branch, the leaf, and the place of it in that.
    #[inline]
    fn find(&self, key: &[u8]) -> (usize, usize, Result<usize, usize>) {
        let branch_no = self.root.find(key);
        let branch = &self.root.parts[branch_no];
        let leaf_no = branch.find(key);
        (branch_no, leaf_no, branch.parts[leaf_no].find(key))
    }

    /// The entry of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Entry> {
        let (branch, leaf, place) = self.find(key);
        place.ok().map(|number| self.root.parts[branch].parts[leaf].entries[number])
    }

    /// The entry of `key`, to change it.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let (branch, leaf, place) = self.find(key);
        place.ok().map(|number| &mut self.root.parts[branch].parts[leaf].entries[number])
    }

    /// Sets the entry of `key`. Returns the one before.
    pub fn insert(&mut self, key: &[u8], entry: Entry) -> Option<Entry> {
        let (branch, leaf, place) = self.find(key);
        match place {
            Ok(number) => {
                let before = &mut self.root.parts[branch].parts[leaf].entries[number];
                Some(mem::replace(before, entry))
            }
            Err(number) => {
                self.insert_at((branch, leaf, number), key, entry);
                None
            }
        }
    }

    /// Adds a key that is behind all that there are: without a search.
    pub fn push(&mut self, key: &[u8], entry: Entry) {
        let branch = self.root.parts.len() - 1;
        let leaf = self.root.parts[branch].parts.len() - 1;
        let last = &self.root.parts[branch].parts[leaf];
        let number = last.size();
        assert!(number == 0 || last.keys.key(number - 1) < key, "it is behind all others");
        self.insert_at((branch, leaf, number), key, entry);
    }

    fn insert_at(&mut self, (branch, leaf, number): (usize, usize, usize), key: &[u8], entry: Entry) {
        let is_last = branch + 1 == self.root.parts.len() && leaf + 1 == self.root.parts[branch].parts.len();
        self.len += 1;
        let changed = &mut self.root.parts[branch].parts[leaf];
        let at_end = is_last && number == changed.size();
        let before = changed.heap_bytes();
        changed.insert(number, key, entry);
        self.bytes = self.bytes + changed.heap_bytes() - before;
        if changed.size() > LEAF {
            self.reorder(branch, |root| {
                root.parts[branch].divide(leaf, at_end);
                root.divide(branch, at_end);
            });
        }
    }

    /// Removes `key`. Returns its entry.
    pub fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let (branch, leaf, place) = self.find(key);
        let number = place.ok()?;
        if self.len == 1 {
            let entry = self.root.parts[branch].parts[leaf].entries[number];
            *self = Index::default();
            return Some(entry);
        }
        self.len -= 1;
        let above = &mut self.root.parts[branch];
        let changed = &mut above.parts[leaf];
        let before = changed.heap_bytes();
        let entry = changed.remove(number);
        self.bytes = self.bytes + changed.heap_bytes() - before;
        // One that is alone in its branch may leave it empty.
        if changed.size() == 0 || changed.size() <= LEAF / 2 && above.thinned(leaf).is_some() {
            self.reorder(branch, |root| {
                root.parts[branch].tidy(leaf);
                root.tidy(branch);
            });
        }
        Some(entry)
    }

    /// Changes branch `number`, and how many branches there are beside it, and counts what that takes.
    fn reorder(&mut self, number: usize, change: impl FnOnce(&mut Level<Level<Leaf>>)) {
        let root = &mut self.root;
        let from = number.saturating_sub(1);
        let behind = root.parts.len().saturating_sub(number + 2);
        let near = |root: &Level<Level<Leaf>>| -> usize {
            let near = &root.parts[from..root.parts.len() - behind];
            root.own_bytes() + near.iter().map(Part::heap_bytes).sum::<usize>()
        };
        let before = near(root);
        change(root);
        self.bytes = self.bytes + near(root) - before;
    }

    /// The keys within `bounds`, with their entries, in order.
    pub fn range<'i>(
        &'i self,
        bounds: Bounds<'_>,
    ) -> impl DoubleEndedIterator<Item = (&'i [u8], Entry)> + Clone {
        let branches = self.root.within(bounds).iter();
        let leaves = branches.flat_map(move |branch| branch.within(bounds));
        leaves.flat_map(move |leaf| leaf.within(bounds))
    }

    /// All keys, with their entries, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], Entry)> + Clone {
        self.range((Bound::Unbounded, Bound::Unbounded))
    }
}

#[cfg(test)]
mod tests;
