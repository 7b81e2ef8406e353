//! The search layer: which leaf holds a key. In DRAM only, rebuilt on open.
//!
//! A B-tree from anchors (the low fence of each leaf) to leaf pages, immutable once it is the root: an
//! update copies the nodes on its path and swaps the root, so readers take no latch and need no
//! validation. `Arc::make_mut` does the copying: a node that no published root shares is changed in place,
//! which makes several updates in one swap cheap.
//!
//! Invariants
//! 1. Every root is the leaf chain as it was at some moment, whole: a structural change enters in one swap.
//! 2. The first anchor is empty, so every key has a leaf.
//! 3. A node's key for a child is exactly the child's first key.

use crate::pages::PageNo;
use std::cmp::Ordering;
use std::sync::Arc;

/// Most entries of a node.
const MAX: usize = 64;
/// Fewest entries a node is left with where a neighbour can take them.
const MIN: usize = 16;
/// Entries of a node that is built from a sorted list.
const FILL: usize = 48;

/// The tree. Cloning it costs one reference count.
#[derive(Clone)]
pub(super) struct Tree {
    root: Arc<Node>,
}

#[derive(Clone, Default)]
struct Node {
    keys: Keys,
    below: Below,
}

#[derive(Clone)]
enum Below {
    Leaves(Vec<PageNo>),
    Nodes(Vec<Arc<Node>>),
}

impl Default for Below {
    fn default() -> Self {
        Below::Leaves(Vec::new())
    }
}

/// Sorted keys, found by the 8 bytes that follow what all of them have in common.
#[derive(Clone, Default)]
struct Keys {
    /// Length of the common prefix.
    skip: usize,
    heads: Vec<u64>,
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

/// The first 8 bytes of `tail` as a number that sorts like them; missing bytes count as 0.
#[inline]
pub(super) fn head(tail: &[u8]) -> u64 {
    match tail.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => tail.iter().rev().fold(0, |low, byte| low >> 8 | u64::from(*byte) << 56),
    }
}

/// Length of what `a` and `b` have in common at their start.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Keys {
    fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.bytes[start..self.ends[i] as usize]
    }

    /// Number of keys that are less than `key`, or at most `key` if `or_equal`.
    #[inline]
    fn rank(&self, key: &[u8], or_equal: bool) -> usize {
        if self.ends.is_empty() {
            return 0;
        }
        let common = &self.bytes[..self.skip];
        let start = &key[..key.len().min(self.skip)];
        match start.cmp(common) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.len(),
            Ordering::Equal => {}
        }
        let tail = &key[self.skip..];
        let wanted = head(tail);
        let mut rank = self.heads.partition_point(|head| *head < wanted);
        while rank < self.heads.len() && self.heads[rank] == wanted {
            match self.get(rank)[self.skip..].cmp(tail) {
                Ordering::Less => {}
                Ordering::Equal if or_equal => {}
                _ => break,
            }
            rank += 1;
        }
        rank
    }

    fn insert(&mut self, i: usize, key: &[u8]) {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        self.bytes.splice(start..start, key.iter().copied());
        self.ends.insert(i, start as u32);
        self.ends[i..].iter_mut().for_each(|end| *end += key.len() as u32);
        self.heads.insert(i, 0);
        self.index(i);
    }

    fn remove(&mut self, i: usize) {
        let len = self.get(i).len();
        let start = self.ends[i] as usize - len;
        self.bytes.drain(start..start + len);
        self.ends.remove(i);
        self.ends[i..].iter_mut().for_each(|end| *end -= len as u32);
        self.heads.remove(i);
        self.index(i);
    }

    fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Brings `skip` and the heads up to date after a change at `changed`.
    fn index(&mut self, changed: usize) {
        let skip = match self.len() {
            0 => 0,
            len => common_prefix(self.get(0), self.get(len - 1)),
        };
        if skip == self.skip && self.heads.len() == self.len() {
            if changed < self.len() {
                self.heads[changed] = head(&self.get(changed)[skip..]);
            }
            return;
        }
        self.skip = skip;
        self.heads = (0..self.len()).map(|i| head(&self.get(i)[skip..])).collect();
    }

    /// Takes the keys from `at` on out into a list of their own.
    fn split_off(&mut self, at: usize) -> Keys {
        let mut right = Keys::default();
        (at..self.len()).for_each(|i| right.push(self.get(i)));
        right.index(0);
        self.ends.truncate(at);
        self.heads.truncate(at);
        self.bytes.truncate(self.ends.last().map_or(0, |end| *end as usize));
        self.heads.clear();
        self.index(0);
        right
    }

    fn append(&mut self, right: &Keys) {
        (0..right.len()).for_each(|i| self.push(right.get(i)));
        self.heads.clear();
        self.index(0);
    }
}

