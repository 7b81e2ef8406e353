//! Creating a store, and opening one after anything (PRISM §5.5).
//!
//! There is no log to replay in the engine. What the pool holds is, at every moment, a store, but for:
//! a batch whose commit slot is set, keys whose word is *none*, entries and pages that nothing names. Opening
//! it finishes the first and clears the others away, and rebuilds what lives in DRAM. Each of these
//! steps may be interrupted and done again.
//!
//! 1. Header, page table, leaf chain (search layer), HSIT segments.
//! 2. Redo records that commit slots name are replayed; slots cleared.
//! 3. Every (key, entry) of the index, in parallel: which entries are named.
//! 4. Every named entry's word, in parallel: bitmaps of Value Storage, ends of rings, parts of long values.
//! 5. Keys without a value leave the index; free lists are made.
//!
//! A store that was closed has left an image of what steps 3 to 5 find ([`crate::image`]), which takes their place.

use crate::cache::Cache;
use crate::config::Options;
use crate::core::Core;
use crate::hsit::{Hsit, PER_PAGE};
use crate::image;
use crate::index::{ADMIT_BYTES, Index};
use crate::layout::{INDEX_HEAD, Layout};
use crate::long::{LongValues, Parts};
use crate::pages::{KIND_HSIT, PageUse, Pages};
use crate::record::{HEADER, Header, Kind, stored_len};
use crate::redo::decode_redo;
use crate::ring::{self, Rings};
use crate::second_level::SecondLevel;
use crate::storage::{Appender, Record, Storage};
use crate::versions::Versions;
use crate::word::{MAX_DEVICES, Place, UNIT, Word};
use crate::work::Work;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result, TierRole};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{Gate, Latencies, Media, in_parallel};
use tierdb_pmem::{Pool, seal, unseal};
use tierdb_sync::CommitClock;

fn check_media<P: Pool, D: Dir>(media: &Media<P, D>) -> Result<()> {
    if media.flash.is_empty() || media.flash.len() > MAX_DEVICES {
        return Err(Error::invalid(format!(
            "a store needs 1 to {MAX_DEVICES} flash directories, not {}",
            media.flash.len()
        )));
    }
    Ok(())
}

/// Makes an empty store. What a creation that was interrupted has left is made anew.
pub fn create<P: Pool, D: Dir>(media: Media<P, D>, options: Options) -> Result<Core<P, D>> {
    check_media(&media)?;
    let layout = Layout::new(media.pool.len(), media.flash.len(), &options)?;
    if Layout::is_formatted(&*media.pool) {
        return Err(Error::invalid("the pool holds a store already: open it"));
    }
    let pool = media.pool.clone();
    let storage = Storage::open(media.flash, layout.chunk_bytes, &media.latch, true)?;
    let mut stage = tierdb_pmem::Stage::new(&*pool);
    layout.stage_words(&mut stage, media.seed);
    let pages = Arc::new(Pages::format(
        pool.clone(),
        &mut stage,
        layout.page_table_at(),
        layout.first_page(),
        layout.pages(),
        media.seed,
    ));
    let index = Index::create(pool.clone(), pages.clone(), INDEX_HEAD)?;
    let hsit = Hsit::open(pool.clone(), pages.clone(), &[]);
    let ends = vec![(0, 0); layout.rings as usize];
    let rings = Rings::new(pool.clone(), media.seed, &layout, &ends);
    layout.format(&*pool, stage, media.seed)?;
    let ordered = Core::<P, D>::is_ordered(&pool);
    let core = Core {
        second_level: SecondLevel::new(pool.clone(), pages.clone(), !ordered, options.memory),
        cache: Cache::new(options.memory),
        clock: CommitClock::new(0),
        versions: Versions::new(),
        long: LongValues::default(),
        deleted: Mutex::default(),
        reclaim: Mutex::new(Appender::new(Cause::Reclaim)),
        collect: Mutex::default(),
        rewrite: Mutex::new(Appender::new(Cause::Cache)),
        counters: Box::default(),
        latencies: Latencies::new(),
        work: Work::new(options.background),
        seqno_limit: AtomicU64::new(0),
        raising: Mutex::new(()),
        ordered,
        seed: media.seed,
        mode: media.mode,
        gate: Gate::new(media.latch),
        fast_meter: media.fast_meter,
        layout,
        options,
        pool,
        pages,
        hsit,
        index,
        rings,
        storage,
    };
    core.settle_memory();
    Ok(core)
}

