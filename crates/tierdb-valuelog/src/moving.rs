//! Moving records: from the write buffer to Value Storage (reclamation, PRISM §5.2), and within Value
//! Storage (garbage collection §5.2, and scan ranges rewritten in key order §4.4).
//!
//! All three do the same: copy records to a new place, durably; then, under each entry's latch, publish
//! the new word if the old one is still there; then drain; and only then give up the old place. A crash
//! before a word is durable leaves the old record where the old word points.
//!
//! Readers and writers go on meanwhile, and are never waited for while a latch is held.

use crate::cache::Member;
use crate::core::{Core, Moving};
use crate::record::{HEADER, Header, stored_len};
use crate::ring::Ring;
use crate::storage::{Appender, Device, Stored, Victim, is_beside};
use crate::word::{Place, UNIT, Word};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};
use tierdb_base::{Error, Result};
use tierdb_device::{BLOCK, Cause, Dir};
use tierdb_pmem::Pool;

/// Victims in a row after which a collection that has gained no chunk gives up.
const VICTIMS_FOR_A_GAIN: u32 = 16;
/// Victims without a gain after which better ones are looked for: other threads may have emptied what was named.
const NAME_AGAIN: u32 = 8;
/// Most victims of a pass that is for garbage alone; as many as a ring fills, if that is more.
const LEAST_VICTIMS: u64 = 256;
/// Records side by side that are not worth moving to where their neighbours in key order are.
pub const LONG_RUN: usize = 8;
/// Longest time that a write, or a pass of reclamation, waits for emptied chunks to become free before there is no space.
pub const READERS_GONE: Duration = Duration::from_secs(2);

/// How much reclamation is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Whole groups, until the rings are a quarter below the watermark.
    Background,
    /// The same, and until each ring has room for so many bytes: a writer did not find it, however full the ring is.
    Room(u64),
    /// Everything that is in the rings now.
    All,
}

/// Why a collection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Nothing more was wanted, or is to be gained, or the file system is full.
    Done,
    /// There is no chunk to move records to until emptied ones are free.
    ForWantOfChunks,
}

/// Chunks that a collection goes through.
#[derive(Default)]
struct Victims {
    /// The next ones, the first of them last.
    next: Vec<Victim>,
    not_emptied: HashSet<u32>,
}

