//! Batches, and ranges that are removed as one.
//!
//! A batch locks the partitions of its keys, in order; its records are staged with one seqno, and their commit
//! words, and those of slots that it frees, are published as one group ([`crate::commit`]).
//!
//! A range is removed by one record: a range tombstone. Versions on the fast tier leave the index at once, and
//! their slots are retired like those of replaced versions; versions in tables are hidden by the tombstone until
//! the tables have been rewritten, and then it goes. So it takes no space that depends on the number of keys.
//!
//! | crash after | on open |
//! |---|---|
//! | the range tombstone staged | nothing is removed |
//! | its word | older versions in its range on the fast tier are freed, those in tables stay hidden |
//! | tables rewritten | as above |
//! | its word freed | nothing older is left in its range |

use crate::commit::REDO_BYTES;
use crate::core::{Core, hash_of};
use crate::heap::{FREE_BYTES, NewRecord, Written};
use crate::key::Key;
use crate::partition::{Entry, Partition, RangeTombstone, State, bounds};
use crate::record::Kind;
use crate::room::Need;
use crate::slabs::Purpose;
use crate::write::{Tried, Verdict};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{MAX_KEY_BYTES, Result, mutant};
use tierdb_device::Dir;
use tierdb_engine::{Durability, KeyRange, Op, WriteBatch};
use tierdb_pmem::{Admitted, Pool, Stage};

/// The last write of each key.
type Ops<'b> = BTreeMap<&'b [u8], Option<&'b [u8]>>;
/// A key, and its new value.
type KeyOp<'b> = (&'b [u8], Option<&'b [u8]>);