impl Node {
    fn len(&self) -> usize {
        self.keys.len()
    }

    /// Puts `anchor` at `page`, replacing where it was. Returns the right half if the node was full.
    fn set(&mut self, anchor: &[u8], page: PageNo) -> Option<Arc<Node>> {
        let rank = self.keys.rank(anchor, true);
        match &mut self.below {
            Below::Leaves(pages) => {
                if rank > 0 && self.keys.get(rank - 1) == anchor {
                    pages[rank - 1] = page;
                } else {
                    pages.insert(rank, page);
                    self.keys.insert(rank, anchor);
                }
            }
            Below::Nodes(nodes) => {
                let child = rank.saturating_sub(1);
                if let Some(right) = Arc::make_mut(&mut nodes[child]).set(anchor, page) {
                    self.keys.insert(child + 1, right.keys.get(0));
                    nodes.insert(child + 1, right);
                }
            }
        }
        (self.len() > MAX).then(|| Arc::new(self.split_off(self.len() / 2)))
    }

    /// Takes `anchor` out, if it is there.
    fn remove(&mut self, anchor: &[u8]) {
        let rank = self.keys.rank(anchor, true);
        if rank == 0 {
            return;
        }
        let i = rank - 1;
        match &mut self.below {
            Below::Leaves(pages) => {
                if self.keys.get(i) == anchor {
                    pages.remove(i);
                    self.keys.remove(i);
                }
            }
            Below::Nodes(nodes) => {
                Arc::make_mut(&mut nodes[i]).remove(anchor);
                if nodes[i].len() == 0 {
                    nodes.remove(i);
                    self.keys.remove(i);
                    return;
                }
                if nodes[i].keys.get(0) != self.keys.get(i) {
                    self.keys.remove(i);
                    self.keys.insert(i, nodes[i].keys.get(0));
                }
                if nodes[i].len() < MIN && nodes.len() > 1 {
                    let left = i.saturating_sub(1);
                    if nodes[left].len() + nodes[left + 1].len() <= FILL {
                        let right = nodes.remove(left + 1);
                        self.keys.remove(left + 1);
                        Arc::make_mut(&mut nodes[left]).append(&right);
                    }
                }
            }
        }
    }

    fn split_off(&mut self, at: usize) -> Node {
        let below = match &mut self.below {
            Below::Leaves(pages) => Below::Leaves(pages.split_off(at)),
            Below::Nodes(nodes) => Below::Nodes(nodes.split_off(at)),
        };
        Node { keys: self.keys.split_off(at), below }
    }

    /// Adds the entries of a right neighbour of the same height.
    fn append(&mut self, right: &Node) {
        match (&mut self.below, &right.below) {
            (Below::Leaves(pages), Below::Leaves(more)) => pages.extend_from_slice(more),
            (Below::Nodes(nodes), Below::Nodes(more)) => nodes.extend_from_slice(more),
            _ => unreachable!("neighbours have the same height"),
        }
        self.keys.append(&right.keys);
    }

