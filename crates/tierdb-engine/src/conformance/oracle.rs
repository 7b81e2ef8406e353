//! What a store may hold after a crash.
//!
//! A driver tells the oracle of each write before it calls the engine and when the call has returned. At
//! any moment a clone of the oracle can be asked whether the content of a recovered store is allowed:
//!
//! * a write that returned as `Durable`, or before a `sync` that returned, is there;
//! * a write that has not returned is there as a whole or not at all;
//! * a write is there only with all writes that had returned before it was called: what is there is a
//!   prefix of the history, never one with a hole.
//!
//! ```
//! use tierdb_engine::conformance::Oracle;
//! use tierdb_engine::{Durability, Engine, ModelEngine};
//!
//! let (engine, mut oracle) = (ModelEngine::new(), Oracle::new());
//! let ticket = oracle.put(b"k", b"v", Durability::Durable);
//! // A crash here may leave the key with or without the value ...
//! engine.put(b"k", b"v", Durability::Durable)?;
//! oracle.returned(ticket);
//! // ... and a crash here only with it.
//! let at_the_crash = oracle.clone();
//! at_the_crash.check(&engine).expect("the recovered store holds what it may");
//! # Ok::<(), tierdb_base::Error>(())
//! ```
//!
//! Writes may overlap in time, but not on the same key: which of two such writes came last is not known
//! here. Drivers with several threads give each thread keys of its own.

use super::values::show;
use super::{Checked, Unexpected, ensure, fail};
use crate::batch::{Op, WriteBatch};
use crate::engine::{Durability, Engine, KeyRange};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tierdb_base::hex::printable;

pub(super) type Bytes = Arc<[u8]>;
pub(super) type Map = BTreeMap<Bytes, Bytes>;

/// New values of keys, each key once; `None` where the key is removed.
type Change = Arc<[(Bytes, Option<Bytes>)]>;

/// Stands for a call from [`Oracle::put`] and the like until [`Oracle::returned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Ticket(u64);

/// Tracks what was written, and says what a store may hold after a crash. Cheap to clone.
#[derive(Clone, Default)]
pub struct Oracle {
    /// What every allowed state has, apart from what `pending` changes.
    certain: Arc<Map>,
    /// What readers see if there is no crash.
    visible: Arc<Map>,
    /// Every key ever written.
    universe: Arc<BTreeSet<Bytes>>,
    /// Calls in flight, and those that have returned and may still be lost; in the order of the calls.
    pending: Vec<Pending>,
    /// Rises with each call and each return.
    clock: u64,
}

#[derive(Clone)]
struct Pending {
    called: u64,
    /// `IN_FLIGHT` until it has.
    returned: u64,
    kind: Kind,
    /// Whether it must be there: it, or something that was called after it had returned, is known durable.
    required: bool,
    change: Change,
}

const IN_FLIGHT: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Write(Durability),
    Sync,
}

impl Oracle {
    /// An oracle for an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// A put is about to be called.
    pub fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Ticket {
        self.called(vec![(Arc::from(key), Some(Arc::from(value)))], Kind::Write(durability))
    }

    /// A delete is about to be called.
    pub fn delete(&mut self, key: &[u8], durability: Durability) -> Ticket {
        self.called(vec![(Arc::from(key), None)], Kind::Write(durability))
    }

    /// A batch is about to be written.
    pub fn write(&mut self, batch: &WriteBatch, durability: Durability) -> Ticket {
        let mut last: BTreeMap<&[u8], Option<Bytes>> = BTreeMap::new();
        for op in batch.ops() {
            last.insert(
                op.key(),
                match op {
                    Op::Put { value, .. } => Some(Arc::from(value.as_slice())),
                    Op::Delete { .. } => None,
                },
            );
        }
        let change = last.into_iter().map(|(key, value)| (Arc::from(key), value)).collect();
        self.called(change, Kind::Write(durability))
    }

    /// A range of at most 1,048,576 keys is about to be deleted; nothing in it is being written.
    pub fn delete_range(&mut self, range: &KeyRange, durability: Durability) -> Ticket {
        let change = self.visible_in(range).map(|(key, _)| (key.clone(), None)).collect();
        self.called(change, Kind::Write(durability))
    }

