//! The object cache: values read from tables, in DRAM, inside the memory budget.
//!
//! A value is known by the table it was read from and its key. A table never changes, so nothing has to be
//! taken out of the cache when a key is written or a table replaced: what no lookup asks for any more is evicted, first of all
//! what is of a table that is not there any more.
//! Sixteen shards, each a clock: a value that was asked for again is passed over once. What is more popular than the value
//! that would take its place keeps it, as many times as its clock value in the tracker says.

use crate::tracker::Popularity;
use hashbrown::HashTable;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tierdb_engine::{CacheStats, Value};
use tierdb_sync::Counter;

const SHARDS: usize = 16;
/// Bytes that an entry takes beside value and key: its place in the clock and in the map, counts, the allocator's.
const ENTRY_BYTES: u64 = 112;

/// The table that a value is of.
pub struct Of {
    /// Its number.
    pub table: u64,
    /// What is gone when the table is.
    pub life: Weak<()>,
}

struct Cached {
    of: Of,
    hash: u64,
    /// The value, and the key behind it.
    bytes: Arc<[u8]>,
    value_len: usize,
    again: bool,
    /// How often it was kept in place of another value since it was last asked for.
    kept: u8,
}

impl Cached {
    fn is(&self, table: u64, key: &[u8]) -> bool {
        self.of.table == table && self.bytes[self.value_len..] == *key
    }

    fn value(&self) -> Value {
        Value::shared(self.bytes.clone(), 0..self.value_len)
    }
}

fn bytes_of(len: usize) -> u64 {
    len as u64 + ENTRY_BYTES
}

#[derive(Default)]
struct Shard {
    /// By hash: the number of the place in `clock`.
    places: HashTable<u32>,
    clock: Vec<Option<Cached>>,
    /// Places of `clock` that nothing is in.
    free: Vec<u32>,
    hand: usize,
    bytes: u64,
    evictions: u64,
}

/// Where in a map the values of a key are. A shard's have the top bits of their hashes in common, by which the map
/// would tell them apart first.
fn spread(hash: u64) -> u64 {
    hash.rotate_left(32)
}

impl Shard {
    fn place_of(&self, table: u64, key: &[u8], hash: u64) -> Option<usize> {
        let is = |place: &u32| self.clock[*place as usize].as_ref().is_some_and(|here| here.is(table, key));
        self.places.find(spread(hash), is).map(|place| *place as usize)
    }

    fn insert(&mut self, cached: Cached) {
        self.bytes += bytes_of(cached.bytes.len());
        let hash = cached.hash;
        let place = self.free.pop().unwrap_or_else(|| {
            self.clock.push(None);
            self.clock.len() as u32 - 1
        });
        self.clock[place as usize] = Some(cached);
        let clock = &self.clock;
        let hash_at = |place: &u32| clock[*place as usize].as_ref().map_or(0, |there| spread(there.hash));
        self.places.insert_unique(spread(hash), place, hash_at);
    }

    fn shrink_to(&mut self, most: u64) {
        while self.bytes > most && self.next_victim().is_some() {
            self.evict();
        }
    }

    /// Makes room for `bytes` more, unless what would have to go first may stay.
    fn make_room(&mut self, bytes: u64, most: u64, may_stay: impl Fn(u64, u8) -> bool) -> bool {
        if self.bytes + bytes <= most {
            return true;
        }
        let Some(victim) = self.next_victim() else { return false };
        if victim.of.life.strong_count() > 0 && may_stay(victim.hash, victim.kept) {
            victim.kept += 1;
            return false;
        }
        self.evict();
        self.shrink_to(most.saturating_sub(bytes));
        true
    }

    /// Moves the hand to what was not asked for since it was last passed.
    fn next_victim(&mut self) -> Option<&mut Cached> {
        if self.places.is_empty() {
            return None;
        }
        loop {
            self.hand = (self.hand + 1) % self.clock.len();
            match &mut self.clock[self.hand] {
                Some(here) if here.again && here.of.life.strong_count() > 0 => here.again = false,
                Some(_) => break,
                None => {}
            }
        }
        self.clock[self.hand].as_mut()
    }

    /// Drops what the hand is at.
    fn evict(&mut self) {
        let place = self.hand;
        let Some(here) = self.clock[place].take() else { return };
        self.bytes -= bytes_of(here.bytes.len());
        self.evictions += 1;
        if let Ok(entry) = self.places.find_entry(spread(here.hash), |there| *there as usize == place) {
            entry.remove();
        }
        self.free.push(place as u32);
    }
}

/// Values of tables.
pub struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// Most bytes of a shard.
    most: AtomicU64,
    hits: Counter,
    misses: Counter,
}

