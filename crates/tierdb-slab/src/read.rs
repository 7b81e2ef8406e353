//! How a key becomes a value.

use crate::cache::Of;
use crate::config::{Metric, Promotion};
use crate::core::{Core, hash_of};
use crate::heap::Record;
use crate::levels::Levels;
use crate::live::LiveTable;
use crate::partition::{Entry, RangeTombstone, State};
use crate::tracker::{Popularity, Tier, is_hottest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Result, Seqno, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_engine::Value;
use tierdb_pmem::Pool;
use tierdb_table::{Found, Table};

/// The workload is looked at once in so many reads.
const LOOK_AT_READS: u32 = 1024;
/// Most keys whose reads of flash are in flight at once.
const AT_ONCE: usize = 64;

/// Where the object cache has tables by their number, it has records of the pool by their seqno and this.
const POOL: u64 = 1 << 63;

/// What tables have to be searched for a key, as of one moment.
pub struct OnFlash<D: Dir> {
    pub tables: Arc<Levels<D>>,
    pub ranges: Arc<Vec<Arc<RangeTombstone>>>,
}

impl<D: Dir> OnFlash<D> {
    /// The tables of a partition.
    pub fn of(state: &State<D>) -> Self {
        OnFlash { tables: state.tables.clone(), ranges: state.ranges.clone() }
    }

    /// Whether no range that was removed holds `key`.
    fn is_in_no_range(&self, key: &[u8]) -> bool {
        !self.ranges.iter().any(|range| range.range.contains(key))
    }

    /// Whether a version of `key` written with `version` was removed with a range before `seqno`.
    #[track_caller]
    pub fn is_removed(&self, key: &[u8], version: Seqno, seqno: Seqno) -> bool {
        self.ranges.iter().any(|range| range.removes(key, version, seqno)) && mutant::keep("tombstone")
    }
}

/// Where the value of a key is.
enum Place<D: Dir> {
    /// The fast tier, and it was read.
    Fast(Option<Value>),
    Flash(OnFlash<D>),
}

/// A key that is looked for in tables.
struct Search<'a, D: Dir> {
    key: &'a [u8],
    hash: u64,
    seqno: Seqno,
    on_flash: &'a OnFlash<D>,
    /// Whether a value may be cached. It is only if it is the newest in its table, and was not removed with a range: what no
    /// range tombstone, no damage and no snapshot can make another one. It counts if no level above has the key.
    plain: bool,
}

/// Whether the newest version in a table says what becomes of a key: a tombstone hides what is below.
#[track_caller]
fn ends_search(found: &Found) -> bool {
    found.value.is_some() || mutant::keep("tombstone")
}

