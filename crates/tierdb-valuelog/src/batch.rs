//! Batches: writes of several keys that are visible and durable at once.
//!
//! 1. Entries are found or made for all keys; values that do not fit the rings go to flash, durably.
//! 2. All entries are latched; the other records, and a *redo record* that lists (entry, new word), are
//!    appended to one ring and drained.
//! 3. Each entry is marked pending (word 1). The redo record's offset is published in the ring's commit slot and
//!    drained: the batch is durable.
//! 4. The words are published and drained.
//! 5. The slot is cleared and drained, the marks are taken away, the latches are released.
//!
//! | crash after | on open |
//! |---|---|
//! | 1, 2 | records that nothing refers to; keys with a *none* word, which are removed |
//! | 3, 4 | the slot names the redo record: all its words are published, then the slot is cleared |
//! | 5 | done |
//!
//! A replay cannot undo a later write, since none is made before the latches are released, and the slot is
//! durably clear by then. A reader that meets a mark waits for the latch, so whoever has seen one word of
//! the batch sees all of them.

use crate::core::Core;
use crate::long::PartList;
use crate::pages::{PAGE, PageNo};
use crate::record::{HEADER, Kind, encode, stored_len};
use crate::redo::{REDO, redo_list};
use crate::ring::Full;
use crate::storage::Appender;
use crate::word::{Place, Word};
use crate::write::{Body, INDEX_ADMIT};
use std::collections::{HashMap, HashSet};
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{Durability, Op, WriteBatch};
use tierdb_pmem::Pool;

/// The number of no entry.
const NO_ENTRY: u64 = u64::MAX;

/// A write of a batch, on its way.
struct Planned<'b> {
    key: &'b [u8],
    /// `None` for a delete.
    body: Option<Body<'b>>,
    /// [`NO_ENTRY`] as long as it is not known.
    entry: u64,
    /// The new word, once it is known.
    word: Option<Word>,
    /// A delete of a key that is not there, for which the index has no room: nothing is to be done if that
    /// is still so when the batch is installed.
    is_absent: bool,
}

impl Planned<'_> {
    fn stored_len(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| stored_len(HEADER + self.key.len() + body.bytes.len()))
    }
}

