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
            self.heads.heads.reserve_exact(ROOM);
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
        self.heads.heads.shrink_to(self.size() + room);
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
        let keys = self.keys.bytes.capacity() + self.keys.ends.capacity() * size_of::<u32>();
        let heads = self.heads.heads.capacity() * size_of::<u64>();
        keys + heads + self.entries.capacity() * size_of::<Entry>() + 4 * ALLOCATED
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
        let heads = self.heads.heads.capacity() * size_of::<u64>();
        let (lows, parts) = (self.lows.capacity() * size_of::<Key>(), self.parts.capacity() * size_of::<T>());
        lows + heads + parts + self.apart + 3 * ALLOCATED
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
        self.heads.heads.shrink_to(self.parts.len() + ROOM);
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
        let number = self.root.parts[branch].parts[leaf].size();
        debug_assert!(self.find(key) == (branch, leaf, Err(number)), "it is behind all others");
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
mod tests {
    use super::packed::head_of;
    use super::*;
    use std::collections::BTreeMap;

    /// So many different keys are mostly alike.
    const ALIKE: u32 = 20_000;

    fn entry(n: u64) -> Entry {
        Entry::new(n * 64, n, false, false)
    }

    /// Keys of which many, or most, are alike in their first bytes, and some are long.
    fn random_key(rng: &mut fastrand::Rng, most: u32) -> Vec<u8> {
        let n = rng.u32(..most);
        match if most == ALIKE && !n.is_multiple_of(50) { 1 } else { n % 5 } {
            0 => n.to_be_bytes()[rng.usize(..4)..].to_vec(),
            1 => format!("user{n:09}").into_bytes(),
            2 => [&n.to_be_bytes()[..], &[7; 90]].concat(),
            _ => format!("{:016x}", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes(),
        }
    }

    fn bound<'k>(rng: &mut fastrand::Rng, key: &'k [u8]) -> Bound<&'k [u8]> {
        [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded][rng.usize(..3)]
    }

    fn check(index: &Index, model: &BTreeMap<Vec<u8>, Entry>) {
        assert_eq!((index.len(), index.is_empty()), (model.len(), model.is_empty()));
        assert!(index.iter().eq(model.iter().map(|(key, entry)| (&key[..], *entry))));
        let empty = Index::default().root.heap_bytes();
        assert_eq!(index.bytes + empty, index.root.heap_bytes(), "what it takes is counted");
        let (mut last, mut leaves) = (Vec::new(), 0);
        fn check_level<T>(level: &Level<T>) {
            let apart: u64 = level.lows.iter().map(|low| apart_bytes(low)).sum();
            assert!(level.apart as u64 == apart && level.lows.len() + 1 == level.parts.len());
            let heads = level.lows.iter().map(|low| head_of(&low[level.heads.skipped..]));
            assert!(heads.eq(level.heads.heads.iter().copied()));
        }
        check_level(&index.root);
        let bounds = |lows: &[Key], low: &Key| [std::slice::from_ref(low), lows].concat();
        for (low, branch) in bounds(&index.root.lows, &Key::new()).iter().zip(&index.root.parts) {
            check_level(branch);
            assert!(branch.parts.len() <= BRANCH);
            for (low, leaf) in bounds(&branch.lows, low).iter().zip(&branch.parts) {
                assert!(last[..] <= low[..] && leaf.size() <= LEAF && (leaf.size() > 0 || model.is_empty()));
                for number in 0..leaf.size() {
                    let key = leaf.keys.key(number);
                    assert!(
                        key >= &low[..] && leaf.heads.heads[number] == head_of(&key[leaf.heads.skipped..])
                    );
                    last = key.to_vec();
                }
                leaves += 1;
            }
        }
        // Neighbours of a branch have more than half a leaf together.
        let branches = index.root.parts.len();
        assert!(leaves <= 2 * branches + model.len() / (LEAF / 4), "{leaves} leaves for {}", model.len());
        assert!(branches <= 2 + leaves / (BRANCH / 4), "{branches} branches for {leaves} leaves");
    }

    /// Goal: whatever is done in whatever order, it is what a sorted map is.
    #[test]
    fn it_does_what_a_sorted_map_does() {
        for seed in 0..30 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let most = [60, 3_000, ALIKE, 60_000][seed as usize % 4];
            let (mut index, mut model) = (Index::default(), BTreeMap::new());
            // It grows and shrinks in turn.
            for round in 0..6 {
                for step in 0..4_000 {
                    let key = random_key(&mut rng, most);
                    if (rng.u8(..8) < 2) == (round % 2 == 0) {
                        assert_eq!(index.remove(&key), model.remove(&key));
                    } else {
                        assert_eq!(index.insert(&key, entry(step)), model.insert(key, entry(step)));
                    }
                    let key = random_key(&mut rng, most);
                    assert_eq!(index.get(&key), model.get(&key).copied());
                    assert_eq!(index.get_mut(&key).copied(), model.get(&key).copied());
                }
                check(&index, &model);
                for _ in 0..50 {
                    let (start, end) = (random_key(&mut rng, most), random_key(&mut rng, most));
                    let bounds = (bound(&mut rng, &start), bound(&mut rng, &end));
                    let empty = matches!(bounds, (Bound::Excluded(_), Bound::Excluded(_)) if start == end)
                        || !matches!(bounds, (Bound::Unbounded, _) | (_, Bound::Unbounded)) && start > end;
                    let wanted: Vec<_> = match empty {
                        true => Vec::new(),
                        false => {
                            model.range::<[u8], _>(bounds).map(|(key, entry)| (&key[..], *entry)).collect()
                        }
                    };
                    assert!(index.range(bounds).eq(wanted.iter().copied()), "seed {seed}, {bounds:?}");
                    assert!(index.range(bounds).rev().eq(wanted.iter().rev().copied()));
                    let few = index.range(bounds).take(3).collect::<Vec<_>>();
                    assert_eq!(few, wanted[..wanted.len().min(3)]);
                }
            }
            let keys: Vec<_> = model.keys().cloned().collect();
            for key in keys {
                assert_eq!(index.remove(&key), model.remove(&key));
            }
            check(&index, &model);
        }
    }

    #[test]
    fn ranges_that_leave_take_their_leaves_with_them() {
        let mut index = Index::default();
        let mut model = BTreeMap::new();
        for n in 0..40_000_u64 {
            index.push(&n.to_be_bytes(), entry(n));
            model.insert(n.to_be_bytes().to_vec(), entry(n));
        }
        check(&index, &model);
        for n in (10_000..30_000_u64).chain(0..5_000).chain(35_000..40_000) {
            assert!(index.remove(&n.to_be_bytes()).is_some() && index.remove(&n.to_be_bytes()).is_none());
            model.remove(&n.to_be_bytes()[..]);
        }
        check(&index, &model);
        // Less than all there are, from the highest down: they come to the first leaf, whatever its bound was once.
        for n in (0..6_000_u64).rev() {
            assert_eq!(
                index.insert(&n.to_be_bytes(), entry(n)),
                model.insert(n.to_be_bytes().into(), entry(n))
            );
        }
        check(&index, &model);
        model.keys().for_each(|key| assert!(index.remove(key).is_some()));
        check(&index, &BTreeMap::new());
        assert_eq!(index.memory_bytes(), 0, "nothing is left of what there was");
    }

    /// Goal: what a key takes stays what `docs/design/slab.md` says, and `Index` of itself.
    #[test]
    fn a_key_takes_its_bytes_and_few_more() {
        let rng = &mut fastrand::Rng::with_seed(1);
        for (len, most) in [(8, 44), (16, 53), (24, 62), (100, 146)] {
            let key = |n: u64| {
                let mut key = vec![0; len];
                key[..8].copy_from_slice(&n.to_be_bytes());
                key
            };
            let mut ascending = Index::default();
            (0..100_000).for_each(|n| ascending.push(&key(n), entry(n)));
            let mut random = Index::default();
            (0..100_000).for_each(|n| _ = random.insert(&key(rng.u64(..)), entry(n)));
            for index in [ascending, random] {
                let bytes = index.memory_bytes() / index.len() as u64;
                assert!(bytes <= most, "{bytes} bytes a key of {len}");
            }
        }
    }
}