/// What a table may have of a key.
enum Within<D: Dir> {
    Cached(Value),
    /// The table has to be read.
    Unknown(Arc<Table<D::File>>),
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// The value of `key` as of now.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        if fastrand::u32(..LOOK_AT_READS) == 0 {
            self.look_at_reads();
        }
        self.get_as_of(key, Seqno::MAX)
    }

    /// The value of `key` as a snapshot at `seqno` sees it.
    pub fn get_as_of(&self, key: &[u8], seqno: Seqno) -> Result<Option<Value>> {
        let on_flash = match self.place_of(key, seqno)? {
            Place::Fast(value) => return Ok(value),
            Place::Flash(on_flash) => on_flash,
        };
        let search = self.search(key, seqno, &on_flash);
        for live in on_flash.tables.find(key) {
            let table = match self.look_into(live, &search)? {
                Within::Cached(value) => return Ok(Some(value)),
                Within::Unknown(table) => table,
            };
            let read = || table.get(key, seqno, Cause::Foreground).map_err(|error| error.with_key(key));
            let found = if live.is_fast() { read() } else { self.pinned.measure(read) }?;
            if let Some(found) = found
                && ends_search(&found)
            {
                return self.end(&search, Some((live, found)));
            }
        }
        self.end(&search, None)
    }

    /// The values of `keys`, each as of some moment; reads of flash overlap.
    pub fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        keys.chunks(AT_ONCE).flat_map(|keys| self.get_together(keys)).collect()
    }

    fn get_together(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        if fastrand::u32(..LOOK_AT_READS) < keys.len() as u32 {
            self.look_at_reads();
        }
        let (mut results, mut on_flash) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
        for (number, key) in keys.iter().enumerate() {
            results.push(match self.place_of(key, Seqno::MAX) {
                Ok(Place::Fast(value)) => Ok(value),
                Ok(Place::Flash(tables)) => {
                    on_flash.push((number, tables));
                    Ok(None)
                }
                Err(error) => Err(error),
            });
        }
        let mut searches: Vec<_> = on_flash
            .iter()
            .map(|(number, on_flash)| {
                let search = self.search(keys[*number], Seqno::MAX, on_flash);
                (*number, search, on_flash.tables.find(keys[*number]))
            })
            .collect();
        // One table of each key at a time, level by level.
        while !searches.is_empty() {
            let mut waiting = Vec::with_capacity(searches.len());
            for (number, search, mut tables) in searches {
                let Some(live) = tables.next() else {
                    results[number] = self.end(&search, None);
                    continue;
                };
                match self.look_into(live, &search) {
                    Ok(Within::Unknown(table)) => waiting.push((table, live, (number, search, tables))),
                    Ok(Within::Cached(value)) => results[number] = Ok(Some(value)),
                    Err(error) => results[number] = Err(error),
                }
            }
            let wanted: Vec<_> = waiting
                .iter()
                .map(|(table, _, (_, search, _))| (&**table, search.key, search.seqno))
                .collect();
            let found = Table::get_many(&wanted, Cause::Foreground);
            searches = Vec::with_capacity(waiting.len());
            for ((_, live, (number, search, tables)), found) in waiting.into_iter().zip(found) {
                match found {
                    Ok(Some(found)) if ends_search(&found) => {
                        results[number] = self.end(&search, Some((live, found)));
                    }
                    Ok(_) => searches.push((number, search, tables)),
                    Err(error) => results[number] = Err(error.with_key(search.key)),
                }
            }
        }
        results
    }

    fn place_of(&self, key: &[u8], seqno: Seqno) -> Result<Place<D>> {
        // What is not in memory is read without a lock, at first.
        let mut with_lock = self.heap.pool.is_in_memory();
        loop {
            match self.try_place_of(key, seqno, with_lock)? {
                Some(place) => return Ok(place),
                None => with_lock = true,
            }
        }
    }

    /// The same, where the value is read without a lock unless `with_lock` says otherwise. `None` if its place has been taken by another
    /// record meanwhile, or it is damaged.
    fn try_place_of(&self, key: &[u8], seqno: Seqno, with_lock: bool) -> Result<Option<Place<D>>> {
        let router = self.router.read();
        let part = router.part_of(key);
        let state = part.read();
        let unsettled = part.unsettled(key, || hash_of(key));
        let mut to_read = None;
        let place = match state.version_at(key, seqno) {
            Some(entry) if entry.is_tombstone() && mutant::keep("tombstone") => Place::Fast(None),
            Some(entry) => {
                let value = if with_lock {
                    Some(self.value_of(&state, key, entry)?)
                } else {
                    to_read = Some(entry);
                    None
                };
                if self.options.metric == Metric::ApproxM && seqno == Seqno::MAX && entry.is_counted() {
                    let hash = hash_of(key);
                    // What is read all the time has its bit: it is seldom looked at whether it was cleared.
                    if !is_hottest(self.tracker.popularity(hash)) || fastrand::u8(..8) == 0 {
                        state.tables.first().bucket_of(key).into_iter().for_each(|of| of.set(hash));
                    }
                }
                Place::Fast(value)
            }
            None => Place::Flash(OnFlash::of(&state)),
        };
        drop(state);
        drop(router);
        let place = match to_read {
            Some(entry) => match self.read_unlocked(key, entry) {
                Some(value) => Place::Fast(Some(value)),
                None => return Ok(None),
            },
            None => place,
        };
        // What a reader has seen is durable, though its writer has not been told of it yet.
        unsettled.map_or(Ok(()), |lsn| self.heap.pool.wait(lsn))?;
        if let Place::Fast(_) = place {
            self.counters.fast_hits.add(1);
            self.tracker.touch(hash_of(key), Tier::Fast);
        }
        Ok(Some(place))
    }

    /// The value of `entry`, which was the version of `key` a moment ago: what was read is it if it has key and seqno, whatever has
    /// become of the slot since. The hottest are kept in DRAM.
    fn read_unlocked(&self, key: &[u8], entry: Entry) -> Option<Value> {
        let (number, hash) = (POOL | entry.seqno, hash_of(key));
        if let Some(value) = self.cache.find(number, key, hash) {
            self.counters.fast_cached.add(1);
            return Some(value);
        }
        let (head, value) = self.heap.read(entry.at()).ok()?;
        if !entry.is_in(&head, key) {
            return None;
        }
        if !is_hottest(self.tracker.popularity(hash)) {
            return Some(Value::from(value));
        }
        let of = Of { table: number, life: Arc::downgrade(&self.pool_life) };
        Some(self.cache.insert(of, key, hash, value, |hash| self.tracker.popularity(hash)))
    }

    /// The value of `entry`, the version of `key` that is on the fast tier. Under the partition's lock.
    /// If it is damaged, flash may have the same version: of a clean copy, and of one that was clean before the store was opened.
    pub fn value_of(&self, state: &State<D>, key: &[u8], entry: Entry) -> Result<Value> {
        self.value_from(state, key, entry, self.heap.read(entry.at()))
    }

    /// The same, where the record was `read` under the same lock.
    pub fn value_from(
        &self,
        state: &State<D>,
        key: &[u8],
        entry: Entry,
        read: Result<Record>,
    ) -> Result<Value> {
        let error = match read {
            Ok((head, value)) if entry.is_in(&head, key) => return Ok(Value::from(value)),
            Ok(_) => self.heap.damaged(entry.at()),
            Err(error) => error,
        };
        let copied = state.tables.version(key, entry.seqno);
        copied.map(Value::from).ok_or_else(|| error.with_key(key))
    }

    fn search<'a>(&self, key: &'a [u8], seqno: Seqno, on_flash: &'a OnFlash<D>) -> Search<'a, D> {
        let is_in_no_range = on_flash.is_in_no_range(key) || !mutant::keep("tombstone");
        let plain = seqno == Seqno::MAX && is_in_no_range && self.lost.is_empty();
        Search { key, hash: hash_of(key), seqno, on_flash, plain }
    }

    /// What is known of the key in a table before that is read.
    fn look_into(&self, live: &LiveTable<D>, search: &Search<'_, D>) -> Result<Within<D>> {
        let Search { key, hash, .. } = *search;
        if let Some(value) = search.plain.then(|| self.cache.get(live.number(), key, hash)).flatten() {
            self.counters.cache_hits.add(1);
            self.note(live, hash);
            return Ok(Within::Cached(value));
        }
        live.table(Cause::Foreground).map(Within::Unknown).map_err(|error| error.with_key(key))
    }

    /// A table has answered a read of the key that hashes to `hash`.
    fn note(&self, live: &LiveTable<D>, hash: u64) -> Popularity {
        let popularity = self.tracker.touch(hash, if live.is_fast() { Tier::Fast } else { Tier::Flash });
        if self.options.promotion == Promotion::ByMigration {
            live.hot_reads.fetch_add(u64::from(popularity.is_some()), Ordering::Relaxed);
        }
        popularity
    }

    /// The value of the key, whose newest version in tables is `newest`.
    fn end(
        &self,
        search: &Search<'_, D>,
        newest: Option<(&Arc<LiveTable<D>>, Found)>,
    ) -> Result<Option<Value>> {
        let Search { key, hash, seqno, on_flash, plain } = *search;
        let version = newest.as_ref().map(|(_, found)| found.seqno);
        self.lost.check(&self.heap, key, version)?;
        let Some((live, Found { seqno: version, value: Some(value) })) = newest else {
            self.counters.misses.add(1);
            return Ok(None);
        };
        let counter = if live.is_fast() { &self.counters.fast_table_hits } else { &self.counters.flash_hits };
        counter.add(1);
        if on_flash.is_removed(key, version, seqno) {
            return Ok(None);
        }
        let popularity = self.note(live, hash);
        if !plain {
            return Ok(Some(Value::from(value)));
        }
        if self.promote_read((&on_flash.tables, live), key, version, &value, popularity) {
            // The index answers from now on.
            return Ok(Some(Value::from(value)));
        }
        let of = Of { table: live.number(), life: live.life() };
        Ok(Some(self.cache.insert(of, key, hash, value, |hash| self.tracker.popularity(hash))))
    }
}
