use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Instant;

use super::lists::{Node, Which};
use super::policy::Ghost;
use super::*;

/// A record whose bytes say which entry and version it is of; the value is all but the first 16 bytes.
fn record(entry: u64, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes.extend(entry.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    bytes.resize(16 + len.max(16), (entry ^ version) as u8);
    bytes
}

fn assert_is(value: &[u8], entry: u64, version: u64) {
    assert_eq!(value[..8], entry.to_le_bytes(), "another entry's value");
    assert_eq!(value[8..16], version.to_le_bytes(), "another version of the value");
    assert!(value[16..].iter().all(|&byte| byte == (entry ^ version) as u8));
}

/// Numbers that look random, the same each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Stands for the index: each entry's location (version and place) and slot, changed as the cache asks of its
/// callers.
struct Index {
    words: Vec<AtomicU64>,
    slots: Vec<AtomicU64>,
}

const PLACES: u64 = 1 << 20;

fn version(word: u64) -> u64 {
    word / PLACES
}

impl Index {
    fn new(entries: u64) -> Self {
        let zeros = || (0..entries).map(|_| AtomicU64::new(0)).collect();
        Index { words: zeros(), slots: zeros() }
    }

    fn slot(&self, entry: u64) -> Option<Slot> {
        Slot::from_bits(self.slots[entry as usize].load(SeqCst) as u32)
    }

    /// Reads as an engine does. Returns whether the cache had it.
    fn read(&self, cache: &Cache, entry: u64, len: usize) -> bool {
        let word = self.words[entry as usize].load(SeqCst);
        let slot = self.slot(entry);
        if let Some(value) = cache.get(slot, entry, word) {
            assert_is(&value, entry, version(word));
            return true;
        }
        if let Some(new) = cache.insert(entry, (word, 0), &record(entry, version(word), len), 16, false) {
            let old = slot.map_or(0, |slot| u64::from(slot.bits()));
            let published = self.slots[entry as usize]
                .compare_exchange(old, u64::from(new.bits()), SeqCst, SeqCst)
                .is_ok();
            if !published || self.words[entry as usize].load(SeqCst) != word {
                cache.remove(new, entry);
            } else if let Some(old) = slot.filter(|&old| old != new) {
                cache.remove(old, entry);
            }
        }
        false
    }

    fn overwrite(&self, cache: &Cache, entry: u64) {
        self.words[entry as usize].fetch_add(PLACES, SeqCst);
        if let Some(slot) = Slot::from_bits(self.slots[entry as usize].swap(0, SeqCst) as u32) {
            cache.remove(slot, entry);
        }
    }

    fn relocate(&self, cache: &Cache, entry: u64) {
        let old = self.words[entry as usize].load(SeqCst);
        if self.words[entry as usize].compare_exchange(old, old + 1, SeqCst, SeqCst).is_ok()
            && let Some(slot) = self.slot(entry)
        {
            cache.relocate(slot, entry, old, old + 1);
        }
    }
}

/// Whether the cache would answer, without reading.
fn is_there(cache: &Cache, slot: Slot, entry: u64, word: u64) -> bool {
    cache.lookup(slot, entry, word, |_, _| ()).is_some()
}

/// All work there is, and what it handed out.
fn maintain(cache: &Cache) -> Vec<Vec<Member>> {
    let mut rewrite = Vec::new();
    loop {
        let upkeep = cache.maintain(1000, &|_| 0);
        rewrite.extend(upkeep.rewrite);
        if !upkeep.more {
            return rewrite;
        }
    }
}

/// Checks a cache at rest: lists and cells agree, and every byte is accounted for. Returns the bytes of its
/// copies.
fn audit(cache: &Cache) -> u64 {
    maintain(cache);
    let mut lists = cache.lists.lock();
    let mut linked = lists.audit();
    linked.sort_unstable();
    let (mut full, mut slots, mut bytes, mut index) = (Vec::new(), 0, 0, 0);
    while let Some(cell) = cache.table.get(index) {
        if let Some(cached) = cell.cached.get(&epoch::pin()) {
            full.push(index);
            bytes += cached.cost();
        }
        slots += 1;
        index += 1;
    }
    assert_eq!(linked, full, "the lists hold what the cells hold");
    assert_eq!(cache.entries.load(SeqCst), full.len());
    assert_eq!(lists.bytes(Which::Inactive) + lists.bytes(Which::Active), bytes);

    let empty = Cache::new(0);
    let empty = empty.memory_bytes() - empty.regions.heap_bytes() + cache.regions.heap_bytes();
    let (mut segments, mut left, mut segment) = (0, slots, 0);
    while left > 0 {
        let len = table::segment_len(segment);
        segments += heap_bytes(len * size_of::<Cell>()) + heap_bytes(len * size_of::<Node>());
        left -= len;
        segment += 1;
    }
    let ghost = if lists.ghost.marks() == 0 { 0 } else { Ghost::bytes_of(lists.ghost.marks()) };
    let counted = empty + segments + ghost + bytes + cache.spare.audit();
    assert_eq!(cache.memory_bytes(), counted, "every byte is counted, and once");
    bytes
}

#[test]
fn a_slot_answers_only_for_its_entry_at_its_location() {
    let cache = Cache::new(1 << 20);
    let slot = cache.insert(7, (70, 0), &record(7, 1, 100), 16, false).unwrap();
    assert_is(&cache.get(Some(slot), 7, 70).unwrap(), 7, 1);
    assert_eq!(cache.get(Some(slot), 8, 70), None);
    assert_eq!(cache.get(Some(slot), 7, 71), None);
    assert_eq!(cache.get(None, 7, 70), None);
    assert_eq!(cache.get(Slot::from_bits(u32::MAX), 7, 70), None);
    let far = Slot::from_bits(u32::MAX);
    let wanted = [(Some(slot), 8, 70), (None, 7, 70), (Some(slot), 7, 70), (far, 7, 70), (Some(slot), 7, 71)];
    let before = cache.stats();
    let found = cache.get_many(&wanted, &crossbeam_epoch::pin());
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true, false, false]);
    assert_is(found[2].as_ref().unwrap(), 7, 1);
    assert_eq!((cache.stats().hits - before.hits, cache.stats().misses - before.misses), (1, 4));

    cache.relocate(slot, 8, 70, 75);
    cache.relocate(slot, 7, 71, 75);
    assert!(is_there(&cache, slot, 7, 70));
    cache.relocate(slot, 7, 70, 75);
    assert!(!is_there(&cache, slot, 7, 70) && is_there(&cache, slot, 7, 75));

    cache.remove(slot, 8);
    assert!(is_there(&cache, slot, 7, 75));
    cache.remove(slot, 7);
    cache.remove(slot, 7);
    assert!(!is_there(&cache, slot, 7, 75));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (2, 8, 0));
    assert_eq!(audit(&cache), 0);
    assert_eq!(Slot::from_bits(slot.bits()), Some(slot));
}

