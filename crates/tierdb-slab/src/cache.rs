//! The object cache: values read from tables, in DRAM, inside the memory budget.
//!
//! A value is known by the table it was read from and its key. A table never changes, so nothing has to be
//! taken out of the cache when a key is written or a table replaced: what no lookup asks for any more is evicted.
//! Sixteen shards, each a clock: a value that was asked for again is passed over once.

use hashbrown::HashTable;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_engine::{CacheStats, Value};

const SHARDS: usize = 16;
/// Bytes that an entry takes beside value and key: its place in the clock and in the map, counts, the allocator's.
const ENTRY_BYTES: u64 = 96;

struct Cached {
    table: u64,
    hash: u64,
    /// The value, and the key behind it.
    bytes: Arc<[u8]>,
    value_len: usize,
    again: bool,
}

impl Cached {
    fn is(&self, table: u64, key: &[u8]) -> bool {
        self.table == table && self.bytes[self.value_len..] == *key
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
        while self.bytes > most && !self.clock.is_empty() {
            self.hand = (self.hand + 1) % self.clock.len();
            let place = self.hand;
            let Some(here) = &mut self.clock[place] else { continue };
            if std::mem::take(&mut here.again) {
                continue;
            }
            self.bytes -= bytes_of(here.bytes.len());
            self.evictions += 1;
            if let Ok(entry) = self.places.find_entry(spread(here.hash), |there| *there as usize == place) {
                entry.remove();
            }
            self.clock[place] = None;
            self.free.push(place as u32);
        }
    }
}

/// Values of tables.
pub struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// Most bytes of a shard.
    most: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Cache {
    /// An empty cache that may hold nothing yet.
    pub fn new() -> Self {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            most: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
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

    /// The value of `key`, which hashes to `hash`, in `table`.
    pub fn get(&self, table: u64, key: &[u8], hash: u64) -> Option<Value> {
        let found = {
            let shard = &mut *self.shard(hash).lock();
            let place = shard.place_of(table, key, hash);
            place.and_then(|place| shard.clock[place].as_mut()).map(|cached| {
                cached.again = true;
                cached.value()
            })
        };
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps the value of `key` in `table`, if it takes at most an eighth of its shard. Returns it.
    pub fn insert(&self, table: u64, key: &[u8], hash: u64, mut value: Vec<u8>) -> Value {
        let (most, value_len) = (self.most.load(Ordering::Relaxed), value.len());
        if bytes_of(value_len + key.len()) > most / 8 {
            return Value::from(value);
        }
        value.extend_from_slice(key);
        let cached = Cached { table, hash, bytes: value.into(), value_len, again: false };
        let value = cached.value();
        let shard = &mut *self.shard(hash).lock();
        if shard.place_of(table, key, hash).is_none() {
            shard.insert(cached);
            shard.shrink_to(most);
        }
        value
    }

    /// What it holds and has done.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
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

    #[test]
    fn values_stay_within_the_capacity_and_what_is_asked_for_again_stays_longer() {
        let cache = Cache::new();
        assert_eq!(cache.insert(1, b"k", 0, vec![1; 10]), Value::from(vec![1; 10]));
        assert_eq!(cache.get(1, b"k", 0), None, "nothing fits");
        cache.set_capacity(SHARDS as u64 * 10_000);
        cache.insert(1, b"hot", 0, vec![9; 100]);
        for number in 0..1000u32 {
            cache.insert(2, &number.to_le_bytes(), 0, vec![1; 300]);
            assert_eq!(cache.get(1, b"hot", 0), Some(Value::from(vec![9; 100])), "{number}");
        }
        let stats = cache.stats();
        assert!(stats.bytes <= 10_000 && stats.bytes > 9_000 && stats.evictions > 900, "{stats:?}");
        assert_eq!(cache.get(3, b"hot", 0), None, "another table");
        cache.set_capacity(0);
        assert_eq!((cache.stats().bytes, cache.stats().entries), (0, 0));
    }
}
