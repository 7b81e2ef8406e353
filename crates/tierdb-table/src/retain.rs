//! Which versions a rewrite of tables keeps.

use crate::entry::EntryRef;
use crate::merge::Source;
use tierdb_base::{Result, Seqno, mutant};

/// Which snapshots must read as before.
///
/// A version is kept where some snapshot sees it: no newer version of its key is in the same snapshot. All versions
/// above the highest snapshot are kept, since later snapshots may fall between them. So give the seqno of the
/// last visible write as one of them, taken before the list of open snapshots; with it alone, only the newest
/// version of each key is kept. With the oldest snapshot alone, versions it and older ones do not see are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Ascending.
    snapshots: Vec<Seqno>,
}

impl Retention {
    /// What `snapshots` and all later ones see. Without any, all is kept.
    pub fn new(mut snapshots: Vec<Seqno>) -> Self {
        snapshots.sort_unstable();
        snapshots.dedup();
        Retention { snapshots }
    }

    /// The oldest snapshot.
    fn oldest(&self) -> Option<Seqno> {
        self.snapshots.first().copied()
    }

    /// Whether some snapshot sees a version of `seqno` of which the next newer one is `newer`.
    fn needs(&self, seqno: Seqno, newer: Seqno) -> bool {
        let Some(highest) = self.snapshots.last() else { return true };
        let at_least = self.snapshots.partition_point(|snapshot| *snapshot < seqno);
        newer > *highest || self.snapshots.get(at_least).is_some_and(|snapshot| *snapshot < newer)
    }
}

/// The entries of a source (forward, all versions of a key it is to decide on) that must be kept.
///
/// Dropped are: versions that no snapshot sees; an entry equal to the one before in key and seqno, whichever its
/// value; and tombstones that every snapshot sees, of keys for which `bottom` says that no older version
/// exists outside of the source.
pub struct Retain<S, B> {
    source: S,
    retention: Retention,
    bottom: B,
    /// The key of the entry looked at last, and its seqno.
    key: Vec<u8>,
    newer: Option<Seqno>,
    shadowed: u64,
    tombstones: u64,
}

impl<S: Source, B: FnMut(&[u8]) -> bool> Retain<S, B> {
    /// What must be kept of `source`.
    pub fn new(source: S, retention: Retention, bottom: B) -> Self {
        Retain { source, retention, bottom, key: Vec::new(), newer: None, shadowed: 0, tombstones: 0 }
    }

    /// Versions dropped so far because a newer one hides them.
    pub fn shadowed(&self) -> u64 {
        self.shadowed
    }

    /// Tombstones dropped so far because nothing is left for them to hide.
    pub fn tombstones(&self) -> u64 {
        self.tombstones
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.source
    }
}

impl<S: Source, B: FnMut(&[u8]) -> bool> Source for Retain<S, B> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.source.entry()
    }

    fn advance(&mut self) -> Result<()> {
        loop {
            self.source.advance()?;
            let Some(entry) = self.source.entry() else { return Ok(()) };
            let newer = self.newer.filter(|_| self.key == entry.key);
            if newer.is_none() {
                self.key.clear();
                self.key.extend_from_slice(entry.key);
            }
            self.newer = Some(entry.seqno);
            if newer.is_some_and(|newer| newer <= entry.seqno || !self.retention.needs(entry.seqno, newer)) {
                self.shadowed += 1;
                continue;
            }
            // All versions below such a tombstone are dropped with it, since no snapshot sees them.
            let seen_by_all = self.retention.oldest().is_some_and(|oldest| entry.seqno <= oldest)
                || !mutant::keep("tombstone");
            if entry.value.is_none() && seen_by_all && (self.bottom)(entry.key) {
                self.tombstones += 1;
                continue;
            }
            return Ok(());
        }
    }
}
