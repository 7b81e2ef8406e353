//! What the fast tier holds, as an open finds it: live records, and what damage leaves of the others.
//!
//! | damaged | what is done |
//! |---|---|
//! | one byte of a record's head | it is right again ([`crate::mend`]) |
//! | a record's head, but not its key and seqno as its commit word knows them | its key is *doubtful*: it cannot be read |
//! | a head, and key or seqno | [`crate::lost`]: keys with that hash cannot be read, and nothing can be scanned |
//! | a commit word | if the slot holds a record, its key is doubtful, unless flash or another slot has a version as new; of a table or a range: the store is refused, unless the table is gone |
//! | a class word | the class of which records are found there, or whose slots the parts that records list have; if there is none, and something may be live, the store is refused |
//! | a commit word, and no record | the slot may have held anything: the store is refused, unless it is a part of a live record |

use crate::flash::TableRecord;
use crate::heap::Heap;
use crate::lost::LostSlot;
use crate::mend::Mended;
use crate::record::{Head, Kind};
use crate::slabs::{Commit, Mark};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use tierdb_base::{Result, Seqno};
use tierdb_pmem::Pool;

/// A live record that was found, in its slot.
pub type Found = (u64, Head);

/// A version that may be live and cannot be read, or may not be.
pub struct Doubtful {
    pub key: Vec<u8>,
    /// Its head slot.
    pub at: u64,
    pub version: Version,
}

/// What is known of the seqno of a doubtful version.
#[derive(Clone, Copy)]
pub enum Version {
    /// It is live, and its word has this mark: no older than what flash has.
    Live(Mark),
    /// It has this seqno, if it is live.
    Exact(Seqno),
}

impl Version {
    /// Whether a version written with `seqno` is known to be as new.
    pub fn is_no_newer_than(self, seqno: Seqno) -> bool {
        match self {
            Version::Live(mark) => mark.may_be_from(seqno),
            Version::Exact(own) => seqno >= own,
        }
    }
}

/// Which of two versions comes first: by key, and of a key the newest. Of two copies of one version either will do, so long as it is always
/// the same.
pub fn newest_first(one: (&[u8], Seqno, u64), other: (&[u8], Seqno, u64)) -> std::cmp::Ordering {
    one.0.cmp(other.0).then(other.1.cmp(&one.1)).then(one.2.cmp(&other.2))
}

/// Sorts `records`, the newest first of a key. Most keys differ at their beginning, which is compared in place: what is read for each of the
/// others is not in any cache.
fn sort(records: &mut [Found]) {
    let beginning = |(_, head): &Found| {
        let mut bytes = [0; 16];
        let len = head.key.len().min(bytes.len());
        bytes[..len].copy_from_slice(&head.key[..len]);
        u128::from_be_bytes(bytes)
    };
    records.sort_by_cached_key(beginning);
    let same = records.chunk_by_mut(|one, other| beginning(one) == beginning(other));
    for same in same.filter(|same| same.len() > 1) {
        same.sort_by(|(at, head), (other_at, other)| {
            newest_first((&head.key, head.seqno, *at), (&other.key, other.seqno, *other_at))
        });
    }
}

/// What the scan of slabs found.
#[derive(Default)]
pub struct Scan {
    /// In a sorted run of each thread ([`newest_first`]).
    pub records: Vec<Found>,
    pub doubtful: Vec<Doubtful>,
    /// Live slots with a record of which not even the key is known: found by an earlier open, and now.
    pub lost: Vec<LostSlot>,
    pub newly_lost: Vec<(u64, Mark)>,
    /// Heads with one wrong byte.
    pub mended: Vec<Mended>,
    /// Tables whose record may be live.
    pub tables: Vec<(u64, TableRecord)>,
    /// Slots of which nothing is known.
    pub unknown: Vec<u64>,
}

impl Scan {
    /// Whether every record that names a table was found. Keys that are doubtful, and slots of which the hash of the key is known, are
    /// none: with an empty key, as these records have it, the store is refused.
    pub fn knows_tables(&self) -> bool {
        self.tables.is_empty() && self.unknown.is_empty()
    }

    fn append(&mut self, mut other: Scan) {
        self.records.append(&mut other.records);
        self.doubtful.append(&mut other.doubtful);
        self.lost.append(&mut other.lost);
        self.newly_lost.append(&mut other.newly_lost);
        self.mended.append(&mut other.mended);
        self.tables.append(&mut other.tables);
        self.unknown.append(&mut other.unknown);
    }