impl Cache {
    /// An empty cache that may hold nothing yet.
    pub fn new() -> Self {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            most: AtomicU64::new(0),
            hits: Counter::default(),
            misses: Counter::default(),
        }
    }

    /// Lets it hold `bytes`.
    pub fn set_capacity(&self, bytes: u64) {
        let most = bytes / SHARDS as u64;
        if self.most.swap(most, Ordering::Relaxed) > most {
            self.shards.iter().for_each(|shard| shard.lock().shrink_to(most));
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 60) as usize % SHARDS]
    }

    /// The value of `key`, which hashes to `hash`, in `table`; counted.
    pub fn get(&self, table: u64, key: &[u8], hash: u64) -> Option<Value> {
        let found = self.find(table, key, hash);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.add(1);
        found
    }

    /// The same, not counted.
    pub fn find(&self, table: u64, key: &[u8], hash: u64) -> Option<Value> {
        let shard = &mut *self.shard(hash).lock();
        let place = shard.place_of(table, key, hash);
        place.and_then(|place| shard.clock[place].as_mut()).map(|cached| {
            (cached.again, cached.kept) = (true, 0);
            cached.value()
        })
    }

    /// Keeps the value of `key`, which hashes to `hash`, if it takes at most an eighth of its shard, and unless `popularity`, by hash, says
    /// that what would have to go is worth more. Returns it.
    pub fn insert(
        &self,
        of: Of,
        key: &[u8],
        hash: u64,
        mut value: Vec<u8>,
        popularity: impl Fn(u64) -> Popularity,
    ) -> Value {
        let (most, value_len) = (self.most.load(Ordering::Relaxed), value.len());
        let bytes = bytes_of(value_len + key.len());
        if bytes > most / 8 {
            return Value::from(value);
        }
        let own = popularity(hash);
        let may_stay = |other: u64, kept: u8| {
            let other = popularity(other);
            other > own && other > Some(kept)
        };
        let is_taken = {
            let shard = &mut *self.shard(hash).lock();
            shard.place_of(of.table, key, hash).is_none() && shard.make_room(bytes, most, may_stay)
        };
        if !is_taken {
            return Value::from(value);
        }
        // Without the latch, which others wait for.
        value.extend_from_slice(key);
        let cached = Cached { of, hash, bytes: value.into(), value_len, again: false, kept: 0 };
        let value = cached.value();
        let shard = &mut *self.shard(hash).lock();
        if shard.place_of(cached.of.table, key, hash).is_none() {
            shard.insert(cached);
            shard.shrink_to(most);
        }
        value
    }

    /// What it holds and has done.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            capacity: self.most.load(Ordering::Relaxed) * SHARDS as u64,
            ..CacheStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.entries += shard.places.len() as u64;
            stats.bytes += shard.bytes;
            stats.evictions += shard.evictions;
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps a value of `table`, which is there as long as `life`, under `key`, which is its hash too.
    fn insert(cache: &Cache, (table, life): (u64, &Arc<()>), key: u64, len: usize, popular: &[u64]) {
        let of = Of { table, life: Arc::downgrade(life) };
        let popularity = |hash: u64| if popular.contains(&hash) { Some(3) } else { None };
        cache.insert(of, &key.to_le_bytes(), key, vec![key as u8; len], popularity);
    }

    fn has(cache: &Cache, table: u64, key: u64) -> bool {
        let found = cache.get(table, &key.to_le_bytes(), key);
        assert!(found.as_deref().is_none_or(|value| value.iter().all(|byte| *byte == key as u8)));
        found.is_some()
    }

    #[test]
    fn values_stay_within_the_capacity_and_what_is_asked_for_again_stays_longer() {
        let (cache, life) = (Cache::new(), Arc::new(()));
        insert(&cache, (1, &life), 0, 10, &[]);
        assert!(!has(&cache, 1, 0), "nothing fits");
        cache.set_capacity(SHARDS as u64 * 10_000);
        insert(&cache, (1, &life), 0, 100, &[]);
        for number in 1..1000 {
            insert(&cache, (2, &life), number, 300, &[]);
            assert!(has(&cache, 1, 0), "{number}");
        }
        let stats = cache.stats();
        assert!(stats.bytes <= 10_000 && stats.bytes > 9_000 && stats.evictions > 900, "{stats:?}");
        assert!(!has(&cache, 3, 0), "another table");
        cache.set_capacity(0);
        assert_eq!((cache.stats().bytes, cache.stats().entries), (0, 0));
    }

    #[test]
    fn what_is_popular_is_not_replaced_by_what_is_not_but_goes_with_its_table_or_unread_in_the_end() {
        let lap = |cache: &Cache, life: &Arc<()>, from: u64| {
            (from..from + 24).for_each(|number| insert(cache, (1, life), number, 300, &[0]));
        };
        let (cache, life, other) = (Cache::new(), Arc::new(()), Arc::new(()));
        cache.set_capacity(SHARDS as u64 * 10_000);
        insert(&cache, (2, &other), 0, 300, &[0]);
        lap(&cache, &life, 100);
        for round in 0..3 {
            // Kept each time that the hand comes by, though it is not asked for.
            lap(&cache, &life, 200 + 100 * round);
            assert!(cache.shards[0].lock().clock.iter().flatten().any(|here| here.hash == 0), "{round}");
        }
        (0..3).for_each(|round| lap(&cache, &life, 600 + 100 * round));
        assert!(!has(&cache, 2, 0), "nobody asks for it");
        insert(&cache, (2, &other), 0, 300, &[0]);
        assert!(has(&cache, 2, 0));
        drop(other);
        (0..2).for_each(|round| lap(&cache, &life, 1000 + 100 * round));
        assert!(!has(&cache, 2, 0), "its table is gone");
    }
}