    /// A sync (or a close) is about to be called.
    pub fn sync(&mut self) -> Ticket {
        self.called(Vec::new(), Kind::Sync)
    }

    fn called(&mut self, change: Vec<(Bytes, Option<Bytes>)>, kind: Kind) -> Ticket {
        for other in self.pending.iter().filter(|other| other.returned == IN_FLIGHT) {
            let overlap = other.change.iter().find(|(key, _)| change.iter().any(|(new, _)| new == key));
            if let Some((key, _)) = overlap {
                panic!("two writes of key {} overlap: the oracle cannot tell which is last", printable(key));
            }
        }
        for (key, _) in &change {
            if !self.universe.contains(key) {
                Arc::make_mut(&mut self.universe).insert(key.clone());
            }
        }
        self.clock += 1;
        self.pending.push(Pending {
            called: self.clock,
            returned: IN_FLIGHT,
            kind,
            required: false,
            change: change.into(),
        });
        Ticket(self.clock)
    }

    fn find(&mut self, ticket: Ticket) -> usize {
        let found = self.pending.binary_search_by_key(&ticket.0, |pending| pending.called);
        found.expect("a ticket is used once")
    }

    /// The call has returned without an error.
    ///
    /// # Panics
    /// If it had returned before.
    pub fn returned(&mut self, ticket: Ticket) {
        let at = self.find(ticket);
        assert_eq!(self.pending[at].returned, IN_FLIGHT, "a call returns once");
        self.clock += 1;
        self.pending[at].returned = self.clock;
        let change = self.pending[at].change.clone();
        apply(&mut self.visible, &change);
        match self.pending[at].kind {
            Kind::Write(Durability::Grouped) => {}
            Kind::Write(Durability::Durable) => self.require(at),
            Kind::Sync => {
                self.require(at);
                self.pending.remove(at);
            }
        }
        self.settle();
    }

    /// The call was refused: it has changed nothing (`Invalid`, `NoSpace`, `Poisoned` by an earlier failure).
    ///
    /// After an error that leaves the outcome open, call neither this nor [`Oracle::returned`]: the write may
    /// then be there or not.
    pub fn refused(&mut self, ticket: Ticket) {
        let at = self.find(ticket);
        self.pending.remove(at);
    }

    /// A reader has seen a write that is called with `Durable` and has not returned. It must be there then.
    pub fn seen(&mut self, ticket: Ticket) {
        let at = self.find(ticket);
        self.require(at);
        self.settle();
    }

    /// Marks a call as certain, and with it all that had returned before it was called.
    fn require(&mut self, at: usize) {
        self.pending[at].required = true;
        let called = self.pending[at].called;
        for earlier in &mut self.pending[..at] {
            earlier.required |= earlier.returned < called;
        }
    }

    /// Moves what is certain out of the pending calls. Calls on the same key do not overlap, and an earlier
    /// one is certain if a later one is, so their order is kept.
    fn settle(&mut self) {
        let certain = &mut self.certain;
        self.pending.retain(|pending| {
            let settled = pending.required && pending.returned != IN_FLIGHT;
            if settled {
                apply(certain, &pending.change);
            }
            !settled
        });
    }

    /// What readers see while there is no crash.
    pub fn visible(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.visible.iter().map(|(key, value)| (&**key, &**value))
    }

    /// What readers see of `range`.
    pub(super) fn visible_in(&self, range: &KeyRange) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.visible.iter().filter(|(key, _)| range.contains(key))
    }

    /// A share of what readers see now.
    pub(super) fn view(&self) -> Arc<Map> {
        self.visible.clone()
    }

    /// Whether `engine`, opened after a crash at this moment, holds what it may. Reads everything, forward,
    /// backward and key by key, and returns it.
    ///
    /// # Errors
    /// What is wrong, compared to the allowed state that is closest.
    pub fn check(&self, engine: &dyn Engine) -> Checked<Content> {
        let content = Content::read(engine)?;
        self.check_content(&content)?;
        for key in self.universe.iter() {
            let got = engine.get(key).during(|| format!("get of {}", printable(key)))?;
            let scanned = content.get(key);
            ensure!(
                got.as_deref() == scanned,
                "key {}: get gives {}, a scan {}",
                printable(key),
                show(got.as_deref()),
                show(scanned)
            );
        }
        Ok(content)
    }

    /// Whether a store may hold `content` after a crash at this moment.
    ///
    /// # Errors
    /// What is wrong, compared to the allowed state that is closest.
    pub fn check_content(&self, content: &Content) -> Checked {
        let mut search = Search::new(&self.certain, &self.pending, content);
        if search.run(0, u64::MAX) { Ok(()) } else { Err(search.explain().into()) }
    }

    /// Goes on from what a recovered store was found to hold.
    pub fn adopt(&mut self, content: &Content) {
        let map: Map =
            content.entries.iter().map(|(key, value)| (Arc::from(&key[..]), Arc::from(&value[..]))).collect();
        self.pending.clear();
        self.certain = Arc::new(map.clone());
        self.visible = Arc::new(map);
    }
}

