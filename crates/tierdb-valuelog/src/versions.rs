//! What snapshots still see: words that were replaced while a snapshot was open that sees them.
//!
//! In DRAM only, since snapshots do not outlive the process. A chained word keeps its record as a word in
//! the HSIT does: reclamation and garbage collection move it, and release it when no snapshot needs it.
//!
//! Invariants
//! 1. An entry that was written since an open snapshot was taken has a word in its chain that the snapshot sees: the
//!    first one that was replaced after it. So a word that is to be replaced is needed only if none of its chain was
//!    replaced since the newest open snapshot, and a chain is about as long as there are snapshots at the most.
//! 2. Each word that an open snapshot sees is listed by the newest such snapshot, once: closing a snapshot takes as
//!    long as what it lists.
//! 3. Of the words of an entry whose values are kept in parts and have the same tag, none leaves before an older one:
//!    [`crate::long::LongValues`] gives up the parts of the oldest.

use crate::word::{Place, Word};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::{Release, SeqCst};
use tierdb_sync::switch::{AtomicU64, AtomicUsize, Mutex, MutexGuard};

/// In a model, one that is written to and one that is not.
const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };
/// Room for so many chains is kept where there are fewer.
const SPARE: usize = 64;

/// A word that was replaced, and by which write. It was there since the write that replaced the one before it.
#[derive(Clone, Copy, Debug)]
struct Replaced {
    by: u64,
    word: Word,
}

impl Replaced {
    /// Whether its parts and those of `newer` are noted under the same name.
    fn shares_name_with(&self, newer: Word) -> bool {
        self.word.is_large() && newer.is_large() && self.word.tag() == newer.tag()
    }
}

/// What is kept of some entries.
#[derive(Default)]
struct Kept {
    /// Replaced words by entry, in the order in which they were replaced.
    chains: HashMap<u64, Vec<Replaced>>,
    /// For each open snapshot the entries of which it is the newest to see a replaced word.
    seen: HashMap<u64, Vec<u64>>,
}

impl Kept {
    /// Keeps `word` of `entry`, which write `by` is about to replace, if `newest`, the newest open snapshot, sees it, or if it
    /// has to wait for an older one. Says whether it did.
    fn keep(&mut self, newest: u64, entry: u64, by: u64, word: Word) -> bool {
        let chain = self.chains.entry(entry).or_insert_with(|| Vec::with_capacity(1));
        let is_seen = chain.last().is_none_or(|last| last.by <= newest);
        if !is_seen && !chain.iter().any(|older| older.shares_name_with(word)) {
            return false;
        }
        chain.push(Replaced { by, word });
        if is_seen {
            self.seen.entry(newest).or_default().push(entry);
        }
        true
    }

    /// Snapshot `closed` is closed, and `older` is the next older one. Gives `dropped` the words that none of those that
    /// are open sees, as `sees` tells of the times from one write to before another.
    fn close(
        &mut self,
        closed: u64,
        older: Option<u64>,
        sees: impl Fn(u64, u64) -> bool,
        dropped: &mut Vec<(u64, Word)>,
    ) {
        for entry in self.seen.remove(&closed).unwrap_or_default() {
            let Some(chain) = self.chains.get_mut(&entry) else { continue };
            let seen_at = |seqno| first_after(chain, seqno);
            if let Some(older) = older.filter(|older| seen_at(*older) == seen_at(closed)) {
                self.seen.entry(older).or_default().push(entry);
                continue;
            }
            let (mut since, mut left) = (0, Vec::new());
            for replaced in chain.drain(..) {
                let waits = left.iter().any(|older: &Replaced| older.shares_name_with(replaced.word));
                if waits || sees(since, replaced.by) {
                    left.push(replaced);
                } else {
                    dropped.push((entry, replaced.word));
                }
                since = replaced.by;
            }
            if left.is_empty() {
                self.chains.remove(&entry);
            } else {
                *chain = left;
            }
        }
        if self.chains.capacity() > 4 * self.chains.len() + SPARE {
            self.chains.shrink_to(2 * self.chains.len());
        }
    }

    /// Bytes of DRAM, about.
    fn memory_bytes(&self) -> usize {
        let chained: usize = self.chains.values().map(Vec::capacity).sum();
        let listed: usize = self.seen.values().map(Vec::capacity).sum();
        self.chains.capacity() * size_of::<(u64, Vec<Replaced>)>()
            + chained * size_of::<Replaced>()
            + listed * size_of::<u64>()
    }
}