#[test]
fn what_is_too_large_is_not_cached() {
    let cache = Cache::new(1 << 16);
    assert!(cache.insert(1, (1, 0), &record(1, 1, 9000), 16, false).is_none());
    assert!(cache.insert(1, (1, 0), &record(1, 1, 7000), 16, false).is_some());
    // Room for the copy, but not for the slots.
    let fixed = nothing_cached(100).memory_bytes();
    let tight = nothing_cached(fixed + 8000);
    assert_eq!(tight.memory_bytes(), fixed);
}

/// A cache that is too small to take even a small record.
fn nothing_cached(capacity: u64) -> Cache {
    let nothing = Cache::new(capacity);
    assert!(nothing.insert(1, (1, 0), b"", 0, false).is_none());
    assert!(!nothing.maintain(1000, &|_| 0).more);
    assert_eq!(nothing.stats().entries, 0);
    nothing
}

/// Goal: whatever is inserted, moved, removed and evicted, an answer is that of a map, the memory stays
/// inside a capacity that moves, and nothing is lost count of.
#[test]
fn the_cache_agrees_with_a_map() {
    for policy in [Policy::TWO_Q, Policy::S3_FIFO] {
        let cache = Cache::with_policy(200_000, policy);
        let index = Index::new(500);
        let mut numbers = Numbers(1);
        let (mut hits, mut most) = (0, 0);
        for round in 0..200_000 {
            let entry = numbers.below(500).min(numbers.below(500));
            match numbers.below(100) {
                0..=79 => hits += u64::from(index.read(&cache, entry, (mix(entry) % 3000) as usize)),
                80..=87 => index.overwrite(&cache, entry),
                88..=95 => index.relocate(&cache, entry),
                96 => {
                    let range: Vec<_> = (entry..(entry + 20).min(500))
                        .filter_map(|entry| Some((index.slot(entry)?, entry)))
                        .collect();
                    cache.chain(&range, false);
                }
                _ => {
                    for member in cache.maintain(50, &|_| 0).rewrite.into_iter().flatten() {
                        assert_is(&member.record[16..], member.entry, version(member.word));
                    }
                }
            }
            assert!(cache.memory_bytes() <= 200_000);
            most = most.max(cache.memory_bytes());
            if round % 20_000 == 0 {
                audit(&cache);
                cache.set_capacity(100_000);
                maintain(&cache);
                assert!(cache.memory_bytes() <= 100_000);
                cache.set_capacity(200_000);
            }
        }
        assert!(hits > 40_000 && most > 190_000, "hits {hits}, at most {most} bytes");
        (0..500).for_each(|entry| index.overwrite(&cache, entry));
        assert_eq!(audit(&cache), 0);
    }
}

