//! One put, one delete.
//!
//! Put: the key's entry is found, or made with a *none* word; under the entry's latch the record gets its
//! seqno, is appended to a ring and drained, and then the word is published. That is the linearization
//! point. The latch is released before the write is waited for, so no latch is held across I/O; a reader
//! that sees the word before it is durable makes it durable itself.

use crate::core::Core;
use crate::hash::mix;
use crate::index::ADMIT_BYTES;
use crate::long::PartList;
use crate::record::{HEADER, Kind, encode, stored_len};
use crate::storage::Appender;
use crate::word::{Aux, Place, Word};
use crossbeam_epoch::Guard;
use std::cell::RefCell;
use std::sync::atomic::{Ordering::SeqCst, fence};
use tierdb_base::{Error, Result, check_key, check_value};
use tierdb_device::{Cause, Dir};
use tierdb_engine::Durability;
use tierdb_pmem::Pool;

/// Most bytes that inserting a key flushes: the index's, and a page of new HSIT entries.
pub const INDEX_ADMIT: u64 = ADMIT_BYTES + crate::pages::PAGE + 256;

/// How many times, on average, a cached value is replaced without being read in between before its key is no longer taken for
/// one that is read. A hash of entry and seqno is the dice.
const UNREAD_WRITES: u64 = 8;

thread_local! {
    static RECORD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The body of a record that is to be written, and the parts it lists.
pub struct Body<'v> {
    pub kind: Kind,
    pub bytes: std::borrow::Cow<'v, [u8]>,
    pub parts: Option<PartList>,
}