impl Victims {
    /// The next chunk to empty, if there is one.
    fn next<D: Dir>(&mut self, device: &Device<D>) -> Option<u32> {
        loop {
            while let Some(victim) = self.next.pop() {
                // Since it was named it may have been given up, and filled anew.
                if device.gains(victim) {
                    return Some(victim.number);
                }
            }
            self.next = device.victims(&self.not_emptied);
            if self.next.is_empty() {
                return None;
            }
        }
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Bytes of a ring at which reclamation starts.
    pub fn watermark(&self) -> u64 {
        self.layout.ring_bytes * u64::from(self.options.reclaim_pct) / 100
    }

    /// Moves live records out of the rings of which that is asked.
    ///
    /// # Errors
    /// `NoSpace` if flash has no chunk for them: they stay where they are.
    pub fn reclaim(&self, how: Reclaim) -> Result<()> {
        let mut appender = self.reclaim.lock();
        let mut given_up = None;
        self.rings.mark_log();
        let mut all = Ok(());
        for ring in self.rings.iter() {
            if self.is_due(ring, how) {
                let done = self.reclaim_ring(ring, how, &mut given_up, &mut appender);
                appender.abandon();
                // Another ring may have room to give where this one has none.
                all = all.and(done);
            }
        }
        self.rings.mark_log();
        all
    }

    /// Whether there is something to move out of the ring.
    fn is_due(&self, ring: &Ring, how: Reclaim) -> bool {
        let filled = ring.head() - ring.tail();
        match how {
            Reclaim::All => true,
            Reclaim::Background => filled >= self.watermark(),
            Reclaim::Room(bytes) => filled >= self.watermark() || filled + bytes > self.layout.ring_bytes,
        }
    }

    /// Where flash has no chunk, readers that hold some are waited for until `given_up`.
    fn reclaim_ring(
        &self,
        ring: &Ring,
        how: Reclaim,
        given_up: &mut Option<Instant>,
        appender: &mut Appender<D, Moving>,
    ) -> Result<()> {
        let head = ring.head();
        // Whoever appended a record before `head` has published its word after this.
        self.clock.settled();
        let in_background = self.watermark().saturating_sub(self.layout.ring_bytes / 4);
        let kept = match how {
            Reclaim::All => 0,
            Reclaim::Background => in_background,
            Reclaim::Room(bytes) => in_background.min(self.layout.ring_bytes.saturating_sub(bytes)),
        };
        let target = head.saturating_sub(kept).max(ring.tail());
        let mut end = ring.tail();
        let mut bytes = Vec::new();
        let walked = self.rings.walk(ring, ring.tail(), target, head, |found| {
            let place = Place::Ring(found.offset);
            let Some(word) = self.live_word(&found.header, place) else {
                self.counters.absorbed_records.add(1);
                end = found.end;
                return Ok(());
            };
            bytes.resize(found.header.stored_len() as usize, 0);
            let read = self.pool.read(found.offset, &mut bytes);
            if read.is_err() || !found.header.is_whole(&bytes, self.seed) {
                // Its word stays: reading the key says that it is damaged.
                self.counters.damaged_records.add(1);
                end = found.end;
                return Ok(());
            }
            let mut moving = Moving { entry: found.header.entry, from: place, filling: 0 };
            loop {
                match appender.add(&self.storage, &*self.pool, &bytes, word, moving) {
                    Ok(None) => break,
                    Ok(Some(back)) => {
                        self.commit(appender)?;
                        self.release_ring(ring, end);
                        moving = back;
                    }
                    Err((back, error)) => {
                        // Nothing is pending: what lies before this record is committed, or nobody needs it.
                        self.release_ring(ring, end);
                        self.try_collect(1, given_up, error)?;
                        // What was waited for came: the next time counts anew.
                        *given_up = None;
                        moving = back;
                    }
                }
            }
            end = found.end;
            Ok(())
        })?;
        // In the background a group that is not full waits for more, unless the ring is short of room.
        if self.is_due(ring, how) {
            self.commit(appender)?;
            self.release_ring(ring, walked);
        }
        Ok(())
    }

    fn release_ring(&self, ring: &Ring, to: u64) {
        if self.rings.release(ring, to, &crossbeam_epoch::pin()) {
            self.work.settle_epochs();
            self.work.made_space();
        }
    }

    /// The word that makes the record at `place` live: its entry's, or one that a snapshot keeps.
    fn live_word(&self, header: &Header, place: Place) -> Option<Word> {
        self.hsit.at(header.entry)?;
        let word = self.hsit.word(header.entry).clean();
        let at_place = word.place() == place && header.is_coupled(header.entry, word.tag());
        if at_place {
            return Some(word);
        }
        self.versions.kept(header.entry, place)
    }

    /// Writes what `appender` holds and publishes the new words.
    fn commit(&self, appender: &mut Appender<D, Moving>) -> Result<()> {
        let stored = appender.commit()?;
        self.counters.reclaimed_records.add(stored.len() as u64);
        self.swing(&stored);
        for Stored { with: Moving { entry, from, .. }, word } in stored {
            if self.hsit.aux(entry).is_wanted() && self.admit_moved(entry, from, word) {
                self.counters.cached_by_reclaim.add(1);
            }
        }
        Ok(())
    }

    /// Publishes the new words of records that were copied, where the old ones still stand, and drains
    /// them. What nobody needs any more is released.
    ///
    /// Nobody was pinned while a record was read and written. Meanwhile it may have gone, its chunk been filled anew, and a
    /// newer record of the key come to the same place with the same tag: its word is the same, and the filling is not.
    fn swing(&self, stored: &[Stored<Moving>]) {
        let guard = crossbeam_epoch::pin();
        let (mut left, mut marked) = (Vec::with_capacity(stored.len()), Vec::new());
        for &Stored { with: Moving { entry, from, filling }, word: to } in stored {
            let latched = self.hsit.latch(entry);
            let is_copied = self.storage.filling(from) == filling;
            if let Some(now) = is_copied.then(|| self.hsit.swing(entry, from, to)).flatten() {
                // As in `replace`.
                fence(SeqCst);
                if let Some(slot) = self.hsit.aux(entry).slot() {
                    self.cache.relocate(slot, entry, now.clean().0, to.0);
                }
                if now.is_dirty() {
                    marked.push((entry, to));
                }
                left.push(now.clean());
            } else if is_copied && self.versions.relocate(entry, from, to) {
                left.push(to.moved_to(from));
            } else {
                self.storage.release(to, &guard);
            }
            drop(latched);
        }
        self.pool.fence();
        if !self.ordered {
            // Their writers look for the words that they published, and would leave these marked.
            marked.into_iter().for_each(|(entry, word)| self.hsit.clear_dirty(entry, word));
        }
        for word in left {
            self.storage.release(word, &guard);
        }
    }

    /// After a failure to get `chunks` chunks, of which none is held any more: collects garbage until there are
    /// so many, or fails with the same error if there is too little, or readers hold it until `given_up`, which the first wait
    /// sets: what collection takes is no time for them to go.
    pub fn try_collect(&self, chunks: u64, given_up: &mut Option<Instant>, error: Error) -> Result<()> {
        let Error::NoSpace { tier: tierdb_base::TierRole::Flash, .. } = error else { return Err(error) };
        for device in self.storage.devices() {
            device.retry_growth()?;
            device.try_unreadable_again();
        }
        self.work.settle_epochs();
        let enough = || self.storage.room() >= chunks;
        if enough() {
            return Ok(());
        }
        loop {
            let (returned, mut is_short) = (self.storage.returned(), false);
            for device in self.storage.devices() {
                is_short |= self.collect_while(device, || !enough())? == Ended::ForWantOfChunks;
                if enough() {
                    return Ok(());
                }
            }
            // What was emptied is free when those who may still read it have gone. Then there may be chunks for what could not be
            // collected; what could has gained too little.
            loop {
                // Before the look at what has come: what comes later is waited for.
                let is_waiting = self.storage.devices().iter().any(|device| device.is_waiting());
                if enough() {
                    return Ok(());
                }
                let now = Instant::now();
                if now >= *given_up.get_or_insert(now + READERS_GONE) {
                    return Err(error);
                }
                if is_short && self.storage.returned() > returned {
                    break;
                }
                if !is_waiting {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_micros(200));
                self.work.settle_epochs();
            }
        }
    }

    /// Reclaims as is asked, and collects where chunks are short: reclamation may have failed for want of what that gains.
    pub fn gain_space(&self, how: Reclaim) -> Result<()> {
        let reclaimed = self.reclaim(how);
        reclaimed.and(self.collect_where_wanted())
    }

    /// Collects chunks of every device that is short of free ones, and some of each that has too much garbage.
    pub fn collect_where_wanted(&self) -> Result<()> {
        let options = &self.options;
        for device in self.storage.devices() {
            // As much as was written may have become garbage, and where there is too much each victim has its share of it at least. So
            // twice as many victims keep ahead of writers, and make none of them wait for all the garbage that there is.
            // Nor do those that come after a long time without any: then it is so many in each pass.
            let most = (self.layout.ring_bytes / self.layout.chunk_bytes).max(LEAST_VICTIMS);
            let mut left = (2 * device.take_given_out() * 100 / u64::from(options.gc_garbage_pct)).min(most);
            self.collect_while(device, || {
                let is_left = left > 0;
                left = left.saturating_sub(1);
                let is_wanted =
                    device.is_short(options.gc_free_pct) || is_left && device.is_wasteful(options);
                is_wanted && !self.work.is_stopping()
            })?;
        }
        Ok(())
    }

    /// Collects until no chunk has much garbage.
    pub fn collect_all(&self) -> Result<()> {
        for device in self.storage.devices() {
            device.try_unreadable_again();
            // As many chunks as there are, at the most, however writers go on.
            let mut left = device.chunks_in_file();
            self.collect_while(device, || {
                left = left.saturating_sub(1);
                left > 0
            })?;
        }
        Ok(())
    }

    /// Gives the space of free chunks back to the file system, once those who may still read what was emptied have gone.
    pub fn discard_free(&self) -> Result<()> {
        let until = Instant::now() + READERS_GONE;
        self.work.settle_epochs();
        for device in self.storage.devices() {
            while device.is_waiting() && !self.work.is_inline() && Instant::now() < until {
                self.work.settle_epochs();
                std::thread::sleep(Duration::from_micros(200));
            }
            device.discard_free(&*self.pool)?;
        }
        Ok(())
    }

    /// Collects one chunk after the other while `wanted`, and while it gains something: live values of several
    /// victims fill one chunk, so a gain may need a few.
    fn collect_while(&self, device: &Arc<Device<D>>, mut wanted: impl FnMut() -> bool) -> Result<Ended> {
        let (mut most, mut without_gain) = (device.free_soon(), 0);
        let mut victims = Victims::default();
        while wanted() && without_gain < VICTIMS_FOR_A_GAIN {
            if let Some(ended) = self.collect_one(device, &mut victims)? {
                return Ok(ended);
            }
            self.work.settle_epochs();
            let free = device.free_soon();
            without_gain = if free > most { 0 } else { without_gain + 1 };
            if without_gain % NAME_AGAIN == NAME_AGAIN - 1 {
                victims.next.clear();
            }
            most = most.max(free);
        }
        Ok(Ended::Done)
    }

    /// Moves the live records out of the chunk that has the fewest, but for those that were not emptied before. Says why, if none
    /// was collected.
    fn collect_one(&self, device: &Arc<Device<D>>, victims: &mut Victims) -> Result<Option<Ended>> {
        let mut appenders = self.collect.lock();
        let Some(victim) = victims.next(device) else { return Ok(Some(Ended::Done)) };
        // The chunk that it fills stays open for the next victim's values.
        let appender =
            appenders.entry(device.number()).or_insert_with(|| Appender::collecting(device.clone()));
        let moved = self.empty_chunk(device, victim, appender);
        appender.abandon();
        let is_emptied = device.with_chunk(victim, |chunk| {
            chunk.is_stuck = moved.is_ok() && chunk.live > 0;
            chunk.live == 0
        });
        if !is_emptied {
            victims.not_emptied.insert(victim);
        }
        match moved {
            Ok(()) => {
                self.counters.collected_chunks.add(1);
                Ok(None)
            }
            Err(Error::NoSpace { .. }) if device.is_full() => Ok(Some(Ended::Done)),
            Err(Error::NoSpace { .. }) => Ok(Some(Ended::ForWantOfChunks)),
            Err(error) => Err(error),
        }
    }

    fn empty_chunk(
        &self,
        device: &Arc<Device<D>>,
        victim: u32,
        appender: &mut Appender<D, Moving>,
    ) -> Result<()> {
        let base = u64::from(victim) * self.layout.chunk_bytes;
        // Before anything of the chunk is looked at: whatever changes it is noticed.
        let filling = device.filling(base);
        let (granules, granule) = device.with_chunk(victim, |chunk| (chunk.live_granules(), chunk.granule()));
        if granules.is_empty() {
            return Ok(());
        }
        let quarantine = || {
            if device.quarantine(victim, filling) {
                self.counters.quarantined_chunks.add(1);
            }
        };
        let Ok(chunk) = device.read_chunk(victim, Cause::Gc) else {
            // Its records are where they were, and other chunks can still be collected. It comes back when they are replaced, or when it is
            // needed: a device that fails for a while is not to cost all that was to be collected meanwhile.
            device.leave_out(victim);
            return Ok(());
        };
        let place = |at: u64| Place::Flash(device.number(), base + at);
        let mut damaged = false;
        for start in granules {
            let Some((at, header, word)) = self.find_record(&chunk, start..start + granule, place) else {
                damaged = true;
                continue;
            };
            // A record that nobody points at any more is about to be released by who replaced it.
            let Some(word) = word else { continue };
            let record = &chunk[at as usize..at as usize + header.stored_len() as usize];
            let mut moving = Moving { entry: header.entry, from: place(at), filling };
            while let Some(back) =
                appender.add(&self.storage, &*self.pool, record, word, moving).map_err(|(_, error)| error)?
            {
                self.commit_collected(appender)?;
                moving = back;
            }
            self.counters.collected_records.add(1);
        }
        self.commit_collected(appender)?;
        if damaged {
            quarantine();
        }
        Ok(())
    }

    fn commit_collected(&self, appender: &mut Appender<D, Moving>) -> Result<()> {
        let stored = appender.commit()?;
        self.swing(&stored);
        Ok(())
    }

    /// The record that starts in a `granule` of a chunk: whole, with the word that makes it live. Dead ones may stand before the
    /// live one, since an open chooses granules by what is live alone: one of them is returned only if there is no other.
    fn find_record(
        &self,
        chunk: &[u8],
        granule: Range<u64>,
        place: impl Fn(u64) -> Place,
    ) -> Option<(u64, Header, Option<Word>)> {
        let (mut at, mut found) = (granule.start, None);
        while at < granule.end {
            let bytes = chunk.get(at as usize..).filter(|bytes| bytes.len() >= HEADER);
            let Some(bytes) = bytes else { break };
            let header = Header::decode(bytes, self.seed).filter(|header| {
                header.stored_len() <= bytes.len() as u64 && header.is_whole(bytes, self.seed)
            });
            let Some(header) = header else {
                at += UNIT;
                continue;
            };
            let word = self.live_word(&header, place(at));
            found = Some((at, header, word));
            if word.is_some() {
                break;
            }
            at += header.stored_len();
        }
        found
    }

    /// Writes the records of each scan range together in key order, as far as they lie scattered: then a later scan
    /// reads fewer blocks. The ranges share chunks, and wait until they fill one: a sync for each of them would take the device
    /// from those who scan. What still waits when the store is closed stays where it is.
    pub fn rewrite_ranges(&self, ranges: &[Vec<Member>]) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let mut appender = self.rewrite.lock();
        match ranges.iter().try_for_each(|range| self.rewrite_range(range, &mut appender)) {
            // They stay where they are, and can be read there.
            Err(Error::NoSpace { .. }) => Ok(()),
            done => done,
        }
    }