fn apply(map: &mut Arc<Map>, change: &[(Bytes, Option<Bytes>)]) {
    if change.is_empty() {
        return;
    }
    let map = Arc::make_mut(map);
    for (key, value) in change {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

/// All that a store holds, in key order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    entries: Vec<(Vec<u8>, Value)>,
}

impl Content {
    /// Reads `engine` from end to end, forward and backward.
    ///
    /// # Errors
    /// If keys are out of order, or the two directions differ.
    pub fn read(engine: &dyn Engine) -> Checked<Content> {
        let mut cursor = engine.cursor(KeyRange::all(), None).during(|| "cursor over all keys".into())?;
        let mut entries: Vec<(Vec<u8>, Value)> = Vec::new();
        while let Some(entry) = cursor.next().during(|| format!("scan after {} entries", entries.len()))? {
            if let Some((last, _)) = entries.last()
                && *last >= entry.0
            {
                fail!("scan: key {} comes after {}", printable(&entry.0), printable(last));
            }
            entries.push(entry);
        }
        for (key, value) in entries.iter().rev() {
            let back = cursor.prev().during(|| format!("scan backward at {}", printable(key)))?;
            if back.as_ref().is_none_or(|(back, found)| back != key || found != value) {
                let back = back.map_or("the start".into(), |(back, found)| {
                    format!("{} with {}", printable(&back), show(Some(&found)))
                });
                fail!(
                    "scan backward gives {back}, where forward it was {} with {}",
                    printable(key),
                    show(Some(value))
                );
            }
        }
        if let Some((key, _)) = cursor.prev().during(|| "scan backward at the start".into())? {
            fail!("scan backward gives {}, which the scan forward did not", printable(&key));
        }
        Ok(Content { entries })
    }

    /// The entries, in key order.
    pub fn entries(&self) -> &[(Vec<u8>, Value)] {
        &self.entries
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let at = self.entries.binary_search_by(|(entry, _)| entry.as_slice().cmp(key)).ok()?;
        Some(&self.entries[at].1)
    }
}

impl FromIterator<(Vec<u8>, Vec<u8>)> for Content {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, Vec<u8>)>>(entries: I) -> Self {
        let sorted: BTreeMap<_, _> = entries.into_iter().collect();
        Content { entries: sorted.into_iter().map(|(key, value)| (key, Value::from(value))).collect() }
    }
}

/// Looks for pending calls which, added to the certain state, give what was found.
///
/// The number of keys that differ is kept as calls are added and taken away, so a step costs only the
/// keys of its call. Calls that follow one another leave one choice (how many are there); only calls
/// that overlap multiply.
struct Search<'a> {
    certain: &'a Map,
    pending: &'a [Pending],
    content: &'a Content,
    /// Values that the chosen calls have given.
    changed: BTreeMap<&'a [u8], Option<&'a [u8]>>,
    /// Keys whose value is not the one found.
    differ: usize,
    chosen: Vec<usize>,
    /// The fewest differing keys of any allowed state, and the calls chosen for it.
    closest: (usize, Vec<usize>),
}

impl<'a> Search<'a> {
    fn new(certain: &'a Map, pending: &'a [Pending], content: &'a Content) -> Self {
        let mut differ = 0;
        let mut found = content.entries.iter().peekable();
        for (key, value) in certain {
            while found.next_if(|(other, _)| other[..] < key[..]).is_some() {
                differ += 1;
            }
            let same = found
                .next_if(|(other, _)| other[..] == key[..])
                .is_some_and(|(_, other)| other[..] == value[..]);
            differ += usize::from(!same);
        }
        differ += found.count();
        Search {
            certain,
            pending,
            content,
            changed: BTreeMap::new(),
            differ,
            chosen: Vec::new(),
            closest: (usize::MAX, Vec::new()),
        }
    }