impl Body<'_> {
    /// Whether its word is of the large class.
    pub fn is_long(&self) -> bool {
        self.kind == Kind::Parts
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Stores `value` under `key`.
    pub fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let _changing = self.gate.change()?;
        let body = self.body(key, value)?;
        let stored = stored_len(HEADER + key.len() + body.bytes.len());
        let written = if stored <= self.ring_limit() {
            self.pool
                .admit(stored + INDEX_ADMIT)
                .and_then(|_admitted| self.put_in_ring(key, &body, durability))
        } else {
            self.pool.admit(INDEX_ADMIT).and_then(|_admitted| self.put_on_flash(key, &body, durability))
        };
        let (entry, word) = written.inspect_err(|_| {
            if let Some(parts) = &body.parts {
                self.release_parts(parts);
            }
        })?;
        self.counters.puts.add(1);
        self.counters.user_bytes.add((key.len() + value.len()) as u64);
        self.acknowledge(entry, word, durability)?;
        if stored > self.ring_limit() || body.parts.is_some() {
            self.after_flash_write();
        }
        Ok(())
    }

    /// Longest stored record that goes through a ring: a quarter of it, so that a ring holds several.
    pub fn ring_limit(&self) -> u64 {
        self.layout.ring_bytes / 4
    }

    /// What is stored for the value of `key`: itself, or the list of its parts, which are durable then.
    ///
    /// # Errors
    /// `TooLarge` if the list does not fit a chunk, as with values of more than 16 MiB and chunks of 16 KiB; those of
    /// [`Core::write_parts`].
    pub fn body<'v>(&self, key: &[u8], value: &'v [u8]) -> Result<Body<'v>> {
        if value.len() <= self.longest_body() {
            return Ok(Body { kind: Kind::Value, bytes: value.into(), parts: None });
        }
        let limit = self.longest_value(key.len());
        if value.len() as u64 > limit {
            return Err(Error::TooLarge { what: "value", len: value.len() as u64, limit });
        }
        let (bytes, parts) = self.write_parts_or_collect(value, self.longest_tail())?;
        Ok(Body { kind: Kind::Parts, bytes: bytes.into(), parts: Some(parts) })
    }

    /// As [`Core::write_parts`], after garbage collection if there is no space.
    pub fn write_parts_or_collect(&self, bytes: &[u8], longest_tail: usize) -> Result<(Vec<u8>, PartList)> {
        loop {
            match self.write_parts(bytes, longest_tail, Cause::Foreground) {
                Ok(written) => return Ok(written),
                Err(error) => {
                    self.make_space_after(self.chunks_of(bytes.len(), longest_tail), error)?;
                }
            }
        }
    }

    /// The entry of `key`, which is made if there was none; it is the key's, or free, while the guard is pinned.
    fn pin_entry(&self, key: &[u8]) -> Result<(Guard, u64)> {
        self.where_pages_are(|| {
            let guard = crossbeam_epoch::pin();
            let (entry, _) = self.index.get_or_insert(key, || self.hsit.allocate())?;
            Ok((guard, entry))
        })
    }

    fn put_in_ring(&self, key: &[u8], body: &Body<'_>, durability: Durability) -> Result<(u64, Word)> {
        loop {
            self.reserve_seqnos();
            let (guard, entry) = self.pin_entry(key)?;
            let latched = self.hsit.latch(entry);
            let old = self.hsit.word(entry);
            if old.place() == Place::Free {
                // The key left the index between the lookup and the latch.
                continue;
            }
            let in_flight = self.clock.begin();
            let seqno = in_flight.seqno();
            let appended = RECORD.with_borrow_mut(|record| {
                record.clear();
                let len = encode(record, self.seed, body.kind, entry, seqno, key, &body.bytes);
                let mut lease = self.rings.lease();
                let at = lease.append(record)?;
                lease.drain();
                let filled = lease.fill();
                Ok((Word::new(Place::Ring(at), seqno, len as u64, body.is_long()), filled))
            });
            let (word, filled) = match appended {
                Ok(appended) => appended,
                Err(full) => {
                    drop(in_flight);
                    drop(latched);
                    drop(guard);
                    let stored = stored_len(HEADER + key.len() + body.bytes.len());
                    self.stall(stored, full).inspect_err(|_| self.purge(key, entry))?;
                    continue;
                }
            };
            if let Some(parts) = &body.parts {
                self.long.note(entry, word.tag(), parts.clone());
            }
            self.replace(entry, old, word, seqno, durability, &guard);
            drop(in_flight);
            drop(latched);
            self.pool.fence();
            drop(guard);
            self.after_append(filled);
            return Ok((entry, word));
        }
    }

    /// A record too long for the rings: written to its own group on flash before its word is published.
    fn put_on_flash(&self, key: &[u8], body: &Body<'_>, durability: Durability) -> Result<(u64, Word)> {
        let mut appender = Appender::new(Cause::Foreground);
        let written = self.put_with(&mut appender, key, body, durability);
        appender.seal();
        written
    }

    fn put_with(
        &self,
        appender: &mut Appender<D, ()>,
        key: &[u8],
        body: &Body<'_>,
        durability: Durability,
    ) -> Result<(u64, Word)> {
        loop {
            self.reserve_seqnos();
            let (guard, entry) = self.pin_entry(key)?;
            drop(guard);
            // The record's seqno tells its tag; the order of writes is that of the publishing seqno below.
            let in_flight = self.clock.begin();
            let seqno = in_flight.seqno();
            drop(in_flight);
            let mut record = Vec::new();
            let len = encode(&mut record, self.seed, body.kind, entry, seqno, key, &body.bytes) as u64;
            let word = Word::new(Place::Ring(0), seqno, len, body.is_long());
            let added = appender.add(&self.storage, &*self.pool, &record, word, ());
            let stored = match added.map_err(|((), error)| error).and_then(|_| appender.commit()) {
                Ok(stored) => stored,
                Err(error) => {
                    self.purge(key, entry);
                    self.make_space_after(1, error)?;
                    continue;
                }
            };
            let Some(word) = stored.first().map(|stored| stored.word) else { continue };
            let guard = crossbeam_epoch::pin();
            let latched = self.hsit.latch(entry);
            let old = self.hsit.word(entry);
            let found = if old.place() == Place::Free { Ok(None) } else { self.index.get_fenced(key) };
            if !matches!(found, Ok(Some(found)) if found == entry) {
                // The entry went to another key while the record was written.
                drop(latched);
                self.storage.release(word, &guard);
                found?;
                continue;
            }
            let in_flight = self.clock.begin();
            if let Some(parts) = &body.parts {
                self.long.note(entry, word.tag(), parts.clone());
            }
            self.replace(entry, old, word, in_flight.seqno(), durability, &guard);
            drop(in_flight);
            drop(latched);
            self.pool.fence();
            return Ok((entry, word));
        }
    }

    /// Publishes `new` in place of `old`, which write `seqno` replaces. Under the entry's latch, and while the write is in
    /// flight.
    pub fn replace(
        &self,
        entry: u64,
        old: Word,
        new: Word,
        seqno: u64,
        durability: Durability,
        guard: &crossbeam_epoch::Guard,
    ) {
        let kept = self.versions.keep(entry, seqno, old);
        // In a log, what was published first is durable first, so that a grouped write need not be made
        // durable by its readers, unless it replaces one that must be, or that one has itself replaced, and that a
        // snapshot still sees.
        let is_seen = || kept || self.clock.has_snapshots();
        let dirty = durability == Durability::Durable || !self.ordered || old.is_dirty() && is_seen();
        self.hsit.publish(entry, if dirty { new.dirty() } else { new });
        // Of this and whoever caches the old record, one sees what the other stored.
        fence(SeqCst);
        if self.hsit.aux(entry).slot().is_some()
            && let Some(was_read) = self.uncache(entry)
            && (was_read || !(mix(seqno ^ mix(entry)) >> 32).is_multiple_of(UNREAD_WRITES))
        {
            self.hsit.update_aux(entry, Aux::wanted);
        }
        if !kept {
            self.discard(entry, old.clean(), guard);
        }
    }

    /// Returns when the write that published `word` is as durable as asked.
    pub fn acknowledge(&self, entry: u64, word: Word, durability: Durability) -> Result<()> {
        self.work.want_upkeep();
        match durability {
            Durability::Durable => {
                self.pool.wait(self.pool.lsn())?;
                self.hsit.clear_dirty(entry, word);
            }
            Durability::Grouped if self.ordered => self.work.grouped_write(),
            Durability::Grouped => self.hsit.clear_dirty(entry, word),
        }
        Ok(())
    }

    /// For a write that changes nothing: a durable one still makes the grouped ones before it durable.
    pub fn settle_earlier(&self, durability: Durability) -> Result<()> {
        if durability == Durability::Durable { self.pool.wait(self.pool.lsn()) } else { Ok(()) }
    }

    /// Removes `key`.
    pub fn delete(&self, key: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        let _changing = self.gate.change()?;
        self.reserve_seqnos();
        let admitted = self.pool.admit(256)?;
        self.counters.deletes.add(1);
        self.counters.user_bytes.add(key.len() as u64);
        loop {
            let guard = crossbeam_epoch::pin();
            let Some(entry) = self.index.get(key)? else {
                drop(admitted);
                return self.settle_earlier(durability);
            };
            let latched = self.hsit.latch(entry);
            let old = self.hsit.word(entry);
            match old.place() {
                Place::Free => continue,
                Place::None => {
                    drop(latched);
                    drop(admitted);
                    // Another delete of the key may not be durable yet, and this one answers for it.
                    if old.is_dirty() && durability == Durability::Durable {
                        self.hsit.persist(entry, old)?;
                    }
                    return self.settle_earlier(durability);
                }
                Place::Ring(_) | Place::Flash(..) | Place::Damaged => {}
            }
            let in_flight = self.clock.begin();
            let word = Word::deleted(in_flight.seqno());
            self.replace(entry, old, word, in_flight.seqno(), durability, &guard);
            drop(in_flight);
            drop(latched);
            self.pool.fence();
            drop(guard);
            drop(admitted);
            self.acknowledge(entry, word, durability)?;
            self.purge(key, entry);
            return Ok(());
        }
    }

    /// Takes a key that is not there out of the index, now or when no snapshot sees a value of it and the log has room.
    pub fn purge(&self, key: &[u8], entry: u64) {
        let admitted = self.pool.admit(ADMIT_BYTES);
        // Until the key is added, the entry goes to no other: one that was added for it before would be replaced.
        let _guard = crossbeam_epoch::pin();
        let done = match admitted {
            Ok(_admitted) => self.try_purge(key, entry),
            Err(_) => self.hsit.word(entry).place() != Place::None || self.is_gone(key, entry),
        };
        if !done {
            self.deleted.lock().add(entry, key, self.clock.last());
        }
    }

    /// Whether `key` has left the index, or has another entry.
    fn is_gone(&self, key: &[u8], entry: u64) -> bool {
        matches!(self.index.get(key), Ok(found) if found != Some(entry))
    }

    /// As [`Core::purge`], if it can be done now. `true` when nothing is left to do.
    fn try_purge(&self, key: &[u8], entry: u64) -> bool {
        let _guard = crossbeam_epoch::pin();
        let _latched = self.hsit.latch(entry);
        let word = self.hsit.word(entry);
        if word.place() != Place::None {
            return true;
        }
        // A snapshot that is not open yet sees what is there now.
        if word.is_dirty() || self.versions.has_value(entry) {
            // Nor is anything left to do if the entry has become another key's.
            return self.is_gone(key, entry);
        }
        match self.index.remove(key, entry) {
            Ok(true) => {
                self.hsit.mark(entry, Word::FREE);
                self.hsit.free_later(entry);
                true
            }
            // The entry is another key's by now: nothing to free.
            Ok(false) => true,
            // The index is damaged there. Its key is still in it, so the entry stays the key's.
            Err(_) => false,
        }
    }

    /// Takes keys out of the index that were deleted while a snapshot was open that sees them. Tries each of them once at the
    /// most, and none that was deleted after the oldest open snapshot was taken. What the log has no room for stays for later.
    pub fn purge_deleted(&self) {
        let waiting = self.deleted.lock().len();
        for _ in 0..waiting {
            let Some(entry) = self.deleted.lock().due(self.versions.oldest()) else { return };
            // A grouped delete has nobody else who would clear the mark that it may have.
            let word = self.hsit.word(entry);
            let is_marked = word.place() == Place::None && word.is_dirty();
            if is_marked && self.hsit.persist(entry, word).is_err() {
                return;
            }
            let Ok(_admitted) = self.pool.admit(ADMIT_BYTES) else { return };
            // Locked until it is done: who counts keys finds each either here, or not in the index.
            let mut deleted = self.deleted.lock();
            let Some((entry, key)) = deleted.pop(self.versions.oldest()) else { return };
            if !self.try_purge(&key, entry) {
                deleted.add(entry, &key, self.clock.last());
            }
        }
    }

    /// If `error` says that flash is full, tries to make room for `chunks` chunks, and fails with it if there is
    /// not so much to gain.
    pub fn make_space_after(&self, chunks: u64, error: Error) -> Result<()> {
        match error {
            Error::NoSpace { tier: tierdb_base::TierRole::Flash, .. } => self.gain_flash(chunks, error),
            other => Err(other),
        }
    }
}