    fn rewrite_range(&self, members: &[Member], appender: &mut Appender<D, Moving>) -> Result<()> {
        let members = scattered(members);
        let bytes: u64 = members.iter().map(|m| stored_len(m.record.len())).sum();
        // Where chunks are short, what is rewritten would have to be made room for by collecting.
        let short = || self.storage.devices().iter().any(|device| device.is_short(self.options.gc_free_pct));
        if blocks_of(&members) < 2 * bytes.div_ceil(BLOCK) || self.storage.room() == 0 || short() {
            return Ok(());
        }
        let mut padded = Vec::new();
        for member in members {
            let word = Word(member.word);
            if self.hsit.word(member.entry).clean() != word {
                continue;
            }
            padded.clear();
            padded.extend_from_slice(&member.record);
            padded.resize(stored_len(member.record.len()) as usize, 0);
            let mut moving = Moving { entry: member.entry, from: word.place(), filling: member.filling };
            while let Some(back) =
                appender.add(&self.storage, &*self.pool, &padded, word, moving).map_err(|(_, error)| error)?
            {
                self.commit_collected(appender)?;
                moving = back;
            }
        }
        self.counters.rewritten_ranges.add(1);
        Ok(())
    }
}

/// The members that are not part of a longer run of records that lie side by side.
fn scattered(members: &[Member]) -> Vec<&Member> {
    let place = |member: &Member| match Word(member.word).place() {
        Place::Flash(device, at) => Some((device, at, at + stored_len(member.record.len()))),
        _ => None,
    };
    let beside = |one: &Member, next: &Member| match (place(one), place(next)) {
        (Some((device, _, end)), Some((other, at, _))) => device == other && is_beside(end, at),
        _ => false,
    };
    members.chunk_by(beside).filter(|run| run.len() < LONG_RUN).flatten().collect()
}

