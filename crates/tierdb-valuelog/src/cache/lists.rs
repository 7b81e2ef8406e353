//! The two lists of a replacement policy and the chains of scan ranges, all under one latch that readers
//! never take.
//!
//! Links are indices of slots. A slot is in at most one list and in at most one chain; a slot in a chain is
//! in a list.

use super::policy::Ghost;
use super::table::{NONE, SEGMENTS, locate, segment_len};

/// Which list: the one where copies wait for a second read, or the one of those that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Inactive,
    Active,
}

/// Most members that are handed out for rewriting as one chain.
pub(super) const MAX_CHAIN: usize = 512;
/// About the most bytes of them.
const MAX_CHAIN_BYTES: u64 = 1 << 20;

/// A slot's links.
#[derive(Clone)]
pub(super) struct Node {
    newer: u32,
    older: u32,
    before: u32,
    after: u32,
    /// Bytes of the copy, or zero while the slot is in no list.
    cost: u32,
    active: bool,
    /// It was in the active list since it came.
    proven: bool,
    /// A chain lost a member next to this one, and was not handed out yet.
    broken: bool,
}

/// Newest at the head.
struct List {
    head: u32,
    tail: u32,
    bytes: u64,
}

/// Lists and chains.
pub(super) struct Lists {
    nodes: Vec<Box<[Node]>>,
    inactive: List,
    active: List,
    count: usize,
    /// Slots whose nodes are `broken`, as far as they fit.
    broken: Vec<u32>,
    pub ghost: Ghost,
}

const MAX_BROKEN: usize = 64;

impl Lists {
    pub fn new() -> Self {
        let empty = || List { head: NONE, tail: NONE, bytes: 0 };
        Lists {
            nodes: Vec::with_capacity(SEGMENTS),
            inactive: empty(),
            active: empty(),
            count: 0,
            broken: Vec::with_capacity(MAX_BROKEN),
            ghost: Ghost::default(),
        }
    }

    /// Bytes on the heap, except for nodes and the ghost, which are counted as they are added.
    pub fn heap_bytes() -> u64 {
        super::heap_bytes(SEGMENTS * size_of::<Box<[Node]>>())
            + super::heap_bytes(MAX_BROKEN * size_of::<u32>())
    }

    /// How many slots are in the lists.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the copies in a list.
    pub fn bytes(&self, which: Which) -> u64 {
        self.list(which).bytes
    }

    /// The slot longest in a list.
    pub fn oldest(&self, which: Which) -> Option<u32> {
        some(self.list(which).tail)
    }

    /// Whether a slot is in a list.
    pub fn is_linked(&self, index: u32) -> bool {
        let (segment, at) = locate(index);
        self.nodes.get(segment).is_some_and(|nodes| nodes[at].cost != 0)
    }

    /// Puts a slot at the head of a list, out of the one it may be in. `cost` is not zero.
    pub fn link(&mut self, which: Which, index: u32, cost: u32) {
        while self.nodes.len() <= locate(index).0 {
            let node = Node {
                newer: NONE,
                older: NONE,
                before: NONE,
                after: NONE,
                cost: 0,
                active: false,
                proven: false,
                broken: false,
            };
            self.nodes.push(vec![node; segment_len(self.nodes.len())].into());
        }
        self.unlink(index);
        let head = std::mem::replace(&mut self.list_mut(which).head, index);
        let node = self.node(index);
        (node.newer, node.older, node.cost, node.active) = (NONE, head, cost, which == Which::Active);
        node.proven |= node.active;
        match head {
            NONE => self.list_mut(which).tail = index,
            head => self.node(head).newer = index,
        }
        self.list_mut(which).bytes += u64::from(cost);
        self.count += 1;
    }

    /// Whether a slot was in the active list since it came.
    pub fn is_proven(&mut self, index: u32) -> bool {
        self.node(index).proven
    }

    /// Moves a slot to the head of a list.
    pub fn relink(&mut self, which: Which, index: u32) {
        let cost = self.node(index).cost;
        self.link(which, index, cost);
    }

    /// Takes a slot out of list and chain, if it is in any; its neighbours in the chain become neighbours.
    /// With `breaks`, the chain is one of which a member was evicted.
    pub fn forget(&mut self, index: u32, breaks: bool) {
        if !self.is_linked(index) {
            return;
        }
        let node = self.node(index);
        let (before, after) = (node.before, node.after);
        let breaks = breaks || node.broken;
        self.cut_before(index);
        self.cut_after(index);
        if let (Some(before), Some(after)) = (some(before), some(after)) {
            self.join(before, after);
        }
        if breaks && let Some(heir) = some(after).or(some(before)) {
            self.node(heir).broken = true;
            if self.broken.len() < MAX_BROKEN {
                self.broken.push(heir);
            }
        }
        self.unlink(index);
        let node = self.node(index);
        (node.proven, node.broken) = (false, false);
    }

