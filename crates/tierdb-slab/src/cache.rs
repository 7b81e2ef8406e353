//! The object cache: values read from tables, in DRAM, inside the memory budget.
//!
//! A value is known by the table it was read from and its key. A table never changes, so nothing has to be
//! taken out of the cache when a key is written or a table replaced: what no lookup asks for any more is evicted.
//! Sixteen shards, each with a clock: a value that was asked for again is passed over once.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_engine::{CacheStats, Value};

const SHARDS: usize = 16;
/// Bytes that an entry takes beside key and value: two copies of its place, the map's share, counts.
const ENTRY_BYTES: u64 = 112;

type Place = (u64, Arc<[u8]>);

struct Cached {
    value: Arc<[u8]>,
    again: bool,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<Place, Cached>,
    /// In the order of the clock hand.
    turn: VecDeque<Place>,
    bytes: u64,
    evictions: u64,
}

/// Values of tables.
pub struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// Most bytes of a shard.
    most: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

fn bytes_of(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ENTRY_BYTES
}

impl Shard {
    fn shrink_to(&mut self, most: u64) {
        while self.bytes > most {
            let Some(place) = self.turn.pop_front() else { return };
            let Some(cached) = self.entries.get_mut(&place) else { continue };
            if std::mem::take(&mut cached.again) {
                self.turn.push_back(place);
                continue;
            }
            self.bytes -= bytes_of(&place.1, &cached.value);
            self.evictions += 1;
            self.entries.remove(&place);
        }
    }
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
        let place = (table, Arc::from(key));
        let mut shard = self.shard(hash).lock();
        let found = shard.entries.get_mut(&place).map(|cached| {
            cached.again = true;
            cached.value.clone()
        });
        drop(shard);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found.map(|value| {
            let len = value.len();
            Value::shared(value, 0..len)
        })
    }

    /// Keeps the value of `key` in `table`, if it takes at most an eighth of its shard. Returns it.
    pub fn insert(&self, table: u64, key: &[u8], hash: u64, value: Vec<u8>) -> Value {
        let most = self.most.load(Ordering::Relaxed);
        let bytes = bytes_of(key, &value);
        if bytes > most / 8 {
            return Value::from(value);
        }
        let (place, value): (Place, Arc<[u8]>) = ((table, Arc::from(key)), Arc::from(value));
        let mut shard = self.shard(hash).lock();
        if shard.entries.insert(place.clone(), Cached { value: value.clone(), again: false }).is_none() {
            shard.turn.push_back(place);
            shard.bytes += bytes;
            shard.shrink_to(most);
        }
        drop(shard);
        let len = value.len();
        Value::shared(value, 0..len)
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
            stats.entries += shard.entries.len() as u64;
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