    fn pages(&self, out: &mut Vec<PageNo>) {
        match &self.below {
            Below::Leaves(pages) => out.extend_from_slice(pages),
            Below::Nodes(nodes) => nodes.iter().for_each(|node| node.pages(out)),
        }
    }

    fn memory_bytes(&self) -> u64 {
        let keys =
            self.keys.heads.capacity() * 8 + self.keys.ends.capacity() * 4 + self.keys.bytes.capacity();
        let below = match &self.below {
            Below::Leaves(pages) => pages.capacity() as u64 * 8,
            Below::Nodes(nodes) => {
                nodes.capacity() as u64 * 8 + nodes.iter().map(|node| node.memory_bytes()).sum::<u64>()
            }
        };
        // Two reference counts stand before a node.
        size_of::<Node>() as u64 + 16 + keys as u64 + below
    }
}

impl Tree {
    /// The tree of `leaves`: anchors in order, the first of them empty.
    pub fn build<'a>(leaves: impl IntoIterator<Item = (&'a [u8], PageNo)>) -> Self {
        let mut level: Vec<Arc<Node>> = Vec::new();
        let mut node = Node::default();
        for (anchor, page) in leaves {
            if node.len() == FILL {
                node.keys.index(0);
                level.push(Arc::new(std::mem::take(&mut node)));
            }
            node.keys.push(anchor);
            if let Below::Leaves(pages) = &mut node.below {
                pages.push(page);
            }
        }
        node.keys.index(0);
        level.push(Arc::new(node));
        while level.len() > 1 {
            level = level
                .chunks(FILL)
                .map(|children| {
                    let mut keys = Keys::default();
                    children.iter().for_each(|child| keys.push(child.keys.get(0)));
                    keys.index(0);
                    Arc::new(Node { keys, below: Below::Nodes(children.to_vec()) })
                })
                .collect();
        }
        Tree { root: level.swap_remove(0) }
    }

    /// The leaf whose anchor is the last at or below `key`.
    #[inline]
    pub fn floor(&self, key: &[u8]) -> PageNo {
        let mut node = &*self.root;
        loop {
            let i = node.keys.rank(key, true).saturating_sub(1);
            match &node.below {
                Below::Leaves(pages) => return pages[i],
                Below::Nodes(nodes) => node = &nodes[i],
            }
        }
    }

    /// The leaf whose anchor is the last below `anchor`; the first leaf if there is none.
    pub fn before(&self, anchor: &[u8]) -> PageNo {
        let mut node = &*self.root;
        loop {
            let i = node.keys.rank(anchor, false).saturating_sub(1);
            match &node.below {
                Below::Leaves(pages) => return pages[i],
                Below::Nodes(nodes) => node = &nodes[i],
            }
        }
    }

    /// The first anchor above `key`.
    pub fn after(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut node = &*self.root;
        let mut after = None;
        loop {
            let rank = node.keys.rank(key, true);
            if rank < node.len() {
                after = Some(node.keys.get(rank));
            }
            match &node.below {
                Below::Leaves(_) => return after.map(<[u8]>::to_vec),
                Below::Nodes(nodes) => node = &nodes[rank.saturating_sub(1)],
            }
        }
    }

    /// The last leaf.
    pub fn last(&self) -> PageNo {
        let mut node = &*self.root;
        loop {
            match &node.below {
                Below::Leaves(pages) => return pages[pages.len() - 1],
                Below::Nodes(nodes) => node = &nodes[nodes.len() - 1],
            }
        }
    }

    /// Puts `anchor` at `page`, replacing where it was.
    pub fn set(&mut self, anchor: &[u8], page: PageNo) {
        if let Some(right) = Arc::make_mut(&mut self.root).set(anchor, page) {
            let mut keys = Keys::default();
            keys.push(self.root.keys.get(0));
            keys.push(right.keys.get(0));
            keys.index(0);
            self.root = Arc::new(Node { keys, below: Below::Nodes(vec![self.root.clone(), right]) });
        }
    }

    /// Takes `anchor` out.
    pub fn remove(&mut self, anchor: &[u8]) {
        Arc::make_mut(&mut self.root).remove(anchor);
        while let Below::Nodes(nodes) = &self.root.below
            && nodes.len() == 1
        {
            self.root = nodes[0].clone();
        }
    }

    /// All leaves in key order.
    pub fn pages(&self) -> Vec<PageNo> {
        let mut pages = Vec::new();
        self.root.pages(&mut pages);
        pages
    }

    /// Bytes of DRAM in use.
    pub fn memory_bytes(&self) -> u64 {
        self.root.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::ops::Bound;

    fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
        let start: &[u8] = [&b""[..], b"common", b"common prefix of many", b"\xff\xff"][rng.usize(..4)];
        let mut key = start.to_vec();
        key.extend((0..rng.usize(1..12)).map(|_| [0, 1, b'a', 0xff][rng.usize(..4)]));
        key
    }

    fn check(tree: &Tree, model: &BTreeMap<Vec<u8>, PageNo>, rng: &mut fastrand::Rng) {
        assert_eq!(tree.pages(), model.values().copied().collect::<Vec<_>>());
        assert_eq!(Some(&tree.last()), model.values().next_back());
        let some = model.keys().nth(rng.usize(..model.len())).cloned();
        for key in (0..20).map(|_| random_key(rng)).chain(some) {
            let floor = model.range(..=key.clone()).next_back().map(|(_, page)| *page);
            assert_eq!(Some(tree.floor(&key)), floor, "floor of {key:?}");
            // Nothing is before the first leaf; the tree then names that.
            let before =
                model.range(..key.clone()).next_back().or(model.iter().next()).map(|(_, page)| *page);
            assert_eq!(Some(tree.before(&key)), before, "before {key:?}");
            let after = model.range::<[u8], _>((Bound::Excluded(key.as_slice()), Bound::Unbounded)).next();
            assert_eq!(tree.after(&key).as_ref(), after.map(|(anchor, _)| anchor), "after {key:?}");
        }
    }

    #[test]
    fn the_tree_is_the_sorted_map_through_growth_and_decay() {
        let mut rng = fastrand::Rng::with_seed(11);
        let mut model = BTreeMap::from([(Vec::new(), 1)]);
        let mut tree = Tree::build([(&b""[..], 1)]);
        let frozen = tree.clone();
        for (adds, steps) in [(9, 9000), (5, 2000), (1, 14_000)] {
            for step in 0..steps {
                let key = random_key(&mut rng);
                if rng.u32(..10) < adds {
                    let page = rng.u64(1..1 << 40);
                    tree.set(&key, page);
                    model.insert(key, page);
                } else if let Some(key) = model.range(key..).next().map(|(key, _)| key.clone()) {
                    tree.remove(&key);
                    model.remove(&key);
                }
                if step % 100 == 0 {
                    check(&tree, &model, &mut rng);
                }
            }
        }
        let rest: Vec<_> = model.keys().skip(1).cloned().collect();
        for key in rest {
            tree.remove(&key);
            model.remove(&key);
        }
        check(&tree, &model, &mut rng);
        assert!(tree.memory_bytes() < 4096, "an emptied tree is small");
        assert_eq!(frozen.pages(), [1], "an older root is as it was");
    }

    #[test]
    fn a_built_tree_finds_what_an_updated_one_finds() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut model = BTreeMap::from([(Vec::new(), 1)]);
        for page in 2..5000 {
            model.insert(random_key(&mut rng), page);
        }
        let tree = Tree::build(model.iter().map(|(anchor, page)| (anchor.as_slice(), *page)));
        for _ in 0..50 {
            check(&tree, &model, &mut rng);
        }
    }

    #[test]
    fn heads_sort_like_bytes() {
        assert!(head(b"") < head(b"\x00\x01") && head(b"ab") < head(b"abc") && head(b"abc") < head(b"b"));
        assert_eq!(head(b"12345678"), head(b"123456789"));
    }
}