/// Goal: under four threads that read, overwrite and move while a fifth maintains, no read is answered with
/// another entry's or version's bytes, and the memory never exceeds the capacity.
#[test]
fn threads_see_right_values_within_the_capacity() {
    const CAPACITY: u64 = 400_000;
    let cache = Cache::new(CAPACITY);
    let index = Index::new(2000);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (cache, index, done) = (&cache, &index, &done);
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn(move || {
                    let mut numbers = Numbers(seed);
                    let mut hits = 0;
                    for _ in 0..150_000 {
                        let entry = numbers.below(2000).min(numbers.below(2000)).min(numbers.below(2000));
                        match numbers.below(20) {
                            0 => index.overwrite(cache, entry),
                            1 => index.relocate(cache, entry),
                            2 => {
                                let near: Vec<_> = (entry..(entry + 10).min(2000))
                                    .filter_map(|entry| Some((index.slot(entry)?, entry)))
                                    .collect();
                                cache.chain(&near, false);
                            }
                            _ => hits += u64::from(index.read(cache, entry, (mix(entry) % 600) as usize)),
                        }
                        assert!(cache.memory_bytes() <= CAPACITY);
                    }
                    hits
                })
            })
            .collect();
        let maintainer = scope.spawn(move || {
            let (mut handed, mut before) = (0, 0);
            loop {
                // Once more when the others are done, who may have been before it did anything.
                let last = done.load(SeqCst);
                for chain in cache.maintain(1000, &|_| 0).rewrite {
                    handed += chain.len();
                    assert!(chain.is_sorted_by(|a, b| a.entry < b.entry));
                    for member in chain {
                        assert_is(&member.record[16..], member.entry, version(member.word));
                    }
                }
                let sums = cache.stats().hits;
                assert!(sums >= before);
                before = sums;
                if last {
                    return handed;
                }
                thread::yield_now();
            }
        });
        let hits: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        done.store(true, SeqCst);
        let handed = maintainer.join().unwrap();
        assert!(hits > 50_000 && handed > 0, "{hits} hits, {handed} handed out");
        assert_eq!(cache.stats().hits, hits);
    });
    audit(&cache);
    (0..2000).for_each(|entry| index.overwrite(&cache, entry));
    assert_eq!(audit(&cache), 0);
    assert_eq!(cache.stats().entries, 0);
}

