//! Versions on the fast tier that were replaced while a snapshot saw them, or might have.

use crate::heap::Slots;
use crate::key::Key;
use crate::partition::{Bounds, Entry};
use crate::snapshots::sees;
use std::collections::{BTreeMap, BTreeSet};
use tierdb_base::Seqno;

/// Fewer versions than this are looked at together whenever a snapshot goes.
const FEW: usize = 64;

/// A version that was replaced.
pub struct Old {
    entry: Entry,
    /// The write that replaced it.
    by: Seqno,
    slots: Slots,
}

/// The versions that a partition keeps.
///
/// What a snapshot needs was replaced after it, so of many versions that a long-lived snapshot keeps, one that comes and goes later
/// lets go of those only that were replaced meanwhile. Others may be there that nobody needs: of a write that could not know that. They are
/// looked for when there are a quarter more versions than the last time, and when no snapshot is left.
#[derive(Default)]
pub struct Kept {
    /// Those of each key, oldest first.
    by_key: BTreeMap<Key, Vec<Old>>,
    /// All of them: the write that replaced it, and the key.
    by_write: BTreeSet<(Seqno, Key)>,
    /// How many were left when all were looked at.
    left: usize,
}

impl Kept {
    /// Keeps the version `entry` of `key`, which write `by` replaced.
    pub fn add(&mut self, key: &[u8], entry: Entry, by: Seqno, slots: Slots) {
        self.insert(key.into(), Old { entry, by, slots });
    }

    /// Keeps `old`, a version of `key`.
    pub fn insert(&mut self, key: Key, old: Old) {
        self.by_write.insert((old.by, key.clone()));
        self.by_key.entry(key).or_default().push(old);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_write.len()
    }

    /// All of them, each with its key.
    pub fn into_versions(self) -> impl Iterator<Item = (Key, Old)> {
        let versions = self.by_key.into_iter();
        versions.flat_map(|(key, versions)| versions.into_iter().map(move |old| (key.clone(), old)))
    }

    /// The keys within `bounds` that have versions.
    pub fn keys(&self, bounds: Bounds<'_>) -> impl DoubleEndedIterator<Item = &Key> {
        self.by_key.range::<[u8], _>(bounds).map(|(key, _)| key)
    }

    /// The version of `key` that a snapshot at `seqno` sees, if it is one of these.
    pub fn version_at(&self, key: &[u8], seqno: Seqno) -> Option<Entry> {
        let versions = self.by_key.get(key)?;
        versions.iter().find(|old| old.entry.seqno <= seqno && seqno < old.by).map(|old| old.entry)
    }

    /// Those that are looked at when a snapshot at `closed` goes; `alone` if no other one is open.
    fn looked_at(&self, closed: Seqno, alone: bool) -> impl Iterator<Item = &(Seqno, Key)> {
        let count = self.by_write.len();
        let all = alone || count < FEW || count >= self.left + self.left / 4;
        self.by_write.range((if all { 0 } else { closed + 1 }, Key::new())..)
    }

    /// Whether any are.
    pub fn concerns(&self, closed: Seqno, alone: bool) -> bool {
        self.looked_at(closed, alone).next().is_some()
    }

    /// Forgets versions that nobody needs since a snapshot at `closed` has gone, and those at `open` are left. Returns their slots.
    pub fn release(&mut self, closed: Seqno, open: &[Seqno]) -> Vec<Slots> {
        let looked_at: Vec<(Seqno, Key)> = self.looked_at(closed, open.is_empty()).cloned().collect();
        let all = looked_at.len() == self.by_write.len();
        let mut released = Vec::new();
        for place in looked_at {
            let (by, key) = &place;
            let Some(versions) = self.by_key.get_mut(key) else { continue };
            let unneeded = |old: &mut Old| old.by == *by && !sees(open, old.entry.seqno, old.by);
            let count = released.len();
            released.extend(versions.extract_if(.., unneeded).map(|old| old.slots));
            if versions.is_empty() {
                self.by_key.remove(key);
            }
            if released.len() > count {
                self.by_write.remove(&place);
            }
        }
        if all {
            self.left = self.by_write.len();
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_that_comes_and_goes_looks_at_what_was_replaced_meanwhile() {
        let mut kept = Kept::default();
        let add = |kept: &mut Kept, number: u64, seqno, by| {
            let slots = Slots { at: by, parts: Box::default() };
            kept.add(&number.to_be_bytes(), Entry::new(by, seqno, false, false), by, slots);
        };
        // A backup at 1000, which needs a thousand versions.
        (0..1000).for_each(|number| add(&mut kept, number, number, 1001 + number));
        assert_eq!(kept.release(2500, &[1000]).len(), 0);
        // A scan at 3000, and what is replaced before it ends. One of the versions is as old as the backup.
        add(&mut kept, 1001, 500, 3001);
        add(&mut kept, 1002, 2990, 3002);
        assert_eq!(kept.looked_at(3000, false).count(), 2);
        assert_eq!(kept.release(3000, &[1000]).iter().map(|slots| slots.at).collect::<Vec<_>>(), [3002]);
        assert!(!kept.concerns(4000, false));
        assert_eq!(kept.version_at(&1001_u64.to_be_bytes(), 1000).map(|entry| entry.seqno), Some(500));
        // What nobody ever needed goes with any snapshot when there is enough of it.
        (0..248).for_each(|number| add(&mut kept, number, 5000, 5001 + number));
        assert!(!kept.concerns(9000, false));
        add(&mut kept, 248, 5000, 5249);
        assert_eq!(kept.release(9000, &[1000]).len(), 249);
        // And all with the last one.
        assert_eq!(kept.release(1000, &[]).len(), 1001);
        assert_eq!(kept.into_versions().count(), 0);
    }
}