/// What is to become of a key's newest version on the fast tier.
enum Effect {
    /// Its slot is freed with the group, and the key leaves the index.
    Forget(Entry),
    /// Another version takes its place: a tombstone, or a value.
    Replace { written: Written, tombstone: bool, before: Option<Entry> },
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Applies `batch`.
    pub fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        let _changing = self.gate.change()?;
        self.counters.batches.add(1);
        let mut ops = Ops::new();
        for op in batch.ops() {
            match op {
                Op::Put { key, value } => ops.insert(key, Some(value)),
                Op::Delete { key } => ops.insert(key, None),
            };
        }
        let lens = ops.iter().map(|(key, value)| (key.len(), value.map_or(0, <[u8]>::len)));
        let bytes = self.heap.admit_all(lens) + ops.len() as u64 * (64 + self.admit_doubt_bytes());
        self.counters.batch_keys.add(ops.len() as u64);
        self.reserve_seqnos();
        self.until_done(|| {
            let admitted = self.heap.admit(bytes)?;
            self.try_write(&ops, durability, admitted)
        })?;
        self.counters.user_bytes.add(batch.bytes() as u64);
        self.after_write(batch.bytes());
        Ok(())
    }

    fn try_write(&self, ops: &Ops<'_>, durability: Durability, admitted: Admitted<'_>) -> Result<Tried> {
        let (parts, lsn) = {
            let router = self.router.read();
            let mut numbers: Vec<usize> = ops.keys().map(|key| router.number_of(key)).collect();
            numbers.dedup();
            let parts: Vec<Arc<Partition<D>>> =
                numbers.iter().map(|number| router.parts[*number].clone()).collect();
            let mut guards: Vec<_> = parts.iter().map(|part| part.write()).collect();
            let mut by_part: Vec<Vec<KeyOp<'_>>> = vec![Vec::new(); parts.len()];
            for (key, value) in ops {
                if let Ok(place) = numbers.binary_search(&router.number_of(key)) {
                    by_part[place].push((key, *value));
                }
            }
            let mut states: Vec<&mut State<D>> = guards.iter_mut().map(|state| &mut **state).collect();
            if let Tried::NoRoom(need) = self.change_all(&mut states, &by_part)? {
                return Ok(Tried::NoRoom(need));
            }
            let lsn = self.heap.pool.lsn();
            if self.ordered && durability == Durability::Durable {
                for (part, ops) in parts.iter().zip(&by_part) {
                    ops.iter().for_each(|(key, _)| part.note_unsettled(hash_of(key), lsn));
                }
            }
            drop(guards);
            (parts, lsn)
        };
        self.end_write(&parts, lsn, durability, admitted)
    }

    fn change_all(&self, states: &mut [&mut State<D>], ops: &[Vec<KeyOp<'_>>]) -> Result<Tried> {
        let heap = &self.heap;
        let of_part = |(state, ops): (&&mut State<D>, &Vec<KeyOp<'_>>)| -> Vec<Verdict> {
            ops.iter().map(|(key, value)| self.verdict(state, key, value.is_none())).collect()
        };
        let verdicts: Vec<Vec<Verdict>> = states.iter().zip(ops).map(of_part).collect();
        let in_flight = self.clock.begin();
        let seqno = in_flight.seqno();
        let newest = self.snapshots.newest();
        let mut stage = Stage::new(&*heap.pool);
        states.iter().for_each(|state| state.stage_retired(heap, &mut stage));
        let mut effects: Vec<(usize, &[u8], Effect)> = Vec::new();
        let mut changes = Vec::new();
        let (mut room, mut missing, mut need) = (true, 0, Need::default());
        for (number, (ops, verdicts)) in ops.iter().zip(verdicts).enumerate() {
            for ((key, value), verdict) in ops.iter().zip(verdicts) {
                let before = match verdict {
                    Verdict::Nothing => continue,
                    Verdict::Forget(entry) => {
                        let word_at = heap.slabs.word_at(entry.at())?;
                        changes.push((word_at, heap.slabs.free_word(word_at)));
                        effects.push((number, key, Effect::Forget(entry)));
                        continue;
                    }
                    Verdict::Replace(before) => before,
                };
                let (kind, purpose) = match value {
                    Some(_) => (Kind::Value, Purpose::Value),
                    None => (Kind::Tombstone, Purpose::Removal),
                };
                let record = NewRecord { kind, seqno, key, value: value.unwrap_or_default() };
                need.add(key.len(), record.value.len(), purpose, heap.slabs.largest());
                let written = if room { heap.write(&mut stage, &record, purpose) } else { None };
                let Some(written) = written else {
                    // Nothing more is taken, and what all of it needs is counted to the end.
                    room = false;
                    missing += 1;
                    continue;
                };
                changes.push(written.commit);
                changes.extend(before.and_then(|entry| heap.free_if_unreadable(entry)));
                effects.push((number, key, Effect::Replace { written, tombstone: value.is_none(), before }));
            }
        }
        let redo = if room { heap.stage_redo(&mut stage, &changes) } else { None };
        let Some(redo) = redo else {
            for (_, _, effect) in effects {
                if let Effect::Replace { written, .. } = effect {
                    heap.give(&written.slots);
                }
            }
            let count = changes.len() + missing;
            need.add_redo(count, heap.slabs.largest());
            return Ok(Tried::NoRoom(need));
        };
        heap.install(stage, redo, &changes, &self.commits);
        states.iter_mut().for_each(|state| state.release_retired(heap));
        for (number, key, effect) in effects {
            let state = &mut *states[number];
            match effect {
                Effect::Forget(entry) => {
                    state.remove(key);
                    state.retire_freed(heap, key, entry, seqno, newest);
                }
                Effect::Replace { written, tombstone, before } => {
                    let long = !written.slots.parts.is_empty();
                    state.insert(key, Entry::new(written.slots.at, seqno, tombstone, long));
                    if let Some(entry) = before {
                        state.retire(heap, key, entry, seqno, newest);
                    }
                }
            }
        }
        Ok(Tried::Done)
    }

    /// Removes the keys of `range`.
    pub fn remove_range(&self, range: &KeyRange, durability: Durability) -> Result<()> {
        self.reserve_seqnos();
        let range = &cut(range);
        let bytes = encode_range(range);
        self.until_done(|| {
            let bytes_logged = self.heap.admit_bytes(0, bytes.len()) + self.admit_stuck_bytes(range);
            let admitted = self.heap.admit(bytes_logged)?;
            self.try_remove_range(range, &bytes, durability, admitted)
        })?;
        self.after_write(bytes.len());
        self.work.want_cleaning();
        Ok(())
    }

    /// Bytes that removing `range` flushes more, for versions in it that damage has made unreadable.
    fn admit_stuck_bytes(&self, range: &KeyRange) -> u64 {
        if !self.doubtful.load(Ordering::Relaxed) {
            return 0;
        }
        let stuck_in = |part: &Arc<Partition<D>>| {
            let state = part.read();
            let inside = bounds(range).into_iter().flat_map(|bounds| state.index.range(bounds));
            inside.filter(|(_, entry)| entry.is_stuck()).count()
        };
        let stuck: usize = self.router.read().parts.iter().map(stuck_in).sum();
        self.heap.admit_bytes(0, stuck * REDO_BYTES) + stuck as u64 * FREE_BYTES
    }

    fn try_remove_range(
        &self,
        range: &KeyRange,
        bytes: &[u8],
        durability: Durability,
        admitted: Admitted<'_>,
    ) -> Result<Tried> {
        let heap = &self.heap;
        let (parts, lsn) = {
            let router = self.router.read();
            // All of them: it is rare, and which ones it concerns is not worth knowing.
            let mut states: Vec<_> = router.parts.iter().map(|part| part.write()).collect();
            let in_flight = self.clock.begin();
            let seqno = in_flight.seqno();
            let newest = self.snapshots.newest();
            let mut stage = Stage::new(&*heap.pool);
            states.iter().for_each(|state| state.stage_retired(heap, &mut stage));
            let record = NewRecord { kind: Kind::RangeTombstone, seqno, key: &[], value: bytes };
            let no_room = |changes: usize| {
                let mut need = Need::default();
                need.add(0, bytes.len(), Purpose::Removal, heap.slabs.largest());
                need.add_redo(changes, heap.slabs.largest());
                Ok(Tried::NoRoom(need))
            };
            let written = heap.write(&mut stage, &record, Purpose::Removal);
            let Some(written) = written else { return no_room(1) };
            let mut changes = vec![written.commit];
            let inside = |state: &State<D>| -> Vec<(Key, Entry)> {
                let Some(bounds) = bounds(range) else { return Vec::new() };
                state.index.range(bounds).map(|(key, entry)| (key.into(), entry)).collect()
            };
            let removed: Vec<_> = states.iter().map(|state| inside(state)).collect();
            let unreadable = |(_, entry): &(Key, Entry)| heap.free_if_unreadable(*entry);
            changes.extend(removed.iter().flatten().filter_map(unreadable));
            let Some(redo) = heap.stage_redo(&mut stage, &changes) else {
                heap.give(&written.slots);
                return no_room(changes.len());
            };
            heap.install(stage, redo, &changes, &self.commits);
            states.iter_mut().for_each(|state| state.release_retired(heap));
            let tombstone = Arc::new(RangeTombstone { seqno, range: range.clone(), slots: written.slots });
            for (state, removed) in states.iter_mut().zip(removed) {
                if mutant::keep("tombstone") {
                    Arc::make_mut(&mut state.ranges).push(tombstone.clone());
                }
                for (key, entry) in removed.into_iter().filter(|_| mutant::keep("tombstone")) {
                    state.remove(&key);
                    state.retire(heap, &key, entry, seqno, newest);
                }
            }
            let lsn = heap.pool.lsn();
            if self.ordered && durability == Durability::Durable {
                let note = |part: &Arc<Partition<D>>| part.note_unsettled_range(tombstone.clone(), lsn);
                router.parts.iter().for_each(note);
            }
            (router.parts.clone(), lsn)
        };
        self.end_write(&parts, lsn, durability, admitted)
    }
}