    /// Decides about the calls from `at` on. `hole` is when the first call that was left out had returned:
    /// what was called later cannot be there.
    fn run(&mut self, at: usize, hole: u64) -> bool {
        match self.pending.get(at) {
            Some(call) if call.called < hole => {
                let undo = self.add(&call.change);
                self.chosen.push(at);
                if self.run(at + 1, hole) {
                    return true;
                }
                self.chosen.pop();
                self.take_back(&call.change, undo);
                !call.required && self.run(at + 1, hole.min(call.returned))
            }
            _ => {
                if self.pending[at..].iter().any(|call| call.required) {
                    return false;
                }
                if self.differ < self.closest.0 {
                    self.closest = (self.differ, self.chosen.clone());
                }
                self.differ == 0
            }
        }
    }

    fn now(&self, key: &[u8]) -> Option<&'a [u8]> {
        let (certain, changed) = (self.certain, self.changed.get(key));
        changed.copied().unwrap_or_else(|| certain.get(key).map(|value| &**value))
    }

    fn differs(&self, key: &[u8]) -> usize {
        usize::from(self.now(key) != self.content.get(key))
    }

    fn add(&mut self, change: &'a [(Bytes, Option<Bytes>)]) -> Vec<Option<Option<&'a [u8]>>> {
        let mut undo = Vec::with_capacity(change.len());
        for (key, value) in change {
            self.differ -= self.differs(key);
            undo.push(self.changed.insert(key, value.as_deref()));
            self.differ += self.differs(key);
        }
        undo
    }

    fn take_back(&mut self, change: &'a [(Bytes, Option<Bytes>)], undo: Vec<Option<Option<&'a [u8]>>>) {
        for ((key, _), before) in change.iter().zip(undo) {
            self.differ -= self.differs(key);
            match before {
                Some(value) => self.changed.insert(key, value),
                None => self.changed.remove(&**key),
            };
            self.differ += self.differs(key);
        }
    }

    /// What differs from the closest allowed state.
    fn explain(mut self) -> String {
        let chosen = std::mem::take(&mut self.closest.1);
        self.changed.clear();
        for at in &chosen {
            self.add(&self.pending[*at].change);
        }
        let mut keys: BTreeSet<&[u8]> = self.certain.keys().map(|key| &**key).collect();
        keys.extend(self.changed.keys().copied());
        keys.extend(self.content.entries.iter().map(|(key, _)| key.as_slice()));
        let wrong: Vec<&[u8]> = keys.into_iter().filter(|key| self.differs(key) == 1).collect();
        let mut text = format!(
            "the store holds what no order of its writes gives. Closest is the state with {} of {} pending writes; {} \
             keys differ from it:",
            chosen.len(),
            self.pending.len(),
            wrong.len()
        );
        for key in wrong.iter().take(8) {
            let (found, expected) = (show(self.content.get(key)), show(self.now(key)));
            text.push_str(&format!("\n  {}: found {found}, expected {expected}", printable(key)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Durability::{Durable, Grouped};

    fn content(entries: &[(&str, &str)]) -> Content {
        entries.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    fn allows(oracle: &Oracle, entries: &[(&str, &str)]) -> bool {
        oracle.check_content(&content(entries)).is_ok()
    }

    fn put(oracle: &mut Oracle, key: &str, value: &str, durability: Durability) {
        let ticket = oracle.put(key.as_bytes(), value.as_bytes(), durability);
        oracle.returned(ticket);
    }

    #[test]
    fn a_durable_write_is_there_and_one_in_flight_may_be() {
        let mut oracle = Oracle::new();
        put(&mut oracle, "a", "1", Durable);
        assert!(allows(&oracle, &[("a", "1")]));
        assert!(!allows(&oracle, &[]), "lost");
        assert!(!allows(&oracle, &[("a", "0")]), "changed");
        assert!(!allows(&oracle, &[("a", "1"), ("b", "1")]), "invented");
        let mut batch = WriteBatch::new();
        batch.put("a", "2").expect("put").put("b", "3").expect("put").put("b", "4").expect("put");
        let ticket = oracle.write(&batch, Durable);
        assert!(allows(&oracle, &[("a", "1")]) && allows(&oracle, &[("a", "2"), ("b", "4")]));
        assert!(!allows(&oracle, &[("a", "2")]) && !allows(&oracle, &[("a", "1"), ("b", "4")]), "torn");
        let mut seen = oracle.clone();
        seen.seen(ticket);
        assert!(!allows(&seen, &[("a", "1")]), "a reader saw it");
        let mut refused = oracle.clone();
        refused.refused(ticket);
        assert!(!allows(&refused, &[("a", "2"), ("b", "4")]), "it was refused");
        oracle.returned(ticket);
        assert!(!allows(&oracle, &[("a", "1")]), "it has returned");
        let ticket = oracle.delete_range(&KeyRange::all(), Durable);
        assert!(allows(&oracle, &[]) && !allows(&oracle, &[("a", "2")]));
        oracle.returned(ticket);
        assert!(allows(&oracle, &[]) && !allows(&oracle, &[("a", "2"), ("b", "4")]), "resurrected");
    }

    #[test]
    fn grouped_writes_leave_a_prefix() {
        let mut oracle = Oracle::new();
        put(&mut oracle, "a", "1", Grouped);
        put(&mut oracle, "b", "1", Grouped);
        put(&mut oracle, "a", "2", Grouped);
        let ticket = oracle.put(b"c", b"1", Durable);
        for allowed in [
            &[][..],
            &[("a", "1")],
            &[("a", "1"), ("b", "1")],
            &[("a", "2"), ("b", "1")],
            &[("a", "2"), ("b", "1"), ("c", "1")],
        ] {
            assert!(allows(&oracle, allowed), "{allowed:?}");
        }
        for hole in [&[("b", "1")][..], &[("a", "2")], &[("a", "1"), ("b", "1"), ("c", "1")]] {
            assert!(!allows(&oracle, hole), "{hole:?}");
        }
        let mut synced = oracle.clone();
        let sync = synced.sync();
        put(&mut synced, "d", "1", Grouped);
        synced.returned(sync);
        assert!(!allows(&synced, &[("a", "1"), ("b", "1")]), "a sync keeps what had returned before");
        assert!(allows(&synced, &[("a", "2"), ("b", "1")]), "and not what came later");
        assert!(allows(&synced, &[("a", "2"), ("b", "1"), ("d", "1")]));
        oracle.returned(ticket);
        assert!(allows(&oracle, &[("a", "2"), ("b", "1"), ("c", "1")]));
        assert!(!allows(&oracle, &[("a", "2"), ("b", "1")]), "a durable write keeps those before it");
    }

    #[test]
    fn overlapping_calls_are_free_of_each_other() {
        let mut oracle = Oracle::new();
        let (a, b) = (oracle.put(b"a", b"1", Durable), oracle.put(b"b", b"1", Grouped));
        for allowed in [&[][..], &[("a", "1")], &[("b", "1")], &[("a", "1"), ("b", "1")]] {
            assert!(allows(&oracle, allowed), "{allowed:?}");
        }
        oracle.returned(b);
        put(&mut oracle, "c", "1", Grouped);
        assert!(!allows(&oracle, &[("a", "1"), ("c", "1")]), "c came after b had returned");
        oracle.returned(a);
        assert!(allows(&oracle, &[("a", "1")]) && allows(&oracle, &[("a", "1"), ("b", "1"), ("c", "1")]));
        assert!(!allows(&oracle, &[("b", "1")]));
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn overlapping_writes_of_one_key_are_refused() {
        let mut oracle = Oracle::new();
        let _first = oracle.put(b"a", b"1", Durable);
        let _second = oracle.delete(b"a", Durable);
    }

    #[test]
    fn a_failure_names_the_key() {
        let mut oracle = Oracle::new();
        put(&mut oracle, "lost-key", "1", Durable);
        let failure = oracle.check_content(&content(&[])).expect_err("lost");
        assert!(failure.to_string().contains("lost-key: found nothing, expected"), "{failure}");
    }
}
