//! Garbage collection of Value Storage (PRISM §5.2): the live records of the chunks that have the fewest are brought together, and
//! these chunks are free.

use super::reclaim::Reclaim;
use crate::core::{Core, Moving};
use crate::record::{HEADER, Header};
use crate::storage::{Appender, Device, Victim};
use crate::word::{Place, UNIT, Word};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tierdb_base::{Error, Result, TierRole};
use tierdb_device::{AlignedBuf, Cause, Dir};
use tierdb_pmem::Pool;

/// Victims in a row after which a collection that has gained no chunk gives up.
const VICTIMS_FOR_A_GAIN: u32 = 16;
/// Victims without a gain after which better ones are looked for: other threads may have emptied what was named.
const NAME_AGAIN: u32 = 8;
/// Most victims of a pass that is for garbage alone; as many as a ring fills, if that is more.
const LEAST_VICTIMS: u64 = 256;
/// Longest time that a write, or a pass of reclamation, waits for emptied chunks to become free before there is no space.
const READERS_GONE: Duration = Duration::from_secs(2);

/// Why a collection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Nothing more was wanted, or is to be gained.
    Done,
    /// There is no chunk that has its space to move records to, until emptied ones are free.
    ForWantOfChunks,
}

/// What garbage collection works with.
pub struct Collecting<D: Dir> {
    /// What it fills, by device.
    appenders: HashMap<u8, Appender<D, Moving>>,
    /// The chunk that it empties, as it was read.
    victim: AlignedBuf,
}

impl<D: Dir> Default for Collecting<D> {
    fn default() -> Self {
        Collecting { appenders: HashMap::new(), victim: AlignedBuf::default() }
    }
}

impl<D: Dir> Collecting<D> {
    /// Ends the chunks that are open.
    pub fn seal(&mut self) {
        self.appenders.values_mut().for_each(Appender::seal);
    }

    /// Bytes of DRAM it holds.
    pub fn memory_bytes(&self) -> u64 {
        self.victim.capacity() as u64 + self.appenders.values().map(Appender::memory_bytes).sum::<u64>()
    }
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

/// Whether flash had no room.
fn is_full<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::NoSpace { tier: TierRole::Flash, .. }))
}

impl<P: Pool, D: Dir> Core<P, D> {
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
            if device.is_short(options.gc_free_pct) {
                // Whether it may grow again is met, and reported, by the write that needs the room.
                let _ = device.retry_growth_in_time(Instant::now());
            }
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
                // Reclamation comes first where a writer waits for it, and has chunks: collection goes on behind that.
                let is_called_away = self.work.is_waited_for() && self.storage.room() > 0;
                is_wanted && !is_called_away && !self.work.is_stopping()
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
        let collecting = &mut *self.collect.lock();
        let Some(victim) = victims.next(device) else { return Ok(Some(Ended::Done)) };
        // The chunk that it fills stays open for the next victim's values.
        let appender = collecting
            .appenders
            .entry(device.number())
            .or_insert_with(|| Appender::collecting(device.clone()));
        let moved = loop {
            let moved = self.empty_chunk(device, victim, &mut collecting.victim, appender);
            appender.abandon();
            // One that turned out to take no space is not given to it again before those that have theirs.
            if !(is_full(&moved) && device.has_whole()) {
                break moved;
            }
        };
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
            moved if is_full(&moved) => Ok(Some(Ended::ForWantOfChunks)),
            Err(error) => Err(error),
        }
    }

    fn empty_chunk(
        &self,
        device: &Arc<Device<D>>,
        victim: u32,
        chunk: &mut AlignedBuf,
        appender: &mut Appender<D, Moving>,
    ) -> Result<()> {
        let base = u64::from(victim) * self.layout.chunk_bytes;
        // Before anything of the chunk is looked at: whatever changes it is noticed.
        let filling = device.filling(base);
        let (granules, granule) = device.with_chunk(victim, |chunk| (chunk.live_granules(), chunk.granule()));
        if granules.is_empty() {
            return Ok(());
        }
        appender.begin_victim(granule);
        let quarantine = || {
            if device.quarantine(victim, filling) {
                self.counters.quarantined_chunks.add(1);
            }
        };
        if device.read_chunk(victim, chunk, Cause::Gc).is_err() {
            // Its records are where they were, and other chunks can still be collected. It comes back when they are replaced, or when it is
            // needed: a device that fails for a while is not to cost all that was to be collected meanwhile.
            device.leave_out(victim);
            return Ok(());
        }
        let place = |at: u64| Place::Flash(device.number(), base + at);
        let mut damaged = false;
        for start in granules {
            let Some((at, header, word)) = self.find_record(chunk, start..start + granule, place) else {
                damaged = true;
                continue;
            };
            // A record that nobody points at any more is about to be released by who replaced it.
            let Some(word) = word else { continue };
            let record = &chunk[at as usize..at as usize + header.stored_len() as usize];
            let moving = Moving { entry: header.entry, from: place(at), filling };
            self.copy(appender, record, word, moving)?;
            self.counters.collected_records.add(1);
        }
        self.commit_moved(appender)?;
        if damaged {
            quarantine();
        }
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
}

#[cfg(test)]
pub(super) mod tests;