/// Where in `chain` the word is that a snapshot at `seqno` sees.
fn first_after(chain: &[Replaced], seqno: u64) -> usize {
    chain.partition_point(|replaced| replaced.by <= seqno)
}

/// What is kept of the entries that have the same remainder.
struct Shard {
    kept: Mutex<Kept>,
    /// How many chains there are, or one more while a word may be added, for those who ask when there are none, as there mostly
    /// are. It is raised before a word is replaced, so whoever has seen the new word sees that.
    count: AtomicUsize,
}

impl Shard {
    fn new() -> Self {
        Shard { kept: Mutex::new(Kept::default()), count: AtomicUsize::new(0) }
    }

    /// What is kept, if anything is or may be before long.
    #[inline]
    fn some(&self) -> Option<MutexGuard<'_, Kept>> {
        (self.count.load(SeqCst) > 0).then(|| self.kept.lock())
    }

    /// What is kept, for who may add to it and [sets](Shard::settle) the count afterwards.
    fn to_add(&self) -> MutexGuard<'_, Kept> {
        let kept = self.kept.lock();
        self.count.store(kept.chains.len() + 1, SeqCst);
        kept
    }

    /// What is kept has been changed.
    fn settle(&self, kept: &Kept) {
        self.count.store(kept.chains.len(), Release);
    }
}

/// Replaced words by entry, and the snapshots that are open.
pub struct Versions {
    shards: Box<[Shard]>,
    /// How many snapshots are open at each seqno.
    open: Mutex<BTreeMap<u64, u64>>,
    /// The seqno after that of the newest open snapshot; 0 if there is none. This and the next one change under the lock of
    /// `open`, and count a snapshot before any write can have a later seqno than it.
    after_newest: AtomicU64,
    /// The seqno of the oldest open snapshot; the highest number if there is none.
    oldest: AtomicU64,
}

impl Versions {
    /// No snapshots.
    pub fn new() -> Self {
        Versions {
            shards: (0..SHARDS).map(|_| Shard::new()).collect(),
            open: Mutex::new(BTreeMap::new()),
            after_newest: AtomicU64::new(0),
            oldest: AtomicU64::new(u64::MAX),
        }
    }

    fn shard(&self, entry: u64) -> &Shard {
        &self.shards[(entry % SHARDS as u64) as usize]
    }

    /// Counts a snapshot whose seqno `take` gives. `take` gives it to what it is passed, too, before any writer takes a later
    /// one.
    pub fn open(&self, take: impl FnOnce(&dyn Fn(u64)) -> u64) -> u64 {
        let mut open = self.open.lock();
        let seqno = take(&|seqno| {
            self.after_newest.store(seqno + 1, SeqCst);
            self.oldest.fetch_min(seqno, SeqCst);
        });
        *open.entry(seqno).or_insert(0) += 1;
        seqno
    }