/// Goal: memory is used again only when nobody reads it. Method: threads hold what they have read for a while and look at it again,
/// while copies are made in memory that others have left.
#[test]
fn what_is_read_stays_as_it_is_while_memory_is_used_again() {
    const ENTRIES: u64 = 4000;
    let (cache, index) = (Cache::new(4 << 20), Index::new(ENTRIES));
    thread::scope(|scope| {
        for seed in 0..3 {
            let (cache, index) = (&cache, &index);
            scope.spawn(move || {
                let (mut numbers, mut held) = (Numbers(seed), std::collections::VecDeque::new());
                for _ in 0..40_000 {
                    let entry = numbers.below(ENTRIES);
                    if numbers.below(4) == 0 {
                        index.overwrite(cache, entry);
                    }
                    index.read(cache, entry, 500);
                    let word = index.words[entry as usize].load(SeqCst);
                    if let Some(value) = cache.get(index.slot(entry), entry, word) {
                        held.push_back((entry, version(word), value));
                    }
                    if held.len() > 256
                        && let Some((entry, version, value)) = held.pop_front()
                    {
                        assert_is(&value, entry, version);
                    }
                }
            });
        }
    });
    audit(&cache);
    let taken = cache.spare.taken.load(SeqCst);
    assert!(taken > 5_000, "{taken}");
}

#[test]
fn a_scan_over_cold_values_does_not_flush_what_is_read_again() {
    for policy in [Policy::TWO_Q, Policy::S3_FIFO] {
        let cache = Cache::with_policy(1 << 20, policy);
        let index = Index::new(50_000);
        // A hot set of about half the capacity, read often, among values read once.
        for round in 0..20 {
            for entry in 0..1000 {
                index.read(&cache, entry, 300);
            }
            (0..300).for_each(|cold| _ = index.read(&cache, 1000 + round * 300 + cold, 300));
            maintain(&cache);
        }
        for entry in 10_000..50_000 {
            index.read(&cache, entry, 300);
            if entry % 100 == 0 {
                maintain(&cache);
            }
        }
        let kept = (0..1000).filter(|&entry| index.read(&cache, entry, 300)).count();
        assert!(kept >= 990, "{}: {kept} of 1000 hot values outlived the scan", policy.name);
        audit(&cache);
    }
}

#[test]
fn a_value_read_once_goes_before_one_read_twice() {
    let cache = Cache::new(1 << 20);
    let index = Index::new(10_000);
    index.read(&cache, 0, 300);
    index.read(&cache, 1, 300);
    assert!(index.read(&cache, 0, 300));
    for entry in 2..5000 {
        index.read(&cache, entry, 300);
        maintain(&cache);
    }
    assert!(is_there(&cache, index.slot(0).unwrap(), 0, 0));
    assert!(!is_there(&cache, index.slot(1).unwrap(), 1, 0));
    assert!(cache.stats().evictions > 0);
}

/// Goal: a chain of which a member goes is handed out in key order, once, with the member that goes; what was
/// removed is not in it.
#[test]
fn a_chain_is_handed_out_in_order_and_once() {
    let cache = Cache::new(1 << 20);
    let index = Index::new(10_000);
    let range = |entries: Range<u64>| -> Vec<_> {
        entries.map(|entry| (index.slot(entry).unwrap(), entry)).collect()
    };
    // Read in another order than that of keys.
    (0..100).for_each(|step| _ = index.read(&cache, step * 37 % 100, 300));
    // Ranges that overlap become one.
    cache.chain(&range(0..60), false);
    cache.chain(&range(40..100), false);
    assert!(maintain(&cache).is_empty(), "nothing was evicted");
    index.overwrite(&cache, 50);
    let mut handed = Vec::new();
    for entry in 1000..9000 {
        index.read(&cache, entry, 300);
        if entry % 20 == 0 {
            handed.extend(maintain(&cache));
        }
    }
    assert_eq!(handed.len(), 1);
    let entries: Vec<_> = handed[0].iter().map(|member| member.entry).collect();
    assert_eq!(entries, (0..100).filter(|&entry| entry != 50).collect::<Vec<_>>());
    for member in &handed[0] {
        assert_is(&member.record[16..], member.entry, version(member.word));
    }
}