    /// What the slot at byte `at` holds, whose word says `commit`.
    fn look<P: Pool>(&mut self, heap: &Heap<P>, at: u64, commit: Commit, mends: &AtomicU32) -> Result<()> {
        match (commit, heap.head(at)) {
            (Commit::Live(mark), Ok(head)) if mark == Mark::new(&head.key, head.seqno) => {
                self.records.push((at, head));
            }
            (Commit::Live(mark), Ok(head)) if head.kind == Kind::Lost => {
                let (_, value) = heap.read(at)?;
                self.lost.push(LostSlot::decode(at, mark, &value).ok_or_else(|| heap.damaged(at))?);
            }
            (Commit::Live(mark), head) => {
                if head.is_err()
                    && let Some((head, mended)) = heap.mend(mends, at, mark)
                {
                    self.records.push((at, head));
                    self.mended.push(mended);
                    return Ok(());
                }
                match heap.name_of(at) {
                    Some((key, seqno)) if !key.is_empty() && Mark::new(&key, seqno) == mark => {
                        self.doubtful.push(Doubtful { key, at, version: Version::Live(mark) });
                    }
                    _ => self.newly_lost.push((at, mark)),
                }
            }
            (_, Ok(head)) => match head.kind {
                Kind::Value | Kind::Tombstone => {
                    let version = Version::Exact(head.seqno);
                    self.doubtful.push(Doubtful { key: head.key, at, version });
                }
                Kind::Table => {
                    let (_, value) = heap.read(at)?;
                    let (record, _) = TableRecord::decode(&value).ok_or_else(|| heap.damaged(at))?;
                    self.tables.push((at, record));
                }
                Kind::RangeTombstone | Kind::Lost => return Err(heap.damaged(at)),
                // Its word is never live: a commit slot names it.
                Kind::Redo => {}
            },
            (_, Err(_)) => self.unknown.push(at),
        }
        Ok(())
    }
}