/// How many blocks the records begin in.
fn blocks_of(members: &[&Member]) -> u64 {
    let block = |member: &&Member| match Word(member.word).place() {
        Place::Flash(device, at) => Some((device, at / BLOCK)),
        _ => None,
    };
    let mut blocks: Vec<(u8, u64)> = members.iter().filter_map(block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{open_on, small_log, store, store_of, store_on};
    use crate::read::Ready;
    use crate::storage::State;
    use tierdb_base::FailureLatch;
    use tierdb_device::Meter;
    use tierdb_engine::{Background, Durability};
    use tierdb_log::LoggedPool;
    use tierdb_sim::{FaultKind, FaultPlan, Ops, SimDir, SimPool, World};

    /// Goal: what was read of a chunk says nothing of what it holds after it was filled anew, even if the word of an entry is
    /// the same again. Method: a new filling begins while a record is moved, and while it is read ahead.
    #[test]
    fn a_record_is_not_taken_for_one_of_the_next_filling() {
        let core = store(&World::new());
        core.put(b"key", &[1; 500], Durability::Durable).expect("room");
        core.reclaim(Reclaim::All).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        let word = || core.hsit.word(entry).clean();
        let mut appender = Appender::new(Cause::Gc);
        let mut copied = || {
            let (from, filling) = (word().place(), core.storage.filling(word().place()));
            let read = core.read_flash(word(), entry, Cause::Gc).expect("no faults").expect("whole");
            let mut record = read.1.to_vec();
            record.resize(read.0.stored_len() as usize, 0);
            let moving = Moving { entry, from, filling };
            let added = appender.add(&core.storage, &*core.pool, &record, word(), moving);
            assert!(matches!(added, Ok(None)));
            appender.commit().expect("no faults")
        };
        let anew = |word: Word| {
            let Place::Flash(number, at) = word.place() else { panic!("{word:?} is not on flash") };
            let device = core.storage.device(number).expect("one device");
            let (chunk, _) = device.chunk_of(at);
            device.open_chunk(chunk, State::Sealed, 500);
            (device, chunk, device.filling(at))
        };
        let stored = copied();
        core.swing(&stored);
        assert_eq!(word(), stored[0].word, "it was moved");

        let stored = copied();
        let before = word();
        let (device, chunk, filling) = anew(before);
        core.swing(&stored);
        assert_eq!(word(), before, "another record was moved");
        assert!(!device.quarantine(chunk, filling - 1) && device.quarantine(chunk, filling));

        let pointed = [Some(core.pointed(entry, before))];
        let ahead = || {
            core.read_ahead(&pointed, crossbeam_epoch::pin(), &mut core.cache.reader(), |_| b"key").remove(0)
        };
        assert!(matches!(ahead(), Ready::Scattered(_)));
        core.uncache(entry);
        anew(before);
        assert!(matches!(ahead(), Ready::Alone));
    }

    /// The writer of a word that is moved before it has found it durable does not find it any more: whoever moves it looks.
    #[test]
    fn a_word_that_is_moved_before_it_is_acknowledged_is_not_left_marked() {
        let core = store(&World::new());
        core.put(b"key", &[1; 500], Durability::Durable).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        core.hsit.publish(entry, core.hsit.word(entry).dirty());
        core.reclaim(Reclaim::All).expect("room");
        let word = core.hsit.word(entry);
        assert!(matches!(word.place(), Place::Flash(..)) && !word.is_dirty(), "{word:?}");
    }

    /// Goal: a log is cut off behind what the rings no longer need, and a checkpoint leaves their pages out. So after a crash
    /// a ring holds what the last close has written where nothing was logged since: records that lie between its ends, if most
    /// of what was live is gone, and whose headers check. None of them may hide one that is needed.
    /// Method: three long records of an earlier time, of which the last begins before two short ones that overwrite its end.
    #[test]
    fn what_a_log_leaves_in_a_ring_hides_no_record() {
        const FLASH: u64 = 1 << 20;
        let world = World::new();
        let dir = world.add_dir("fast");
        let options = small_log();
        let latch = FailureLatch::new;
        let pool = LoggedPool::create(dir.clone(), options.clone(), 1, latch(), Meter::new(), None);
        let core = store_on(&world, pool.expect("a new pool"), FLASH, Background::Inline);
        let put = |core: &Core<LoggedPool<SimDir>, SimDir>, key: &[u8], stored: usize| {
            let value = vec![key[0]; stored - HEADER - key.len()];
            core.put(key, &value, Durability::Durable).expect("room");
        };
        let open = || {
            let pool = LoggedPool::open(dir.clone(), options.clone(), 1, latch(), Meter::new(), None);
            open_on(&world, pool.expect("a pool"), FLASH)
        };
        (0..5).for_each(|number| put(&core, &[b'l', number], 3072));
        core.reclaim(Reclaim::All).expect("room");
        core.work.settle_epochs();
        core.leave_image().expect("no faults");
        core.pool.close().expect("no faults");
        drop(core);

        let core = open();
        (0..5).for_each(|number| put(&core, &[b's', number], 1024));
        core.reclaim(Reclaim::All).expect("room");
        core.pool.checkpoint().expect("no faults");
        put(&core, b"cold1", 1024);
        put(&core, b"cold2", 1024);
        (0..9).for_each(|_| put(&core, b"hot", 1024));
        drop(core);

        let core = open();
        core.reclaim(Reclaim::All).expect("room");
        core.work.settle_epochs();
        (0..32).for_each(|number| put(&core, &[b'n', number], 1024));
        for key in [b"cold1", b"cold2"] {
            assert!(core.get(key).expect("whole").is_some());
        }
    }

    fn key_of(number: u32) -> [u8; 4] {
        number.wrapping_mul(0x9e37_79b9).to_be_bytes()
    }

    /// Values of 400 bytes, put in an order that is not theirs, with a few chunks left.
    fn nearly_full() -> (Core<SimPool, SimDir>, u32) {
        let core = store_of(&World::new(), 40 * (16 << 10));
        let mut count = 0;
        while core.storage.room() > 3 {
            let key = key_of(count);
            core.put(&key, &[1; 400], Durability::Durable).expect("room");
            count += 1;
        }
        core.reclaim(Reclaim::All).expect("room");
        (core, count)
    }

    /// To bring a range together is for speed alone: where there turns out to be no room, it stays where it is.
    #[test]
    fn a_range_that_finds_no_room_stays_where_it_is() {
        let (core, count) = nearly_full();
        let member = |number: u32| {
            let key = key_of(number);
            let entry = core.index.get(&key).expect("whole").expect("it was put");
            let word = core.hsit.word(entry).clean();
            let (_, record) = core.read_flash(word, entry, Cause::Gc).expect("no faults").expect("whole");
            Member { entry, word: word.0, filling: core.storage.filling(word.place()), record }
        };
        let mut numbers: Vec<u32> = (0..count).collect();
        numbers.sort_unstable_by_key(|number| key_of(*number));
        let range: Vec<Member> = numbers.into_iter().step_by(7).map(member).collect();
        let bytes: usize = range.iter().map(|member| member.record.len()).sum();
        assert!(core.storage.room() > 0 && bytes as u64 > core.storage.room() * core.layout.chunk_bytes);
        core.rewrite_ranges(&[range]).expect("nothing has failed");
        assert!(core.counters.rewritten_ranges.get() == 0, "it was tried");
    }

    /// Goal: that the file system was full once keeps no write from chunks that come back later. Method: reclamation meets it,
    /// while a reader holds what was emptied before. Values in parts, and such as are too long for a ring.
    #[test]
    fn a_file_system_that_was_full_is_asked_again() {
        for len in [16_000, 6_000] {
            let world = World::new();
            let core = store(&world);
            let put = |key: &[u8]| core.put(key, &vec![1; len], Durability::Durable);
            core.put(b"short", b"value", Durability::Durable).expect("room");
            let reader = crossbeam_epoch::pin();
            while core.storage.room() > 1 {
                put(b"key").expect("room");
            }
            world.inject(FaultPlan::nth(1, FaultKind::Enospc).on(Ops::WRITE));
            core.reclaim(Reclaim::All).expect_err("the file system is full");
            world.heal();
            let device = &core.storage.devices()[0];
            while device.available() > 2 {
                device.allocate(&*core.pool, State::Part, 16 << 10, false).expect("room");
            }
            // Nothing is left to collect.
            core.delete(b"key", Durability::Durable).expect("deletes need no room");
            drop(reader);
            put(b"key").expect("all chunks but a few are garbage");
        }
    }

    /// Goal: where readers hold what collection has emptied, it goes on with what they let go. Method: all chunks have some
    /// garbage, fewer are free than are needed to gain one, and a reader stands still for a while.
    #[test]
    fn collection_goes_on_when_readers_have_gone() {
        let core = store_of(&World::new(), 16 * (16 << 10));
        let put = |number: u32| core.put(&key_of(number), &[1; 400], Durability::Durable);
        let full = (0..).find(|number| put(*number).is_err()).expect("flash is full some time");
        for number in (0..full).step_by(3) {
            core.delete(&key_of(number), Durability::Durable).expect("deletes need no room");
        }
        let (pinned, is_pinned) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _reader = crossbeam_epoch::pin();
                pinned.send(()).expect("somebody waits");
                std::thread::sleep(Duration::from_millis(50));
            });
            is_pinned.recv().expect("it is pinned");
            core.put(b"long", &[1; 40_000], Durability::Durable).expect("a third of all is garbage");
        });
    }

    /// The time for which readers are waited for does not begin before collection has ended. Method: that is held up, and so is
    /// what it gains.
    #[test]
    fn collection_takes_nothing_of_the_time_to_wait() {
        let (core, count) = nearly_full();
        for number in (0..count).step_by(2) {
            core.delete(&key_of(number), Durability::Durable).expect("deletes need no room");
        }
        let allocate = || core.storage.devices()[0].allocate(&*core.pool, State::Part, 16 << 10, false);
        let full = (0..40).find_map(|_| allocate().err()).expect("it is full some time");
        let (pinned, is_pinned) = std::sync::mpsc::channel();
        let mut given_up = None;
        let begin = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let _reader = crossbeam_epoch::pin();
                let collecting = core.collect.lock();
                pinned.send(()).expect("somebody waits");
                std::thread::sleep(Duration::from_millis(20));
                let begin = Instant::now();
                drop(collecting);
                std::thread::sleep(Duration::from_millis(20));
                begin
            });
            is_pinned.recv().expect("it is pinned");
            core.try_collect(1, &mut given_up, full).expect("half of all is garbage");
            reader.join().expect("no panic")
        });
        assert!(given_up.is_none_or(|given_up| given_up >= begin + READERS_GONE));
    }

    /// What a thread gives up is not kept back by its doing nothing afterwards.
    #[test]
    fn what_an_idle_thread_gave_up_comes_back() {
        let core = store_of(&World::new(), 1 << 20);
        let value = [1; 3 * 16_000];
        core.put(b"key", &value, Durability::Durable).expect("room");
        let (done, is_done) = std::sync::mpsc::channel();
        let (end, is_end) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let core = &core;
            scope.spawn(move || {
                core.put(b"key", &value, Durability::Durable).expect("room");
                done.send(()).expect("somebody waits");
                let _ = is_end.recv();
            });
            is_done.recv().expect("it is done");
            let device = &core.storage.devices()[0];
            let given_up = Instant::now() + Duration::from_secs(10);
            while device.is_waiting() {
                core.work.settle_epochs();
                std::thread::sleep(Duration::from_millis(1));
                assert!(Instant::now() < given_up, "its chunks are not free");
            }
            drop(end);
        });
    }

    /// Collects until `gained` more chunks are free, which may take until the readers of other tests let go of them.
    fn collect_until_more_is_free(core: &Core<SimPool, SimDir>, gained: u64) {
        let device = &core.storage.devices()[0];
        let (enough, given_up) = (device.free_soon() + gained, Instant::now() + Duration::from_secs(20));
        while device.free_soon() < enough {
            let free = device.free_soon();
            assert!(Instant::now() < given_up, "{free} instead of {enough} chunks are free");
            core.collect_all().expect("no faults");
            core.work.settle_epochs();
        }
    }

    /// Goal: what is overwritten again and again takes no more of flash than its share, though there is room. Method: a few
    /// keys, and more garbage than data behind each pass, in all chunks.
    #[test]
    fn garbage_is_collected_though_there_is_room() {
        let core = store_of(&World::new(), 64 << 20);
        let device = &core.storage.devices()[0];
        let chunk = device.chunk_bytes();
        let (mut most, mut rng) = (0, fastrand::Rng::with_seed(1));
        for pass in 0..20 {
            for put in 0..4000 {
                core.put(&key_of(rng.u32(0..4000)), &[pass; 400], Durability::Durable).expect("room");
                if put % 500 == 0 {
                    core.gain_space(Reclaim::All).expect("room");
                }
            }
            core.work.settle_epochs();
            most = most.max(device.usage().used);
        }
        let live = device.usage().live;
        // Beside what is allowed there are chunks that are being filled, and such as wait for the readers of other tests.
        let allowed = live * 100 / (100 - u64::from(core.options.gc_garbage_pct)) + 48 * chunk;
        assert!(live > 80 * chunk && most <= allowed, "{live} live, {most} used");
    }

    /// The count of garbage is that of all chunks, whatever happened to them.
    #[test]
    fn garbage_is_counted_as_it_comes_and_goes() {
        let (core, count) = nearly_full();
        let device = &core.storage.devices()[0];
        let counted = || {
            let each =
                (0..device.chunks_in_file()).map(|number| device.with_chunk(number, |chunk| chunk.garbage()));
            assert_eq!(device.garbage(), each.sum::<u64>());
            device.garbage()
        };
        let full = counted();
        for number in (0..count).step_by(2) {
            core.delete(&key_of(number), Durability::Durable).expect("deletes need no room");
        }
        core.reclaim(Reclaim::All).expect("deletes need no room");
        let half = counted();
        assert!(half > full + device.usage().used / 4, "{full} before, {half} behind");
        core.collect_all().expect("no faults");
        assert!(counted() < half);
    }

    /// The same of a store that is opened, from its image and from its words.
    #[test]
    fn garbage_is_counted_on_open() {
        for closed in [true, false] {
            let (world, bytes) = (World::new(), 64 * (16 << 10));
            let core = store_of(&world, bytes);
            for number in 0..1200 {
                core.put(&key_of(number), &[1; 400], Durability::Durable).expect("room");
            }
            core.reclaim(Reclaim::All).expect("room");
            for number in (0..1200).filter(|number| number % 4 != 0) {
                core.delete(&key_of(number), Durability::Durable).expect("deletes need no room");
            }
            core.work.settle_epochs();
            if closed {
                core.leave_image().expect("no faults");
            }
            drop(core);
            let core = open_on(&world, world.pool("pool"), bytes);
            let device = &core.storage.devices()[0];
            let each =
                (0..device.chunks_in_file()).map(|number| device.with_chunk(number, |chunk| chunk.garbage()));
            assert_eq!(device.garbage(), each.sum::<u64>());
            assert!(device.garbage() > device.usage().used / 2);
        }
    }

    /// A record that nothing points at, as a lost race may leave one, keeps its chunk and no other one. Nor do many such
    /// chunks use up all tries of each collection.
    #[test]
    fn chunks_that_cannot_be_emptied_do_not_end_a_collection() {
        for (stuck, gained) in [(1, 8), (VICTIMS_FOR_A_GAIN as usize + 4, 4)] {
            let (core, count) = nearly_full();
            let device = &core.storage.devices()[0];
            let sealed = |number: &u32| device.with_chunk(*number, |chunk| chunk.state == State::Sealed);
            let stuck: Vec<u32> = (0..device.chunks_in_file()).filter(sealed).take(stuck).collect();
            let word = Word::new(Place::Flash(0, 0), 1, 448, false);
            for number in 0..count {
                let key = key_of(number);
                let entry = core.index.get(&key).expect("whole").expect("it was put");
                let Place::Flash(_, at) = core.hsit.word(entry).place() else { continue };
                let (chunk, offset) = device.chunk_of(at);
                if stuck.contains(&chunk) || number % 2 == 0 {
                    core.delete(&key, Durability::Durable).expect("deletes need no room");
                    if stuck.contains(&chunk) && device.with_chunk(chunk, |chunk| chunk.live == 1) {
                        device.with_chunk(chunk, |chunk| chunk.set(offset, word));
                    }
                }
            }
            let is_left = |number: &u32| device.with_chunk(*number, |chunk| chunk.live > 0);
            assert!(stuck.iter().all(is_left), "something is left in each");
            // Half of the others can be gained.
            collect_until_more_is_free(&core, gained);
        }
    }

    /// Goal: an open chooses the granules of a chunk by what is live, so dead records that are shorter may start in one
    /// before the live one: that is moved all the same. Method: chunks of pairs of which the long one stays.
    #[test]
    fn a_record_is_found_behind_dead_ones_of_its_granule() {
        const CHUNKS: u32 = VICTIMS_FOR_A_GAIN + 8;
        const FLASH: u64 = 40 * (16 << 10);
        let world = World::new();
        let core = store_of(&world, FLASH);
        let key = |number: u32, len: u32| [number.to_be_bytes(), len.to_be_bytes()].concat();
        let (pairs, lens) = (5 * CHUNKS, [60, 2900]);
        for number in 0..pairs {
            for len in lens {
                let value = vec![number as u8; len as usize];
                core.put(&key(number, len), &value, Durability::Durable).expect("room");
            }
        }
        core.reclaim(Reclaim::All).expect("room");
        // Of each five long ones two stay, so that chunks can be brought together.
        let is_left = |number: u32, len: u32| len == lens[1] && number % 5 < 2;
        let each = || (0..pairs).flat_map(|number| lens.map(|len| (number, len)));
        for (number, len) in each().filter(|(number, len)| !is_left(*number, *len)) {
            core.delete(&key(number, len), Durability::Durable).expect("deletes need no room");
        }
        drop(core);
        let core = open_on(&world, world.pool("pool"), FLASH);
        collect_until_more_is_free(&core, u64::from(CHUNKS / 2));
        for (number, len) in each() {
            let value = core.get(&key(number, len)).expect("whole");
            assert_eq!(value.map(|value| value.len()), is_left(number, len).then_some(len as usize));
        }
    }

    /// Three quarters of a chunk are filled when a record comes that needs a chunk with shorter granules.
    #[test]
    fn what_collection_has_joined_is_not_joined_again() {
        for collecting in [false, true] {
            let core = store(&World::new());
            let device = &core.storage.devices()[0];
            let mut appender = match collecting {
                false => Appender::new(Cause::Reclaim),
                true => Appender::collecting(device.clone()),
            };
            for len in [3008, 3008, 3008, 64] {
                let word = Word::new(Place::Ring(0), 1, len, false);
                let added = appender.add(&core.storage, &*core.pool, &vec![7; len as usize], word, ());
                assert!(matches!(added, Ok(None)));
                assert_eq!(appender.commit().expect("no faults").len(), 1);
            }
            let victim = device.victims(&HashSet::new()).pop().map(|victim| victim.number);
            assert_eq!(victim.is_none(), collecting, "{victim:?}");
            appender.seal();
        }
    }

    #[test]
    fn what_lies_in_a_long_run_is_not_scattered() {
        let member = |entry: u64, at: u64| Member {
            entry,
            word: Word::new(Place::Flash(0, at), 1, 1000, false).0,
            filling: 0,
            record: vec![0; 1000].into(),
        };
        // Keys 10 to 29 lie side by side, and so do 40 to 44; the others do not.
        let at = |entry: u64| match entry {
            10..30 => (1 << 20) + entry * 1024,
            40..45 => (2 << 20) + entry * 1024,
            _ => (entry * 7919 % 100) << 22,
        };
        let members: Vec<Member> = (0..50).map(|entry| member(entry, at(entry))).collect();
        let found: Vec<u64> = scattered(&members).iter().map(|member| member.entry).collect();
        assert_eq!(found, (0..10).chain(30..50).collect::<Vec<_>>());
    }
}