/// Goal: a range that was found scattered is handed out at once, as far as it is still cached, and once.
#[test]
fn a_scattered_range_is_handed_out_at_once() {
    let cache = Cache::new(1 << 20);
    let index = Index::new(10_000);
    (0..100).for_each(|entry| _ = index.read(&cache, entry, 300));
    let range: Vec<_> = (0..100).map(|entry| (index.slot(entry).unwrap(), entry)).collect();
    cache.chain(&range, true);
    index.overwrite(&cache, 7);
    let handed = maintain(&cache);
    assert_eq!(handed.len(), 1);
    let entries: Vec<_> = handed[0].iter().map(|member| member.entry).collect();
    assert_eq!(entries, (0..100).filter(|&entry| entry != 7).collect::<Vec<_>>());
    assert!(maintain(&cache).is_empty());
}

/// Goal: where readers have to evict, what is left of a chain is handed out at the next round.
#[test]
fn a_chain_broken_by_a_reader_is_handed_out_too() {
    let cache = Cache::new(1 << 20);
    let index = Index::new(10_000);
    (0..100).for_each(|entry| _ = index.read(&cache, entry, 300));
    cache.chain(&(0..100).map(|entry| (index.slot(entry).unwrap(), entry)).collect::<Vec<_>>(), false);
    maintain(&cache);
    let mut next = 1000;
    while cache.stats().evictions < 10 {
        index.read(&cache, next, 300);
        next += 1;
    }
    cache.set_capacity(2 << 20);
    assert!(!cache.pressure(), "the round evicts nothing itself");
    let handed = maintain(&cache);
    assert_eq!(handed.len(), 1);
    let entries: Vec<_> = handed[0].iter().map(|member| member.entry).collect();
    assert_eq!(entries, (10..100).collect::<Vec<_>>());
    // Chained again, it is handed out for another eviction only.
    cache.chain(&(10..100).map(|entry| (index.slot(entry).unwrap(), entry)).collect::<Vec<_>>(), false);
    assert!(maintain(&cache).is_empty());
    (10..50).for_each(|entry| index.overwrite(&cache, entry));
    assert!(maintain(&cache).is_empty());
    let handed: Vec<_> = (0..5000)
        .flat_map(|_| {
            index.read(&cache, next, 300);
            next += 1;
            maintain(&cache)
        })
        .collect();
    assert_eq!(handed.iter().map(Vec::len).collect::<Vec<_>>(), [50], "what is left of it, when that goes");
}

#[test]
fn a_chain_is_handed_out_in_parts_of_bounded_length() {
    let cache = Cache::new(4 << 20);
    let index = Index::new(30_000);
    let range = |entries: Range<u64>| -> Vec<_> {
        entries.map(|entry| (index.slot(entry).unwrap(), entry)).collect()
    };
    (0..2000).for_each(|entry| _ = index.read(&cache, entry, 300));
    (0..2000).step_by(100).for_each(|first| cache.chain(&range(first..(first + 101).min(2000)), false));
    maintain(&cache);
    let mut handed = Vec::new();
    for entry in 2000..30_000 {
        index.read(&cache, entry, 300);
        handed.extend(maintain(&cache));
    }
    assert!(handed.iter().all(|chain| chain.len() <= MAX_CHAIN));
    let mut entries: Vec<_> = handed.iter().flatten().map(|member| member.entry).collect();
    assert!(handed.iter().all(|chain| chain.is_sorted_by(|a, b| a.entry + 1 == b.entry)));
    entries.sort_unstable();
    assert_eq!(entries, (0..2000).collect::<Vec<_>>());
}

/// Ranks by Zipf's law (Gray et al., SIGMOD '94), spread over all entries by a hash.
struct Zipf {
    entries: u64,
    theta: f64,
    zeta: f64,
    numbers: Numbers,
}

impl Zipf {
    fn new(entries: u64, theta: f64, seed: u64) -> Self {
        let zeta = (1..=entries).map(|rank| (rank as f64).powf(-theta)).sum();
        Zipf { entries, theta, zeta, numbers: Numbers(seed) }
    }

    fn next(&mut self) -> u64 {
        let n = self.entries as f64;
        let uniform = self.numbers.next() as f64 / u64::MAX as f64;
        let part = uniform * self.zeta;
        let zeta2 = 1.0 + 0.5f64.powf(self.theta);
        let rank = if part < 1.0 {
            0.0
        } else if part < zeta2 {
            1.0
        } else {
            let eta = (1.0 - (2.0 / n).powf(1.0 - self.theta)) / (1.0 - zeta2 / self.zeta);
            n * (eta * uniform - eta + 1.0).powf(1.0 / (1.0 - self.theta))
        };
        mix(rank as u64) % self.entries
    }
}