/// Opens a store after a close or a crash.
pub fn open<P: Pool, D: Dir>(media: Media<P, D>, mut options: Options) -> Result<Core<P, D>> {
    check_media(&media)?;
    let pool = media.pool.clone();
    let layout = Layout::open(&*pool, media.seed)?;
    options.chunk_bytes = layout.chunk_bytes;
    options.rings = layout.rings;
    options.ring_bytes = layout.ring_bytes;
    options.validate()?;
    if layout.flash as usize != media.flash.len() {
        return Err(Error::invalid(format!(
            "the store was created with {} flash directories, and {} are configured",
            layout.flash,
            media.flash.len()
        )));
    }
    let storage = Storage::open(media.flash, layout.chunk_bytes, &media.latch, false)?;
    let pages = Arc::new(Pages::open(
        pool.clone(),
        layout.page_table_at(),
        layout.first_page(),
        layout.pages(),
        media.seed,
    ));
    let image = image::take(&*pool, &pages, &storage, &layout, media.seed);
    let (segments, unknown) = find_segments(&*pool, &pages)?;
    let (index, damage) = Index::open(pool.clone(), pages.clone(), INDEX_HEAD, options.recovery_threads)?;
    for page in unknown {
        // If the index does not use it either, it is free, or the HSIT lacks a segment: then the open fails.
        let _kept = pages.claim(page);
    }
    let hsit = Hsit::open(pool.clone(), pages.clone(), &segments);
    pages.settle();
    let last = Core::<P, D>::seqno_limit(&pool, media.seed)?;
    // Where they start and end is found below.
    let ends = vec![(0, 0); layout.rings as usize];
    let ordered = Core::<P, D>::is_ordered(&pool);
    let mut core = Core {
        second_level: SecondLevel::new(pool.clone(), pages.clone(), !ordered, options.memory),
        cache: Cache::new(options.memory),
        clock: CommitClock::new(last),
        versions: Versions::new(),
        long: LongValues::default(),
        deleted: Mutex::default(),
        reclaim: Mutex::new(Appender::new(Cause::Reclaim)),
        collect: Mutex::default(),
        rewrite: Mutex::new(Appender::new(Cause::Cache)),
        counters: Box::default(),
        latencies: Latencies::new(),
        work: Work::new(options.background),
        seqno_limit: AtomicU64::new(last),
        raising: Mutex::new(()),
        ordered,
        rings: Rings::new(pool.clone(), media.seed, &layout, &ends),
        seed: media.seed,
        mode: media.mode,
        gate: Gate::new(media.latch),
        fast_meter: media.fast_meter,
        layout,
        options,
        pool,
        pages,
        hsit,
        index,
        storage,
    };
    core.replay_batches()?;
    if !image.filter(|_| damage.is_empty()).is_some_and(|image| core.restore(image)) {
        for (key, entry) in core.claim_entries(!damage.is_empty())? {
            let Ok(_admitted) = core.pool.admit(ADMIT_BYTES) else {
                // The log has no room for it now.
                core.hsit.mark(entry, Word::NONE);
                core.deleted.lock().add(entry, &key, core.clock.last());
                continue;
            };
            // A key that damage keeps in the index has no value all the same.
            if matches!(core.index.remove(&key, entry), Ok(true)) {
                core.hsit.free_later(entry);
            }
        }
        core.hsit.free_gathered();
    }
    core.work.settle_epochs();
    core.settle_memory();
    Ok(core)
}

/// A segment of the HSIT, and its page.
type Segment = (u64, u64);

