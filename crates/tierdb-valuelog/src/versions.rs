//! What snapshots still see: words that were replaced while a snapshot was open.
//!
//! In DRAM only, since snapshots do not outlive the process. A chained word keeps its record as a word in
//! the HSIT does: reclamation and garbage collection move it, and release it when no snapshot needs it.

use crate::word::{Place, Word};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;

/// A word that was replaced, and by which write.
#[derive(Clone, Copy, Debug)]
struct Replaced {
    by: u64,
    word: Word,
}

type Chains = HashMap<u64, Vec<Replaced>>;

/// The replaced words of some entries.
#[derive(Default)]
struct Shard {
    chains: Mutex<Chains>,
    /// How many chains there are, for those who ask when there are none, as there mostly are. It is raised before a word is
    /// replaced, so whoever has seen the new word sees that.
    count: AtomicUsize,
}

impl Shard {
    /// The chains, if there are any.
    #[inline]
    fn some(&self) -> Option<MutexGuard<'_, Chains>> {
        (self.count.load(Ordering::Acquire) > 0).then(|| self.chains.lock())
    }
}

/// Replaced words by entry, and the snapshots that are open.
pub struct Versions {
    shards: Box<[Shard]>,
    open: Mutex<BTreeMap<u64, u64>>,
}

impl Versions {
    /// No snapshots.
    pub fn new() -> Self {
        Versions { shards: (0..SHARDS).map(|_| Shard::default()).collect(), open: Mutex::default() }
    }

    fn shard(&self, entry: u64) -> &Shard {
        &self.shards[(entry % SHARDS as u64) as usize]
    }

    /// Counts a snapshot whose seqno `take` gives, under the lock that [`Versions::close`] takes too.
    pub fn open(&self, take: impl FnOnce() -> u64) -> u64 {
        let mut open = self.open.lock();
        let seqno = take();
        *open.entry(seqno).or_insert(0) += 1;
        seqno
    }

    /// Forgets a snapshot, and returns the words that no snapshot needs any more.
    pub fn close(&self, seqno: u64, release: impl FnOnce()) -> Vec<(u64, Word)> {
        let mut open = self.open.lock();
        let oldest_before = open.keys().next().copied();
        if let Some(count) = open.get_mut(&seqno) {
            *count -= 1;
            if *count == 0 {
                open.remove(&seqno);
            }
        }
        release();
        let oldest = open.keys().next().copied();
        if oldest == oldest_before {
            return Vec::new();
        }
        let needed_after = oldest.unwrap_or(u64::MAX);
        let mut dropped = Vec::new();
        for shard in &self.shards {
            let Some(mut chains) = shard.some() else { continue };
            chains.retain(|entry, chain| {
                chain.retain(|replaced| {
                    let needed = replaced.by > needed_after;
                    if !needed {
                        dropped.push((*entry, replaced.word));
                    }
                    needed
                });
                !chain.is_empty()
            });
            shard.count.store(chains.len(), Ordering::Release);
        }
        dropped
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.some().is_none_or(|chains| chains.is_empty()))
    }

    /// Keeps `word` of `entry`, which write `by` is about to replace. Under the entry's latch.
    pub fn push(&self, entry: u64, by: u64, word: Word) {
        let shard = self.shard(entry);
        let mut chains = shard.chains.lock();
        chains.entry(entry).or_default().push(Replaced { by, word });
        shard.count.store(chains.len(), Ordering::Release);
    }

    /// The word of `entry` that a snapshot at `seqno` sees, if it was replaced since.
    pub fn find(&self, entry: u64, seqno: u64) -> Option<Word> {
        let chains = self.shard(entry).some()?;
        chains.get(&entry)?.iter().find(|replaced| replaced.by > seqno).map(|replaced| replaced.word)
    }

    /// The word by which a snapshot keeps the record of `entry` at `place`, if one does.
    pub fn kept(&self, entry: u64, place: Place) -> Option<Word> {
        let chains = self.shard(entry).some()?;
        chains.get(&entry)?.iter().map(|r| r.word.clean()).find(|word| word.place() == place)
    }

    /// The record of `entry` was copied from `from` to where `to` points. `false` if no snapshot keeps it.
    pub fn relocate(&self, entry: u64, from: Place, to: Word) -> bool {
        let Some(mut chains) = self.shard(entry).some() else { return false };
        let Some(chain) = chains.get_mut(&entry) else { return false };
        let Some(replaced) = chain.iter_mut().find(|r| r.word.place() == from) else { return false };
        replaced.word = if replaced.word.is_dirty() { to.dirty() } else { to };
        true
    }

    /// Bytes of DRAM, about.
    pub fn memory_bytes(&self) -> u64 {
        let per_entry = (size_of::<(u64, Vec<Replaced>)>() + size_of::<Replaced>()) as u64;
        self.shards.iter().map(|s| s.chains.lock().capacity() as u64 * per_entry).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_the_oldest_word_replaced_after_it() {
        let versions = Versions::new();
        let words: Vec<Word> = (0..3).map(|i| Word::new(Place::Ring(i * 32), i, 32, false)).collect();
        assert_eq!(versions.open(|| 10), 10);
        versions.open(|| 20);
        versions.push(1, 15, words[0]);
        versions.push(1, 25, words[1]);
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
}