/// Prints the hit ratios of the policies: for choosing between them.
#[test]
#[ignore = "a comparison, not a check"]
fn hit_ratios() {
    const ENTRIES: u64 = 500_000;
    const LEN: usize = 200;
    for (name, scans, theta) in
        [("zipf 0.99", 0, 0.99), ("zipf 0.8", 0, 0.8), ("zipf 0.99 and scans", 5, 0.99), ("zipf 1.2", 0, 1.2)]
    {
        for percent in [1, 5, 10, 20] {
            print!("{name:20} cache {percent:2} %:");
            for policy in [Policy::TWO_Q, Policy::S3_FIFO] {
                let cache = Cache::with_policy(ENTRIES * (LEN as u64 + 16) * percent / 100, policy);
                let index = Index::new(ENTRIES);
                let mut zipf = Zipf::new(ENTRIES, theta, 42);
                let mut counted = (0, 0);
                for round in 0..6_000_000u64 {
                    let entry = zipf.next();
                    if zipf.numbers.below(1000) < scans {
                        for entry in entry..(entry + 100).min(ENTRIES) {
                            index.read(&cache, entry, LEN);
                        }
                    }
                    let hit = index.read(&cache, entry, LEN);
                    if round > 3_000_000 {
                        counted.0 += u64::from(hit);
                        counted.1 += 1;
                    }
                    if round % 64 == 0 {
                        cache.maintain(1000, &|_| 0);
                    }
                }
                print!(
                    "  {} {:.4} ({})",
                    policy.name,
                    counted.0 as f64 / counted.1 as f64,
                    cache.stats().entries
                );
            }
            println!();
        }
    }
}

/// Prints what a hit costs, the value's share taken and given back included: the best of many rounds, as the
/// machine may be busy.
#[test]
#[ignore = "a measurement, not a check"]
fn hit_cost() {
    const ENTRIES: u64 = 10_000;
    const READS: u64 = 100_000;
    let best_of = |mut round: Box<dyn FnMut() + Send>| {
        let time = |_| {
            let start = Instant::now();
            round();
            start.elapsed().as_nanos() as f64 / READS as f64
        };
        (0..100).map(time).fold(f64::MAX, f64::min)
    };
    let cache = Arc::new(Cache::new(64 << 20));
    let index = Arc::new(Index::new(ENTRIES));
    (0..ENTRIES).for_each(|entry| _ = index.read(&cache, entry, 100));
    maintain(&cache);
    for (name, hot) in [("10 000 entries", ENTRIES), ("one entry", 1)] {
        for threads in [1, 2] {
            let reader = |seed, cached: bool| {
                let (cache, index) = (Arc::clone(&cache), Arc::clone(&index));
                let mut numbers = Numbers(seed);
                move || {
                    best_of(Box::new(move || {
                        for _ in 0..READS {
                            let entry = numbers.below(hot);
                            let word = index.words[entry as usize].load(SeqCst);
                            let slot = std::hint::black_box(index.slot(entry));
                            if cached {
                                assert!(cache.get(slot, entry, word).is_some());
                            }
                        }
                    }))
                }
            };
            let run = |cached| {
                let readers: Vec<_> = (0..threads).map(|seed| thread::spawn(reader(seed, cached))).collect();
                readers.into_iter().map(|reader| reader.join().unwrap()).fold(0.0, f64::max)
            };
            let without = run(false);
            println!("{name}, {threads} threads: {:.1} ns a hit, besides {without:.1}", run(true) - without);
        }
    }
    let entries: Vec<_> = (0..READS).map(|round| round % ENTRIES).collect();
    let insert = best_of(Box::new(move || {
        for &entry in &entries {
            cache.remove(index.slot(entry).unwrap(), entry);
            index.read(&cache, entry, 100);
        }
    }));
    println!("remove, miss and insert: {insert:.0} ns");
}