    /// Forgets a snapshot, and returns the words that no snapshot needs any more.
    pub fn close(&self, seqno: u64, release: impl FnOnce()) -> Vec<(u64, Word)> {
        let mut open = self.open.lock();
        release();
        if let Some(count) = open.get_mut(&seqno).filter(|count| **count > 1) {
            *count -= 1;
            return Vec::new();
        }
        open.remove(&seqno);
        self.after_newest.store(open.last_key_value().map_or(0, |(newest, _)| newest + 1), SeqCst);
        self.oldest.store(open.first_key_value().map_or(u64::MAX, |(oldest, _)| *oldest), SeqCst);
        let older = open.range(..seqno).next_back().map(|(older, _)| *older);
        let sees = |since: u64, before: u64| open.range(since..before).next().is_some();
        let mut dropped = Vec::new();
        for shard in &self.shards {
            let Some(mut kept) = shard.some() else { continue };
            kept.close(seqno, older, sees, &mut dropped);
            shard.settle(&kept);
        }
        dropped
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.some().is_none_or(|kept| kept.chains.is_empty()))
    }

    /// The seqno of the oldest open snapshot; the highest number if there is none.
    pub fn oldest(&self) -> u64 {
        self.oldest.load(SeqCst)
    }

    /// Keeps `word` of `entry`, which write `by` is about to replace, if an open snapshot sees it, and says whether it did.
    /// Under the entry's latch, and while the write is in flight: a snapshot that sees the word, and not the write, is
    /// counted already.
    pub fn keep(&self, entry: u64, by: u64, word: Word) -> bool {
        if self.after_newest.load(SeqCst) == 0 {
            return false;
        }
        let shard = self.shard(entry);
        let mut kept = shard.to_add();
        // Looked at after the count was raised, and the count is looked at after this was lowered: either the newest snapshot
        // finds the word here when it is closed, or it is not counted any more.
        let newest = self.after_newest.load(SeqCst).checked_sub(1);
        let is_kept = newest.is_some_and(|newest| kept.keep(newest, entry, by, word));
        shard.settle(&kept);
        is_kept
    }

    /// The word of `entry` that a snapshot at `seqno` sees, if it was replaced since.
    pub fn find(&self, entry: u64, seqno: u64) -> Option<Word> {
        let kept = self.shard(entry).some()?;
        let chain = kept.chains.get(&entry)?;
        chain.get(first_after(chain, seqno)).map(|replaced| replaced.word)
    }

    /// Whether an open snapshot may see a value of `entry` that was replaced.
    pub fn has_value(&self, entry: u64) -> bool {
        let Some(kept) = self.shard(entry).some() else { return false };
        let oldest = self.oldest();
        let is_value = |replaced: &Replaced| replaced.by > oldest && replaced.word.place() != Place::None;
        kept.chains.get(&entry).is_some_and(|chain| chain.iter().any(is_value))
    }

    /// The word by which a snapshot keeps the record of `entry` at `place`, if one does.
    pub fn kept(&self, entry: u64, place: Place) -> Option<Word> {
        let kept = self.shard(entry).some()?;
        kept.chains.get(&entry)?.iter().map(|r| r.word.clean()).find(|word| word.place() == place)
    }

    /// The record of `entry` was copied from `from` to where `to` points. `false` if no snapshot keeps it.
    pub fn relocate(&self, entry: u64, from: Place, to: Word) -> bool {
        let Some(mut kept) = self.shard(entry).some() else { return false };
        let Some(chain) = kept.chains.get_mut(&entry) else { return false };
        let Some(replaced) = chain.iter_mut().find(|r| r.word.place() == from) else { return false };
        replaced.word = if replaced.word.is_dirty() { to.dirty() } else { to };
        true
    }

    /// Bytes of DRAM, about.
    pub fn memory_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.kept.lock().memory_bytes() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(versions: &Versions, seqno: u64) {
        let opened = versions.open(|note| {
            note(seqno);
            seqno
        });
        assert_eq!(opened, seqno);
    }

    fn word(number: u64) -> Word {
        Word::new(Place::Ring(number * 32), number, 32, false)
    }

    #[test]
    fn a_snapshot_sees_the_oldest_word_replaced_after_it() {
        let versions = Versions::new();
        let words: Vec<Word> = (0..3).map(word).collect();
        open(&versions, 10);
        assert!(versions.keep(1, 15, words[0]));
        open(&versions, 20);
        assert!(versions.keep(1, 25, words[1]));
        assert_eq!((versions.find(1, 10), versions.find(1, 20)), (Some(words[0]), Some(words[1])));
        assert_eq!((versions.find(1, 30), versions.find(2, 10)), (None, None));
        assert_eq!(
            (versions.kept(1, words[0].place()), versions.kept(1, words[2].place())),
            (Some(words[0]), None)
        );
        assert!(versions.relocate(1, words[1].place(), words[2]));
        assert_eq!(versions.close(10, || {}), vec![(1, words[0])]);
        assert_eq!(versions.close(20, || {}), vec![(1, words[2])]);
    }

    #[test]
    fn what_no_open_snapshot_sees_is_not_kept() {
        let versions = Versions::new();
        assert!(!versions.keep(1, 4, word(0)), "no snapshot is open");
        for seqno in [5, 20, 30] {
            open(&versions, seqno);
            assert!(versions.keep(1, seqno + 1, word(seqno)));
            assert!((seqno + 2..seqno + 9).all(|by| !versions.keep(1, by, word(by))), "nobody sees these");
        }
        // One between two others goes, and what it alone has seen.
        assert_eq!(versions.close(20, || {}), vec![(1, word(20))]);
        assert_eq!((versions.find(1, 5), versions.find(1, 30)), (Some(word(5)), Some(word(30))));
        // What two see goes with the second of them, whichever that is.
        assert!(versions.keep(2, 40, word(40)));
        assert_eq!(versions.close(30, || {}), vec![(1, word(30))]);
        assert_eq!(versions.find(2, 5), Some(word(40)));
        assert_eq!(versions.close(5, || {}), vec![(1, word(5)), (2, word(40))]);
        assert!(versions.is_empty());
    }

    #[test]
    fn of_two_snapshots_at_one_seqno_the_second_lets_go() {
        let versions = Versions::new();
        open(&versions, 5);
        open(&versions, 5);
        assert!(versions.keep(1, 6, word(1)));
        assert!(versions.close(5, || {}).is_empty());
        assert_eq!((versions.find(1, 5), versions.oldest()), (Some(word(1)), 5));
        assert_eq!((versions.close(5, || {}), versions.oldest()), (vec![(1, word(1))], u64::MAX));
    }

    #[test]
    fn a_closing_snapshot_waits_for_who_keeps_a_word() {
        let versions = Versions::new();
        open(&versions, 5);
        let shard = versions.shard(1);
        let mut kept = shard.to_add();
        let newest = versions.after_newest.load(SeqCst) - 1;
        std::thread::scope(|scope| {
            let closed = scope.spawn(|| versions.close(5, || {}));
            while versions.after_newest.load(SeqCst) != 0 {
                std::thread::yield_now();
            }
            // As long as a close takes that does not wait.
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(kept.keep(newest, 1, 6, word(1)));
            shard.settle(&kept);
            drop(kept);
            assert_eq!(closed.join().expect("no panic"), vec![(1, word(1))]);
        });
        assert!(versions.is_empty());
    }

    #[test]
    fn memory_is_given_back_with_a_snapshot() {
        let versions = Versions::new();
        open(&versions, 5);
        let before = versions.memory_bytes();
        (0..100_000).for_each(|entry| assert!(versions.keep(entry, 6 + entry, word(entry))));
        assert!(versions.memory_bytes() >= before + 100_000 * 56, "{}", versions.memory_bytes());
        assert_eq!(versions.close(5, || {}).len(), 100_000);
        assert_eq!(versions.memory_bytes(), before);
    }

    /// Random snapshots and writes, beside the history of every entry.
    #[test]
    fn every_snapshot_sees_what_was_there_and_nothing_more_is_kept() {
        let mut rng = fastrand::Rng::with_seed(3);
        let versions = Versions::new();
        // For each entry: its words, and the writes that have put them there.
        let mut history: Vec<Vec<(u64, Word)>> = (0..8).map(|entry| vec![(0, word(entry))]).collect();
        let mut kept = std::collections::HashSet::new();
        let mut snapshots: Vec<u64> = Vec::new();
        for seqno in 1..20_000 {
            match rng.u32(..10) {
                0 if snapshots.len() < 6 => {
                    open(&versions, seqno);
                    snapshots.push(seqno);
                }
                1 if !snapshots.is_empty() => {
                    let closed = snapshots.swap_remove(rng.usize(..snapshots.len()));
                    versions.close(closed, || {}).iter().for_each(|gone| assert!(kept.remove(gone)));
                }
                _ => {
                    let entry = rng.u64(..8);
                    let (_, old) = *history[entry as usize].last().expect("it has one");
                    if versions.keep(entry, seqno, old) {
                        kept.insert((entry, old));
                    }
                    history[entry as usize].push((seqno, word(seqno)));
                }
            }
            let mut needed = std::collections::HashSet::new();
            for (entry, words) in (0..).zip(&history) {
                let now = words.last().expect("it has one").1;
                for snapshot in &snapshots {
                    let (_, wanted) = *words.iter().rfind(|(by, _)| by <= snapshot).expect("it was there");
                    assert_eq!(versions.find(entry, *snapshot).unwrap_or(now), wanted);
                    if wanted != now {
                        needed.insert((entry, wanted));
                    }
                }
            }
            assert_eq!(kept, needed);
        }
    }
}
