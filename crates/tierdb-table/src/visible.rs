//! What a snapshot sees of a source.

use crate::entry::{Entry, EntryRef};
use crate::merge::Source;
use tierdb_base::{Error, Result, Seqno};

/// The keys of a source that a snapshot sees, each with its newest version that is not newer than the snapshot.
/// Tombstones are not seen.
pub struct Visible<S> {
    source: S,
    seqno: Seqno,
    /// Whether the source was advanced at all.
    started: bool,
    /// The entry it is at.
    entry: Option<Entry>,
    failed: Option<Error>,
}

impl<S: Source> Visible<S> {
    /// What the snapshot `seqno` sees of `source`, which may go either way.
    pub fn new(source: S, seqno: Seqno) -> Self {
        Visible { source, seqno, started: false, entry: None, failed: None }
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.source
    }

    fn next_seen(&mut self) -> Result<Option<Entry>> {
        if !self.started {
            self.source.advance()?;
            self.started = true;
        }
        while let Some(seen) = self.next_key()? {
            if seen.as_ref().is_some_and(|seen| seen.value.is_some()) {
                return Ok(seen);
            }
        }
        Ok(None)
    }

    /// Takes all versions of the next key. `None` at the end; the entry is `None` if the snapshot sees no version.
    fn next_key(&mut self) -> Result<Option<Option<Entry>>> {
        let Some(entry) = self.source.entry() else { return Ok(None) };
        let key = entry.key.to_vec();
        let mut seen: Option<Entry> = None;
        while let Some(entry) = self.source.entry().filter(|entry| entry.key == key) {
            let newer = seen.as_ref().is_none_or(|seen| entry.seqno > seen.seqno);
            if entry.seqno <= self.seqno && newer {
                seen = Some(entry.to_owned());
            }
            self.source.advance()?;
        }
        Ok(Some(seen))
    }
}

impl<S: Source> Source for Visible<S> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.entry.as_ref().map(Entry::as_ref)
    }

    fn advance(&mut self) -> Result<()> {
        self.entry = None;
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match self.next_seen() {
            Ok(entry) => self.entry = entry,
            Err(error) => return Err(self.failed.insert(error).clone()),
        }
        Ok(())
    }
}