/// The pages of the HSIT, and the pages of which the table does not say what they are.
fn find_segments<P: Pool>(pool: &P, pages: &Pages<P>) -> Result<(Vec<Segment>, Vec<u64>)> {
    let mut segments = Vec::new();
    let mut unknown = Vec::new();
    for (page, usage) in pages.kinds() {
        match usage {
            PageUse::Used { kind: KIND_HSIT, info } => {
                if !pages.claim(page) {
                    return Err(damaged(pool, page, "a page of the HSIT is used for something else, too"));
                }
                segments.push((info, page));
            }
            PageUse::Damaged => unknown.push(page),
            PageUse::Free | PageUse::Used { .. } => {}
        }
    }
    segments.sort_unstable();
    if let Some(twice) = segments.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(damaged(pool, twice[1].1, "two pages claim to be the same segment of the HSIT"));
    }
    // They are made one after the other.
    let most = (segments.len() + unknown.len()) as u64;
    if let Some(last) = segments.last().filter(|last| last.0 >= most) {
        return Err(damaged(pool, last.1, "a page of the HSIT names an impossible segment"));
    }
    Ok((segments, unknown))
}

fn damaged<P: Pool>(pool: &P, page: u64, what: &str) -> Error {
    Error::corrupt(TierRole::Fast, what, pool.place(page * crate::pages::PAGE))
}

/// The entries that keys of the index name.
struct Named(Box<[AtomicU64]>);