/// The range of the same keys whose bounds are hardly longer than a key may be: no key tells a longer bound from its first bytes, as
/// long as these are more than a key has. So a tombstone takes a bounded room.
fn cut(range: &KeyRange) -> KeyRange {
    let cut =
        |bound: &Bound<Vec<u8>>| bound.as_ref().map(|key| key[..key.len().min(MAX_KEY_BYTES + 1)].to_vec());
    KeyRange { start: cut(&range.start), end: cut(&range.end) }
}

const UNBOUNDED: u8 = 0;
const INCLUDED: u8 = 1;
const EXCLUDED: u8 = 2;

/// A range as its tombstone stores it: for each bound a byte of its kind, the length of its key and the key.
fn encode_range(range: &KeyRange) -> Vec<u8> {
    let mut bytes = Vec::new();
    for bound in [&range.start, &range.end] {
        let (kind, key): (u8, &[u8]) = match bound {
            Bound::Unbounded => (UNBOUNDED, &[]),
            Bound::Included(key) => (INCLUDED, key),
            Bound::Excluded(key) => (EXCLUDED, key),
        };
        bytes.push(kind);
        bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(key);
    }
    bytes
}

/// The range that a tombstone stores.
pub fn decode_range(bytes: &[u8]) -> Option<KeyRange> {
    fn bound(bytes: &[u8]) -> Option<(Bound<Vec<u8>>, &[u8])> {
        let (kind, bytes) = bytes.split_first()?;
        let (len, bytes) = bytes.split_first_chunk::<4>()?;
        let (key, rest) = bytes.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let bound = match (*kind, key.is_empty()) {
            (UNBOUNDED, true) => Bound::Unbounded,
            (INCLUDED, _) => Bound::Included(key.to_vec()),
            (EXCLUDED, _) => Bound::Excluded(key.to_vec()),
            _ => return None,
        };
        Some((bound, rest))
    }
    let (start, rest) = bound(bytes)?;
    let (end, rest) = bound(rest)?;
    rest.is_empty().then_some(KeyRange { start, end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::engine::SlabStore;
    use crate::rig::{self, Store};
    use tierdb_base::ErrorKind;
    use tierdb_device::Meter;
    use tierdb_engine::{Engine, Media};
    use tierdb_log::{LoggedOptions, LoggedPool};

    #[test]
    fn ranges_read_back() {
        let whole = [KeyRange::all(), KeyRange::prefix(b"ab"), KeyRange::half_open("", "z")];
        for range in whole {
            let bytes = encode_range(&range);
            assert_eq!(decode_range(&bytes), Some(range));
            assert_eq!(decode_range(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn a_bound_that_is_cut_parts_the_keys_as_before() {
        let key = |len: usize, last: u8| [vec![7; len - 1], vec![last]].concat();
        let keys =
            [key(1, 7), key(MAX_KEY_BYTES, 6), key(MAX_KEY_BYTES, 7), key(MAX_KEY_BYTES, 8), key(1, 8)];
        let bound = vec![7; 3 * MAX_KEY_BYTES];
        for start in [Bound::Included(bound.clone()), Bound::Excluded(bound.clone()), Bound::Unbounded] {
            for end in [Bound::Included(bound.clone()), Bound::Excluded(bound.clone()), Bound::Unbounded] {
                let range = KeyRange { start: start.clone(), end };
                let cut = cut(&range);
                assert!(
                    encode_range(&cut).len() <= 2 * (MAX_KEY_BYTES + 6),
                    "{} bytes",
                    encode_range(&cut).len()
                );
                for key in &keys {
                    assert_eq!(cut.contains(key), range.contains(key), "a key of {} bytes", key.len());
                }
            }
        }
    }

    #[test]
    fn what_a_range_leaves_to_the_next_write_has_room_in_the_log_before_that_begins() {
        const POOL: u64 = 2 << 20;
        const KEYS: u32 = 4000;
        let world = rig::world(POOL);
        let log = LoggedOptions { log_len: POOL, buffer_bytes: 4096, ..LoggedOptions::new(POOL) };
        let Media { fast_meter, fast_dirs, flash, seed, latch, mode, .. } = rig::media(&world, 1 << 20);
        let fast = world.add_dir("fast");
        let pool = LoggedPool::create(fast.clone(), log, seed, latch.clone(), Meter::new(), None);
        let pool = Arc::new(pool.expect("create"));
        let media =
            Media { pool: pool.clone(), fast_meter, fast_dirs, flash, seed, latch: latch.clone(), mode };
        let options = Options { memory: 4 << 20, ..rig::options(POOL) };
        let store = SlabStore::create(media, options).expect("an empty store");
        // Room for the log, and for no page.
        fast.set_capacity(Some(0));
        let put = |n: u32| store.put(&n.to_be_bytes(), b"value", Durability::Grouped);
        (0..KEYS).for_each(|n| put(n).expect("room"));
        while pool.log_used() < pool.log_capacity() - 18 * 4096 {
            put(KEYS).expect("room");
        }
        let range = KeyRange::half_open([], KEYS.to_be_bytes());
        store.delete_range(&range, Durability::Grouped).expect("room");
        assert_eq!(put(KEYS).map_err(|e| e.kind()), Err(ErrorKind::NoSpace));
        latch.check().expect("nothing has failed");
        fast.set_capacity(None);
        put(KEYS).expect("goes on by itself");
        assert_eq!(store.stats().keys, 1);
    }

    #[test]
    fn many_small_records_are_not_admitted_as_many_slabs() {
        let store = Store::new(4 << 20, Options { slab_bytes: 256 << 10, ..rig::options(4 << 20) });
        let lens = std::iter::repeat_n((10, 100), 1000);
        assert!(store.core().heap.admit_all(lens) < 1000 * 500 + (256 << 10));
        assert_eq!(
            store.core().heap.admit_all([(10, 100)].into_iter()),
            store.core().heap.admit_bytes(10, 100)
        );
    }
}
