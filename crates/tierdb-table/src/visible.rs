//! What a snapshot sees of a source.

use crate::entry::EntryRef;
use crate::iter::Direction;
use crate::merge::Source;
use tierdb_base::{Error, Result, Seqno, mutant};

/// The keys of a source that a snapshot sees, each with its newest version that is not newer than the snapshot.
/// Tombstones are not seen.
pub struct Visible<S> {
    source: S,
    direction: Direction,
    seqno: Seqno,
    started: bool,
    /// Whether it is at an entry. Forward that is the source's own, and the versions behind it are passed by on the
    /// next call. Backward the newest version comes last, so it is the one below, and the source is past it.
    is_at: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    seen: Seqno,
    failed: Option<Error>,
}

impl<S: Source> Visible<S> {
    /// What the snapshot `seqno` sees of `source`, which goes in `direction`.
    pub fn new(source: S, direction: Direction, seqno: Seqno) -> Self {
        let (key, value) = (Vec::new(), Vec::new());
        Visible { source, direction, seqno, started: false, is_at: false, key, value, seen: 0, failed: None }
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.source
    }

    fn start(&mut self) -> Result<()> {
        if !self.started {
            self.source.advance()?;
            self.started = true;
        }
        Ok(())
    }

    /// Takes the key the source is at. `false` at the end.
    fn take_key(&mut self) -> bool {
        self.key.clear();
        let entry = self.source.entry();
        self.key.extend_from_slice(entry.map_or(&[], |entry| entry.key));
        entry.is_some()
    }

    /// The entry the source is at, while it is of the key taken.
    fn version(&self) -> Option<EntryRef<'_>> {
        self.source.entry().filter(|entry| entry.key == self.key)
    }

    fn forward(&mut self) -> Result<bool> {
        let mut passing = self.started;
        self.start()?;
        loop {
            if passing {
                while self.version().is_some() {
                    self.source.advance()?;
                }
            }
            if !self.take_key() {
                return Ok(false);
            }
            while self.version().is_some_and(|version| version.seqno > self.seqno) {
                self.source.advance()?;
            }
            if self.version().is_some_and(|version| version.value.is_some() || !mutant::keep("tombstone")) {
                return Ok(true);
            }
            passing = true;
        }
    }

    fn backward(&mut self) -> Result<bool> {
        self.start()?;
        while self.take_key() {
            let mut newest: Option<(Seqno, bool)> = None;
            while let Some(version) = self.source.entry().filter(|entry| entry.key == self.key) {
                // Of equal entries the first one counts, as it does forward.
                if version.seqno <= self.seqno && newest.is_none_or(|(seqno, _)| seqno < version.seqno) {
                    newest = Some((version.seqno, version.value.is_some()));
                    self.value.clear();
                    self.value.extend_from_slice(version.value.unwrap_or_default());
                }
                self.source.advance()?;
            }
            if let Some((seqno, has_value)) = newest
                && (has_value || !mutant::keep("tombstone"))
            {
                self.seen = seqno;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<S: Source> Source for Visible<S> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        if !self.is_at {
            return None;
        }
        match self.direction {
            Direction::Forward => self.source.entry(),
            Direction::Backward => {
                Some(EntryRef { key: &self.key, seqno: self.seen, value: Some(&self.value) })
            }
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.is_at = false;
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let moved = match self.direction {
            Direction::Forward => self.forward(),
            Direction::Backward => self.backward(),
        };
        self.is_at = moved.inspect_err(|error| self.failed = Some(error.clone()))?;
        Ok(())
    }
}