/// Looks at all slots that are not free.
///
/// # Errors
/// `Corrupt` if a record that the store cannot do without may be live and is damaged.
pub fn scan<P: Pool>(heap: &Heap<P>, threads: usize) -> Result<Scan> {
    let (next, mends) = (AtomicU32::new(0), AtomicU32::new(0));
    let all = Mutex::new(Ok(Scan::default()));
    let work = || {
        let mut found = Scan::default();
        let mut looked = Ok(());
        while looked.is_ok() {
            let slab = next.fetch_add(1, Ordering::Relaxed);
            if slab >= heap.slabs.count() {
                break;
            }
            let (base, len) = (heap.slabs.base_of(slab), heap.slabs.slab_bytes());
            looked = heap.pool.fetch(base, len).and_then(|()| {
                let mut words = heap.slabs.words(slab).into_iter();
                words.try_for_each(|(at, commit)| found.look(heap, at, commit, &mends))
            });
            heap.pool.release(base, len);
        }
        // Here, where the other threads sort theirs.
        sort(&mut found.records);
        let mut all = all.lock();
        match (looked, &mut *all) {
            (Ok(()), Ok(all)) => all.append(found),
            (Err(error), all) => *all = Err(error),
            (Ok(()), Err(_)) => {}
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // One that cannot be started leaves its part to the others.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    all.into_inner()
}

/// What was found of slabs whose class word is damaged.
#[derive(Default)]
pub struct Classes {
    /// The class words to be written again.
    pub words: Vec<(u64, u64)>,
    /// Slabs in which something may be live, and whose class is not known.
    pub without: Vec<u32>,
}

/// Gives slabs whose class word is damaged the class of the records that are found there, or of the parts that others have there.
///
/// # Errors
/// Where the pool's device cannot be read.
pub fn find_classes<P: Pool>(heap: &Heap<P>, unknown: &[u32]) -> Result<Classes> {
    let slabs = &heap.slabs;
    let (mut found, mut headless) = (Classes::default(), Vec::new());
    for slab in unknown {
        heap.pool.fetch(slabs.base_of(*slab), slabs.slab_bytes())?;
        let found_in = |class: &usize| {
            let live = |(at, bytes, commit)| match commit {
                Commit::Live(mark) => {
                    heap.head_in(at, bytes).is_ok_and(|(head, _)| Mark::new(&head.key, head.seqno) == mark)
                }
                Commit::Free | Commit::Damaged => false,
            };
            slabs.words_as(*slab, *class).filter(|word| live(*word)).count()
        };
        let all_free =
            |class: &usize| slabs.words_as(*slab, *class).all(|(_, _, commit)| commit == Commit::Free);
        let counts = (0..slabs.class_count()).map(|class| (found_in(&class), class));
        match counts.max().filter(|(count, _)| *count > 0) {
            Some((_, class)) => found.words.push(slabs.assume(*slab, class)),
            None if (0..slabs.class_count()).any(|class| all_free(&class)) => headless.push(*slab),
            None => found.without.push(*slab),
        }
    }
    if !headless.is_empty() {
        let parts = all_parts(heap)?;
        let class_of = |slab: u32| Some((slab, class_of_parts(heap, slab, &parts)?));
        let classes = headless.into_iter().filter_map(class_of);
        found.words.extend(classes.map(|(slab, class)| slabs.assume(slab, class)));
    }
    Ok(found)
}

/// Where the parts of all live records are, in order, and how long each is.
fn all_parts<P: Pool>(heap: &Heap<P>) -> Result<Vec<(u64, usize)>> {
    let piece = heap.slabs.largest() as usize;
    let mut all = Vec::new();
    let mut add = |slots: &[u64], len: usize| {
        let rest = |number: usize| len.saturating_sub(number * piece).min(piece);
        all.extend(slots.iter().enumerate().map(|(number, at)| (*at, rest(number))));
    };
    for slab in 0..heap.slabs.count() {
        heap.pool.fetch(heap.slabs.base_of(slab), heap.slabs.slab_bytes())?;
        let live = heap.slabs.words(slab).into_iter().filter(|(_, commit)| matches!(commit, Commit::Live(_)));
        for (at, head) in live.filter_map(|(at, _)| Some((at, heap.head(at).ok()?))) {
            add(&head.parts, head.value_len);
            if head.kind == Kind::Table
                && let Ok((_, value)) = heap.read(at)
                && let Some((_, places)) = TableRecord::decode(&value)
            {
                add(places.slots(), places.bytes());
            }
        }
        heap.pool.release(heap.slabs.base_of(slab), heap.slabs.slab_bytes());
    }
    all.sort_unstable();
    Ok(all)
}

/// The smallest class that has a slot for each of `parts` that is in `slab`, if any is. Where others have, too, each of them will do: no
/// other slot of it is in use.
fn class_of_parts<P: Pool>(heap: &Heap<P>, slab: u32, parts: &[(u64, usize)]) -> Option<usize> {
    let slabs = &heap.slabs;
    let (start, end) = (slabs.base_of(slab), slabs.base_of(slab) + slabs.slab_bytes());
    let here =
        &parts[parts.partition_point(|part| part.0 < start)..parts.partition_point(|part| part.0 < end)];
    let has_slots = |class: &usize| {
        let slots: Vec<(u64, u64, Commit)> = slabs.words_as(slab, *class).collect();
        slots.iter().all(|(_, _, commit)| *commit == Commit::Free)
            && here.iter().all(|(at, len)| {
                slots.binary_search_by_key(at, |(at, ..)| *at).is_ok_and(|slot| slots[slot].1 >= *len as u64)
            })
    };
    (0..slabs.class_count()).find(has_slots).filter(|_| !here.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::encode;

    #[test]
    fn records_are_sorted_whatever_their_keys_begin_with() {
        let mut rng = fastrand::Rng::with_seed(1);
        let record = |number: u64| {
            // Many are the beginning of another, also up to the sixteenth byte, or are there twice.
            let key: Vec<u8> = (0..rng.usize(0..20)).map(|_| rng.u8(0..2)).collect();
            let key = if rng.bool() { key } else { [&[1; 14][..], &key].concat() };
            let bytes = encode(1, number, Kind::Value, rng.u64(0..3), &key, b"", &[]);
            (number, Head::decode(1, number, &bytes).expect("whole"))
        };
        let mut records: Vec<Found> = (0..5000).map(record).collect();
        let of = |(at, head): &Found| (head.key.clone(), std::cmp::Reverse(head.seqno), *at);
        let mut expected: Vec<_> = records.iter().map(of).collect();
        expected.sort();
        sort(&mut records);
        assert!(records.iter().map(of).eq(expected));
    }
}