    /// Makes `after` follow `before` in a chain. Whatever was between them or beside them goes into chains of
    /// its own.
    pub fn join(&mut self, before: u32, after: u32) {
        if before == after || self.are_joined(before, after) {
            return;
        }
        self.cut_after(before);
        self.cut_before(after);
        self.node(before).after = after;
        self.node(after).before = before;
    }

    /// Whether `after` follows `before` in a chain.
    pub fn are_joined(&self, before: u32, after: u32) -> bool {
        let (segment, at) = locate(before);
        self.nodes[segment][at].after == after
    }

    /// A slot whose chain lost a member and was not handed out yet.
    pub fn next_broken(&mut self) -> Option<u32> {
        while let Some(index) = self.broken.pop() {
            if self.is_linked(index) && self.node(index).broken {
                return Some(index);
            }
        }
        None
    }

    /// The part of a slot's chain around it, in order, no longer chained. Empty if the slot is in no chain.
    pub fn unchain(&mut self, index: u32) -> Vec<u32> {
        let (mut first, mut bytes) = (index, 0);
        for _ in 0..MAX_CHAIN / 2 {
            let before = self.node(first).before;
            if before == NONE || bytes + u64::from(self.node(before).cost) > MAX_CHAIN_BYTES / 2 {
                break;
            }
            first = before;
            bytes += u64::from(self.node(first).cost);
        }
        self.cut_before(first);
        let mut members = Vec::new();
        let (mut next, mut bytes) = (first, 0);
        while next != NONE && members.len() < MAX_CHAIN && bytes < MAX_CHAIN_BYTES {
            let node = self.node(next);
            node.broken = false;
            bytes += u64::from(node.cost);
            let after = node.after;
            self.cut_after(next);
            members.push(next);
            next = after;
        }
        if members.len() < 2 { Vec::new() } else { members }
    }

    /// Checks every link, and returns all slots in lists, active ones last, oldest first.
    #[cfg(test)]
    pub fn audit(&mut self) -> Vec<u32> {
        let mut all = Vec::new();
        for which in [Which::Inactive, Which::Active] {
            let (mut next, mut newer, mut bytes) = (self.list(which).head, NONE, 0);
            let mut indices = Vec::new();
            while next != NONE {
                let node = self.node(next).clone();
                assert_eq!((node.newer, node.active), (newer, which == Which::Active));
                assert_ne!(node.cost, 0);
                bytes += u64::from(node.cost);
                indices.push(next);
                (newer, next) = (next, node.older);
            }
            assert_eq!((self.list(which).tail, self.list(which).bytes), (newer, bytes));
            all.extend(indices.into_iter().rev());
        }
        assert_eq!(all.len(), self.count);
        for &index in &all {
            let node = self.node(index).clone();
            assert!(
                node.before == NONE || self.is_linked(node.before) && self.node(node.before).after == index
            );
            assert!(
                node.after == NONE || self.is_linked(node.after) && self.node(node.after).before == index
            );
        }
        all
    }

    fn cut_after(&mut self, index: u32) {
        let after = std::mem::replace(&mut self.node(index).after, NONE);
        if after != NONE {
            self.node(after).before = NONE;
        }
    }

    fn cut_before(&mut self, index: u32) {
        let before = std::mem::replace(&mut self.node(index).before, NONE);
        if before != NONE {
            self.node(before).after = NONE;
        }
    }

    fn unlink(&mut self, index: u32) {
        let node = self.node(index);
        if node.cost == 0 {
            return;
        }
        let (newer, older, cost) = (node.newer, node.older, std::mem::take(&mut node.cost));
        let which = if node.active { Which::Active } else { Which::Inactive };
        match newer {
            NONE => self.list_mut(which).head = older,
            newer => self.node(newer).older = older,
        }
        match older {
            NONE => self.list_mut(which).tail = newer,
            older => self.node(older).newer = newer,
        }
        self.list_mut(which).bytes -= u64::from(cost);
        self.count -= 1;
    }

    fn list(&self, which: Which) -> &List {
        match which {
            Which::Inactive => &self.inactive,
            Which::Active => &self.active,
        }
    }

    fn list_mut(&mut self, which: Which) -> &mut List {
        match which {
            Which::Inactive => &mut self.inactive,
            Which::Active => &mut self.active,
        }
    }

    fn node(&mut self, index: u32) -> &mut Node {
        let (segment, at) = locate(index);
        &mut self.nodes[segment][at]
    }
}

fn some(index: u32) -> Option<u32> {
    (index != NONE).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_broken_and_is_free_tells_of_no_chain() {
        let mut lists = Lists::new();
        (0..4).for_each(|index| lists.link(Which::Inactive, index, 1));
        lists.join(0, 1);
        lists.forget(0, true);
        lists.forget(1, false);
        lists.link(Which::Inactive, 1, 1);
        lists.join(1, 2);
        lists.join(2, 3);
        assert_eq!(lists.next_broken(), None, "the chain that was broken is gone");
        lists.audit();
    }
}