impl Named {
    fn new(entries: u64) -> Self {
        Named((0..entries.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds an entry; `false` if it is in.
    fn add(&self, entry: u64) -> bool {
        let bit = 1 << (entry % 64);
        self.0[(entry / 64) as usize].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    fn remove(&self, entry: u64) {
        self.0[(entry / 64) as usize].fetch_and(!(1 << (entry % 64)), Ordering::Relaxed);
    }

    fn has(&self, entry: u64) -> bool {
        self.0[(entry / 64) as usize].load(Ordering::Relaxed) >> (entry % 64) & 1 == 1
    }
}

/// What the words of some entries point at, as far as it is not noted where it is.
#[derive(Default)]
struct Claimed {
    /// Entries that no key has, in rising order.
    free: Vec<u64>,
    /// Ring, offset in it and length of live records.
    in_rings: Vec<(u32, u64, u64)>,
    /// Whether it is not known which chunks some value takes.
    unsure: bool,
}

impl Claimed {
    /// What this one and that of the entries behind it say.
    fn and(mut self, mut behind: Self) -> Self {
        self.free.append(&mut behind.free);
        self.in_rings.append(&mut behind.in_rings);
        self.unsure |= behind.unsure;
        self
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Publishes the words of batches that were durable and not installed to the end.
    fn replay_batches(&self) -> Result<()> {
        for ring in 0..self.layout.rings {
            let slot = Layout::commit_slot(ring);
            let at = unseal(&*self.pool, self.seed, slot)? * UNIT;
            if at == 0 {
                continue;
            }
            let corrupt = |what: &str| Error::corrupt(TierRole::Fast, what, self.pool.place(at));
            let list = self.read_redo(at)?.ok_or_else(|| corrupt("the redo record of a batch is damaged"))?;
            for (entry, word) in list {
                if self.hsit.at(entry).is_none() || word.place() == Place::Damaged {
                    return Err(corrupt("the redo record of a batch names what is not there"));
                }
                self.hsit.publish(entry, word.clean());
            }
            self.pool.fence();
            self.pool.publish(slot, seal(self.seed, slot, 0));
            self.pool.fence();
        }
        Ok(())
    }

    /// The redo list that starts in the page at byte `at` of the pool.
    fn read_redo_pages(&self, mut at: u64) -> Result<Option<Vec<(u64, Word)>>> {
        let mut list = Vec::new();
        // As many pages as there are, at the most: a damaged link must not send us around.
        for _ in 0..self.layout.pages() {
            let mut page = [0u8; crate::pages::PAGE as usize];
            self.pool.read(at, &mut page)?;
            let whole = Header::parse(&page)
                .filter(|header| header.kind == Kind::RedoPage && header.is_whole(&page, self.seed));
            let Some((next, pairs)) = whole.and_then(|header| header.body(&page).split_first_chunk::<8>())
            else {
                return Ok(None);
            };
            let Some(pairs) = decode_redo(pairs) else { return Ok(None) };
            list.extend(pairs);
            at = u64::from_le_bytes(*next);
            if at == 0 {
                return Ok(Some(list));
            }
            if !self.is_page(at) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Whether a page that is handed out starts at byte `at` of the pool.
    fn is_page(&self, at: u64) -> bool {
        at.is_multiple_of(crate::pages::PAGE) && self.pages.contains(at / crate::pages::PAGE)
    }

    fn read_redo(&self, at: u64) -> Result<Option<Vec<(u64, Word)>>> {
        if self.is_page(at) {
            return self.read_redo_pages(at);
        }
        let first = self.layout.rings_at();
        let end = self.layout.first_page() * crate::pages::PAGE;
        if at < first || at + HEADER as u64 > end {
            return Ok(None);
        }
        let room = self.layout.ring_bytes - (at - first) % self.layout.ring_bytes;
        let mut head = [0u8; HEADER];
        self.pool.read(at, &mut head)?;
        let Some(header) = Header::parse(&head).filter(|h| h.len() as u64 <= room) else {
            return Ok(None);
        };
        let mut bytes = vec![0; header.len()];
        self.pool.read(at, &mut bytes)?;
        if !header.is_whole(&bytes, self.seed) {
            return Ok(None);
        }
        match header.kind {
            Kind::Redo => Ok(decode_redo(header.body(&bytes))),
            Kind::RedoParts => {
                Ok(self.read_long(&header, &bytes, Cause::Recovery)?.and_then(|list| decode_redo(&list)))
            }
            Kind::Value | Kind::Parts | Kind::Pad | Kind::RedoPage | Kind::Image => Ok(None),
        }
    }

    /// Steps 3 and 4. Returns the keys that have no value. Where the index is `damaged`, what no key names
    /// may belong to one that is hidden: it is kept, for a repair to find. So is a whole value of a key that the index does not have: a leaf
    /// is of another moment, and that leaf is doubted.
    fn claim_entries(&mut self, damaged: bool) -> Result<Vec<(Vec<u8>, u64)>> {
        let named = Named::new(self.hsit.len());
        let twice = Mutex::new(HashSet::new());
        let core = &*self;
        let threads = core.options.recovery_threads;
        let hidden = core.index.visit(threads, &|key, entry| {
            if core.hsit.at(entry).is_none() {
                return Err(core.index_error("the index names an HSIT entry that is not there", key));
            }
            if !named.add(entry) {
                twice.lock().insert(entry);
            }
            Ok(())
        })?;
        core.part_keys(&twice.into_inner(), &named)?;
        let damaged = damaged || !hidden.is_empty();
        // The table is looked at from one end to the other, since it is large and each look at one entry is a miss.
        let segments: Vec<u64> = (0..core.hsit.len() / PER_PAGE).collect();
        let absent = in_parallel(&segments, threads, |part| Ok(core.note_words(part, &named)))?;
        let absent: HashSet<u64> = absent.into_iter().flatten().collect();
        let claims = in_parallel(&segments, threads, |part| Ok(core.claim_words(part, &named, damaged)))?;
        let claimed = claims.into_iter().reduce(Claimed::and).unwrap_or_default();
        for device in core.storage.devices() {
            device.finish_claims(claimed.unsure);
        }
        let absent = core.keys_of(&absent)?;
        // Entries are taken from the end: the lowest first.
        self.hsit.set_free(claimed.free.into_iter().rev().collect());
        let mut in_rings = vec![Vec::new(); self.layout.rings as usize];
        for (ring, at, len) in claimed.in_rings {
            in_rings[ring as usize].push((at, len));
        }
        let ends: Vec<_> =
            in_rings.into_iter().map(|spans| ring::ends(spans, self.layout.ring_bytes)).collect();
        self.rings = Rings::new(self.pool.clone(), self.seed, &self.layout, &ends);
        Ok(absent)
    }

    /// The keys that name one of `entries`, with it.
    fn keys_of(&self, entries: &HashSet<u64>) -> Result<Vec<(Vec<u8>, u64)>> {
        let keys = Mutex::new(Vec::new());
        if !entries.is_empty() {
            self.index.visit(self.options.recovery_threads, &|key, entry| {
                if entries.contains(&entry) {
                    keys.lock().push((key.to_vec(), entry));
                }
                Ok(())
            })?;
        }
        Ok(keys.into_inner())
    }

    fn index_error(&self, what: &str, key: &[u8]) -> Error {
        Error::corrupt(TierRole::Fast, what, self.pool.place(INDEX_HEAD)).with_key(key)
    }

    /// Several keys name each of `entries`. It is that of the key in its record; the others, which were removed before it was given to
    /// that one, or whose entry was another, are in a leaf of another moment, and leave it.
    fn part_keys(&self, entries: &HashSet<u64>, named: &Named) -> Result<()> {
        let keys = self.keys_of(entries)?;
        entries.iter().for_each(|entry| named.remove(*entry));
        for (key, entry) in keys {
            let Some((header, bytes)) = self.read_twice(self.hsit.word(entry).clean(), entry)? else {
                return Err(self.index_error("two keys of the index name the same HSIT entry", &key));
            };
            if header.key(&bytes) == key {
                named.add(entry);
                continue;
            }
            let _admitted = self.pool.admit(ADMIT_BYTES)?;
            self.index.remove(&key, entry)?;
            self.index.doubt(&key);
        }
        Ok(())
    }

    /// The entries of some segments.
    fn entries_of(&self, segments: &[u64]) -> impl Iterator<Item = u64> {
        let all = segments.iter().flat_map(|segment| segment * PER_PAGE..(segment + 1) * PER_PAGE);
        all.filter(|entry| self.hsit.at(*entry).is_some())
    }

    /// Prepares the chunks that the words of `segments` point into to be claimed. Returns the entries that keys name
    /// and that have no value.
    fn note_words(&self, segments: &[u64], named: &Named) -> Vec<u64> {
        let mut absent = Vec::new();
        for entry in self.entries_of(segments).filter(|entry| named.has(*entry)) {
            self.hsit.reset_aux(entry);
            let word = self.hsit.word(entry);
            match word.place() {
                Place::None | Place::Free => absent.push(entry),
                Place::Flash(number, at) => {
                    if let Some(device) = self.storage.device(number) {
                        device.note_class(at, word);
                    }
                }
                // Of a damaged word nothing is known; reading the key says so.
                Place::Ring(_) | Place::Damaged => {}
            }
        }
        absent
    }

    /// Claims what the words of `segments` point at.
    fn claim_words(&self, segments: &[u64], named: &Named, damaged: bool) -> Claimed {
        let mut claimed = Claimed::default();
        for entry in self.entries_of(segments) {
            let word = self.hsit.word(entry);
            if !named.has(entry) {
                // A key leaves the index when its word says *none*: this one was lost to damage, of the index or of the word.
                let is_given_up = match self.read_twice(word.clean(), entry) {
                    Ok(Some((header, bytes))) => self.has_later(header.key(&bytes), header.seqno),
                    Ok(None) => !damaged,
                    Err(_) => false,
                };
                if is_given_up {
                    if !matches!(word.place(), Place::None | Place::Free) {
                        // No key that gets the entry may be taken for that one.
                        self.hsit.publish(entry, Word::NONE);
                        self.pool.fence();
                    }
                    claimed.free.push(entry);
                    continue;
                }
            }
            if word.is_dirty() {
                self.hsit.clear_dirty(entry, word);
            }
            claimed.unsure |= !self.claim_word(entry, word.clean(), &mut claimed.in_rings);
        }
        claimed
    }

    /// The record where `word` points. Once more, if it cannot be read or does not check: what damage of a read makes of it lasts.
    fn read_twice(&self, word: Word, entry: u64) -> Result<Option<Record>> {
        match self.read_record(word, entry, Cause::Recovery) {
            Ok(None) => self.read_record(word, entry, Cause::Recovery),
            Err(error) => self.read_record(word, entry, Cause::Recovery)?.map(Some).ok_or(error),
            found => found,
        }
    }

    /// No key names an entry whose value is the one that was written for `key` with `seqno`. Whether the key has a later one: then that entry
    /// was lost when the key went. Else the leaf is that of another moment, and is doubted.
    fn has_later(&self, key: &[u8], seqno: u64) -> bool {
        let is_later = |entry: u64| {
            let record = self.read_twice(self.hsit.word(entry).clean(), entry);
            record.is_ok_and(|of| of.is_some_and(|(of, bytes)| of.key(&bytes) == key && of.seqno > seqno))
        };
        let found = self.index.get(key).ok().flatten();
        let has_later = found.is_some_and(|entry| self.hsit.at(entry).is_some() && is_later(entry));
        if !has_later {
            self.index.doubt(key);
        }
        has_later
    }

    /// Makes what `word` points at live; of a record in a ring, its offset there and its length are noted. Damage is left for the read of the key to report. `false` if it is not
    /// known which chunks the value takes, since the list of its parts cannot be read now.
    fn claim_word(&self, entry: u64, word: Word, in_rings: &mut Vec<(u32, u64, u64)>) -> bool {
        // Whatever the word says of it, of which a bit may be flipped.
        let mut may_have_parts = word.is_large() || word.min_len() > self.layout.chunk_bytes;
        match word.place() {
            Place::None | Place::Free | Place::Damaged => return true,
            Place::Ring(at) => {
                let Some(ring) = self.rings.ring_of(at) else { return true };
                let len = match self.read_ring(at, word, entry) {
                    Ok(Some((header, _))) => {
                        may_have_parts |= header.kind == Kind::Parts;
                        header.stored_len()
                    }
                    Ok(None) => return true,
                    // It may be as long as its word says.
                    Err(_) => stored_len(word.max_len(self.layout.ring_bytes) as usize),
                };
                in_rings.push((ring.number(), at - ring.at(), len));
            }
            Place::Flash(number, at) => {
                let live = self.storage.device(number).is_some_and(|device| device.claim(at, word));
                if !live {
                    self.counters.damaged_records.add(1);
                    return true;
                }
            }
        }
        if !may_have_parts {
            return true;
        }
        let Ok(read) = self.read_twice(word, entry) else { return false };
        let Some((header, bytes)) = read.filter(|(header, _)| header.kind == Kind::Parts) else {
            return true;
        };
        if !word.is_large() {
            // So that the parts are given up with it.
            self.hsit.publish(entry, word.of_record(header.stored_len(), header.kind));
            self.pool.fence();
        }
        if let Some(parts) = Parts::decode(header.body(&bytes), self.layout.chunk_bytes) {
            for (device, chunk) in &parts.list {
                if !self.storage.device(*device).is_some_and(|d| d.claim_part(*chunk)) {
                    self.counters.damaged_records.add(1);
                }
            }
            self.long.note(entry, word.tag(), parts.list);
        }
        true
    }

    /// Gives the value cache what the rest of the memory budget leaves.
    pub fn settle_memory(&self) {
        let rest: u64 =
            self.memory_parts().iter().filter(|(name, _)| *name != "value cache").map(|(_, b)| b).sum();
        self.cache.set_capacity(self.options.memory.saturating_sub(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::store;
    use tierdb_engine::Durability;
    use tierdb_pmem::Stage;
    use tierdb_sim::World;

    #[test]
    fn a_segment_that_no_table_has_is_refused() {
        let core = store(&World::new());
        core.put(b"key", b"value", Durability::Durable).expect("room");
        let find = || {
            let layout = &core.layout;
            let (first, count) = (layout.first_page(), layout.pages());
            let pages = Pages::open(core.pool.clone(), layout.page_table_at(), first, count, core.seed);
            find_segments(&*core.pool, &pages)
        };
        let (segments, _) = find().expect("whole");
        let (_, page) = segments[0];
        let mut stage = Stage::new(&*core.pool);
        core.pages.stage_kind(&mut stage, page, KIND_HSIT, core.layout.pages() - 1);
        let _drained = stage.drain();
        let refused = find().expect_err("the only one is the first");
        assert!(refused.to_string().contains("impossible segment"), "{refused}");
    }
}