/// Entries and new words of planned writes.
fn pairs(planned: &[Planned<'_>]) -> impl Iterator<Item = (u64, Word)> {
    planned.iter().map(|write| (write.entry, write.word.unwrap_or(Word::NONE)))
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Applies all writes of `batch` at once.
    pub fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        let _changing = self.gate.change()?;
        if batch.is_empty() {
            return self.settle_earlier(durability);
        }
        let mut planned = self.plan(batch)?;
        let installed = self.write_planned(&mut planned, durability);
        if installed.is_err() {
            for write in &planned {
                if let Some(parts) = write.body.as_ref().and_then(|body| body.parts.as_ref()) {
                    self.release_parts(parts);
                }
            }
        }
        let acknowledged = installed.and_then(|()| self.acknowledge_all(&planned, durability));
        // Not before: what is not durable stays in the index.
        for write in &planned {
            if write.body.is_none() || acknowledged.is_err() {
                self.purge_if_absent(write.key, write.entry);
            }
        }
        acknowledged?;
        self.counters.batches.add(1);
        self.counters.user_bytes.add(batch.bytes() as u64);
        self.after_flash_write();
        Ok(())
    }

    /// The writes that count, with the parts of long values written.
    fn plan<'b>(&self, batch: &'b WriteBatch) -> Result<Vec<Planned<'b>>> {
        let mut last: HashMap<&[u8], usize> = HashMap::with_capacity(batch.len());
        for (number, op) in batch.ops().iter().enumerate() {
            last.insert(op.key(), number);
        }
        let mut planned: Vec<Planned<'b>> = Vec::with_capacity(last.len());
        for (number, op) in batch.ops().iter().enumerate() {
            if last[op.key()] != number {
                continue;
            }
            let body = match op {
                Op::Delete { .. } => None,
                Op::Put { value, .. } => match self.body(op.key(), value) {
                    Ok(body) => Some(body),
                    Err(error) => {
                        let parts: Vec<&PartList> =
                            planned.iter().filter_map(|p| p.body.as_ref()?.parts.as_ref()).collect();
                        parts.into_iter().for_each(|list| self.release_parts(list));
                        return Err(error);
                    }
                },
            };
            planned.push(Planned { key: op.key(), body, entry: NO_ENTRY, word: None, is_absent: false });
        }
        Ok(planned)
    }

    /// Brings the batch into the store, visible and ordered; durable when it has been waited for.
    fn write_planned(&self, planned: &mut Vec<Planned<'_>>, durability: Durability) -> Result<()> {
        let deletes_only = planned.iter().all(|write| write.body.is_none());
        let mut full = false;
        let mut absent = Vec::new();
        loop {
            // Each try takes one or two.
            self.reserve_seqnos();
            planned.append(&mut absent);
            self.find_entries(planned)?;
            absent.extend(planned.extract_if(.., |write| write.is_absent));
            if planned.is_empty() {
                if self.are_absent(&absent)? {
                    return Ok(());
                }
                continue;
            }
            let longest = planned.iter().map(Planned::stored_len).max().unwrap_or(0);
            let redo_len = stored_len(HEADER + planned.len() * REDO);
            let in_ring: u64 = planned.iter().map(Planned::stored_len).sum::<u64>() + redo_len;
            let spilled = in_ring > self.ring_limit() || longest > self.ring_limit();
            // Deletes must succeed when both the rings and flash are full.
            let pages = if deletes_only && (spilled || full) { self.redo_pages(planned.len()) } else { None };
            let installed = if let Some(pages) = pages {
                let admitted = self.pool.admit((pages.len() as u64 + 1) * PAGE + 32 * planned.len() as u64);
                let install = |_admitted| self.install(planned, &absent, RedoIn::Pages(&pages), durability);
                let installed = admitted.and_then(install);
                pages.into_iter().for_each(|page| self.pages.give_back(page));
                installed?
            } else if spilled {
                self.write_spilled(planned, &absent, durability)?
            } else {
                let _admitted = self.pool.admit(in_ring + 32 * planned.len() as u64 + 4096)?;
                self.install(planned, &absent, RedoIn::Ring, durability)?
            };
            match installed {
                Installed::Yes(filled) => {
                    self.after_append(filled);
                    return Ok(());
                }
                Installed::KeyMoved => {}
                Installed::RingFull(_) if deletes_only && !full => full = true,
                // The list of a spilled batch takes half a ring at the most.
                Installed::RingFull(ring) => {
                    self.stall(if spilled { self.layout.ring_bytes / 2 } else { in_ring }, ring)?
                }
            }
        }
    }

    /// Finds or makes the entry of every key. Where the index is full, keys that are to be deleted and are not
    /// there are marked, so that a batch of deletes always succeeds.
    fn find_entries(&self, planned: &mut [Planned<'_>]) -> Result<()> {
        self.where_pages_are(|| self.find_or_make_entries(planned))
    }

    /// Nobody is pinned meanwhile, so an entry that was found for one key may have become another's.
    fn find_or_make_entries(&self, planned: &mut [Planned<'_>]) -> Result<()> {
        let mut is_full = false;
        // What an earlier try has found may have gone to other keys.
        planned.iter_mut().for_each(|write| write.entry = NO_ENTRY);
        for write in planned {
            let is_delete = write.body.is_none();
            let found = match is_delete && is_full {
                true => self.index.get(write.key)?,
                false => match self.find_or_make_entry(write.key) {
                    Ok(entry) => Some(entry),
                    Err(error) if is_delete && error.kind() == ErrorKind::NoSpace => {
                        is_full = true;
                        self.index.get(write.key)?
                    }
                    Err(error) => return Err(error),
                },
            };
            write.is_absent = found.is_none();
            write.entry = found.unwrap_or(NO_ENTRY);
        }
        Ok(())
    }

    fn find_or_make_entry(&self, key: &[u8]) -> Result<u64> {
        let _admitted = self.pool.admit(INDEX_ADMIT)?;
        Ok(self.index.get_or_insert(key, || self.hsit.allocate())?.0)
    }

    /// Whether there is a moment during this call at which the index has none of the keys.
    fn are_absent(&self, absent: &[Planned<'_>]) -> Result<bool> {
        // A key is counted before it can get a value: if none was, all that are absent now were so from the first
        // look to the last.
        let inserted = self.index.inserted();
        for write in absent {
            if self.index.get(write.key)?.is_some() {
                return Ok(false);
            }
        }
        Ok(absent.len() < 2 || self.index.inserted() == inserted)
    }

    /// Returns when an installed batch is as durable as asked.
    fn acknowledge_all(&self, planned: &[Planned<'_>], durability: Durability) -> Result<()> {
        self.work.want_upkeep();
        if durability == Durability::Durable {
            self.pool.wait(self.pool.lsn())?;
        }
        for write in planned {
            if let Some(word) = write.word.filter(|_| durability == Durability::Durable || !self.ordered) {
                self.hsit.clear_dirty(write.entry, word);
            }
        }
        if durability == Durability::Grouped && self.ordered {
            self.work.grouped_write();
        }
        Ok(())
    }

    /// Writes the records, and the redo list if it is long, to flash before anything is latched.
    fn write_spilled(
        &self,
        planned: &mut [Planned<'_>],
        absent: &[Planned<'_>],
        durability: Durability,
    ) -> Result<Installed> {
        let entries: HashSet<u64> = planned.iter().map(|write| write.entry).collect();
        if entries.len() < planned.len() {
            return Ok(Installed::KeyMoved);
        }
        let mut appender = Appender::new(Cause::Foreground);
        let mut words: HashMap<u64, Word> = HashMap::with_capacity(planned.len());
        let mut redo_parts = None;
        let outcome = self.spill(planned, &mut appender, &mut words).and_then(|seqno| {
            for write in planned.iter_mut() {
                write.word = Some(words.get(&write.entry).copied().unwrap_or(Word::deleted(seqno)));
            }
            let list = redo_list(pairs(planned));
            let redo = if stored_len(HEADER + list.len()) <= self.ring_limit() {
                (Kind::Redo, list)
            } else {
                let (body, parts) = self.write_parts_or_collect(&list, 0)?;
                redo_parts = Some(parts);
                // With what is left out at the end of a ring, twice as much fits an empty one.
                let (record, most) = (stored_len(HEADER + body.len()), self.layout.ring_bytes / 2);
                if record > most {
                    let len = list.len() as u64;
                    return Err(Error::TooLarge {
                        what: "list of a batch's writes",
                        len,
                        limit: len * most / record,
                    });
                }
                (Kind::RedoParts, body)
            };
            let list_len = stored_len(HEADER + redo.1.len());
            let _admitted = self.pool.admit(list_len + 32 * planned.len() as u64 + 4096)?;
            self.install(planned, absent, RedoIn::Record(redo.0, redo.1), durability)
        });
        if !matches!(outcome, Ok(Installed::Yes(_))) {
            appender.abandon();
            let guard = crossbeam_epoch::pin();
            words.values().for_each(|word| self.storage.release(*word, &guard));
        }
        appender.seal();
        redo_parts.iter().for_each(|parts| self.release_parts(parts));
        outcome
    }

    /// Writes the records to flash. Returns the seqno that their tags name.
    fn spill(
        &self,
        planned: &[Planned<'_>],
        appender: &mut Appender<D, u64>,
        words: &mut HashMap<u64, Word>,
    ) -> Result<u64> {
        let seqno = self.clock.begin().seqno();
        let mut record = Vec::new();
        // Writes before `at` are in the group or stored; those before `stored` are stored.
        let (mut at, mut stored) = (0, 0);
        loop {
            if let Some(write) = planned.get(at) {
                let Some(body) = &write.body else {
                    at += 1;
                    continue;
                };
                record.clear();
                let len =
                    encode(&mut record, self.seed, body.kind, write.entry, seqno, write.key, &body.bytes);
                let word = Word::new(Place::Ring(0), seqno, len as u64, body.is_long());
                match appender.add(&self.storage, &*self.pool, &record, word, write.entry) {
                    Ok(None) => {
                        at += 1;
                        continue;
                    }
                    Ok(Some(_)) => {}
                    Err((_, error)) => {
                        self.make_space_after(1, error)?;
                        continue;
                    }
                }
            }
            match appender.commit() {
                Ok(done) => {
                    words.extend(done.into_iter().map(|s| (s.with, s.word)));
                    stored = at;
                }
                Err(error) => {
                    self.make_space_after(1, error)?;
                    at = stored;
                }
            }
            if stored == planned.len() {
                return Ok(seqno);
            }
        }
    }

    /// Steps 2 to 5. The keys in `absent` are deleted by being found absent when readers of the others already wait.
    /// With [`RedoIn::Record`] the records are on flash already, and the words known.
    fn install(
        &self,
        planned: &mut [Planned<'_>],
        absent: &[Planned<'_>],
        redo_in: RedoIn<'_>,
        durability: Durability,
    ) -> Result<Installed> {
        let guard = crossbeam_epoch::pin();
        let entries: Vec<u64> = planned.iter().map(|write| write.entry).collect();
        let latched = self.hsit.latch_all(&entries);
        for write in planned.iter() {
            let old = self.hsit.word(write.entry);
            if old.place() == Place::Free || self.index.get_fenced(write.key)? != Some(write.entry) {
                return Ok(Installed::KeyMoved);
            }
        }
        let in_flight = self.clock.begin();
        let seqno = in_flight.seqno();
        let mut lease = self.rings.lease();
        let mut record = Vec::new();
        let (redo_kind, redo, pages) = match redo_in {
            RedoIn::Record(kind, body) => (kind, body, &[][..]),
            RedoIn::Ring | RedoIn::Pages(_) => {
                for write in planned.iter_mut() {
                    write.word = Some(match &write.body {
                        None => Word::deleted(seqno),
                        Some(body) => {
                            record.clear();
                            let (kind, entry) = (body.kind, write.entry);
                            let len =
                                encode(&mut record, self.seed, kind, entry, seqno, write.key, &body.bytes);
                            let at = match lease.append(&record) {
                                Ok(at) => at,
                                Err(full) => return Ok(Installed::RingFull(full)),
                            };
                            Word::new(Place::Ring(at), seqno, len as u64, body.is_long())
                        }
                    });
                }
                let pages = if let RedoIn::Pages(pages) = redo_in { pages } else { &[] };
                (Kind::Redo, redo_list(pairs(planned)), pages)
            }
        };
        let redo_at = if pages.is_empty() {
            record.clear();
            encode(&mut record, self.seed, redo_kind, 0, seqno, &[], &redo);
            match lease.append(&record) {
                Ok(at) => at,
                Err(full) => return Ok(Installed::RingFull(full)),
            }
        } else {
            self.fill_redo_pages(pages, &redo, seqno)
        };
        lease.drain();
        let installed = self.hsit.together(&entries, || -> Result<bool> {
            if !self.are_absent(absent)? {
                return Ok(false);
            }
            lease.publish_commit(redo_at);
            self.pool.fence();
            for write in planned.iter_mut() {
                let (Some(word), old) = (write.word, self.hsit.word(write.entry)) else { continue };
                if let Some(parts) = write.body.as_ref().and_then(|body| body.parts.as_ref()) {
                    self.long.note(write.entry, word.tag(), parts.clone());
                }
                if old.place() == Place::None && word.place() == Place::None {
                    // Another delete of the key may not be durable yet, and this one answers for it.
                    if old.is_dirty() {
                        self.hsit.publish(write.entry, old);
                    }
                    write.word = Some(old.clean());
                    continue;
                }
                self.replace(write.entry, old, word, seqno, durability, &guard);
            }
            self.pool.fence();
            lease.publish_commit(0);
            self.pool.fence();
            Ok(true)
        });
        if !installed? {
            return Ok(Installed::KeyMoved);
        }
        let filled = lease.fill();
        drop(lease);
        drop(in_flight);
        drop(latched);
        Ok(Installed::Yes(filled))
    }

    /// As [`Core::purge`], if the key has an entry, and that no value.
    fn purge_if_absent(&self, key: &[u8], entry: u64) {
        // A try that was refused may have forgotten what an earlier one had made.
        let made = || self.index.get(key).ok().flatten().unwrap_or(NO_ENTRY);
        let entry = if entry == NO_ENTRY { made() } else { entry };
        if self.hsit.at(entry).is_some() && self.hsit.word(entry).place() == Place::None {
            self.purge(key, entry);
        }
    }
}

/// Where the redo list of a batch goes.
enum RedoIn<'p> {
    /// Into the ring, with the records.
    Ring,
    /// Into the ring, in a record of this kind and body, the records being on flash.
    Record(Kind, Vec<u8>),
    /// Into these pages of the pool: there are no records.
    Pages(&'p [PageNo]),
}

/// How far a batch came.
enum Installed {
    /// It is installed; the ring is so many bytes full.
    Yes(u64),
    /// A key left the index meanwhile: find its entry again.
    KeyMoved,
    /// The ring has no room: nothing was published.
    RingFull(Full),
}
