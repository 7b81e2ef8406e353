//! Goal: readers and writers on any mix of keys see a sorted map, and leave one behind.
//! Method: threads that own keys and share others insert, remove, get and scan, on a pool in which pages
//! are soon used again, while one thread brings the search layer up to date now and then.

mod index_kit;

use index_kit::{all, create, open};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tierdb_pmem::MappedPool;
use tierdb_sim::{Event, EventKind, SimPool, World};
use tierdb_valuelog::index::Index;
use tierdb_valuelog::pages::PAGE;

const THREADS: u64 = 4;
const KEYS: u64 = 6000;

/// Keys of 16 bytes and some long ones; the owner's number is the last byte.
fn key(n: u64, owner: u64) -> Vec<u8> {
    let start = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let long = if n.is_multiple_of(64) { 300 } else { 7 };
    [&start[..], &vec![n as u8; long], &[owner as u8]].concat()
}

/// Inserts and removes keys that no other thread writes, and checks each by reading.
fn own(index: &Index<MappedPool>, owner: u64, rounds: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut rng = fastrand::Rng::with_seed(owner);
    let mut model = BTreeMap::new();
    for round in 0..rounds {
        // Growth and decay in turn, so that leaves split and join all the time.
        let grows = round / 4000 % 2 == 0;
        let key = key(rng.u64(..KEYS / THREADS), owner);
        let id = round << 8 | owner;
        let known = model.get(&key).copied();
        if rng.u32(..10) < if grows { 8 } else { 2 } {
            let found = index.get_or_insert(&key, || Ok(id)).expect("insert");
            assert_eq!(found, (known.unwrap_or(id), known.is_none()));
            model.insert(key.clone(), found.0);
        } else {
            assert_eq!(index.remove(&key, known.unwrap_or(0)).expect("remove"), known.is_some());
            model.remove(&key);
        }
        assert_eq!(index.get(&key).expect("get"), model.get(&key).copied());
        if round % 500 == 0 {
            check_own(index, owner, &model, &key, round % 1000 == 0);
        }
    }
    model
}

/// A scan finds exactly this owner's keys among others, in order.
fn check_own(
    index: &Index<MappedPool>,
    owner: u64,
    model: &BTreeMap<Vec<u8>, u64>,
    from: &[u8],
    reverse: bool,
) {
    let mut found = Vec::new();
    let push = |key: &[u8], id| found.push((key.to_vec(), id));
    index.scan(Bound::Included(from), reverse, 1000, push).expect("scan");
    assert!(found.windows(2).all(|pair| if reverse { pair[0].0 > pair[1].0 } else { pair[0].0 < pair[1].0 }));
    let complete = found.len() < 1000;
    let last = found.last().map(|(key, _)| key.clone());
    let mine: Vec<_> = found.into_iter().filter(|(key, _)| key.last() == Some(&(owner as u8))).collect();
    let bound = |edge: Option<Vec<u8>>| match (complete, edge) {
        (false, Some(edge)) => Bound::Included(edge),
        _ => Bound::Unbounded,
    };
    let expected: Vec<_> = match reverse {
        false => {
            model.range((Bound::Included(from.to_vec()), bound(last))).map(|(k, v)| (k.clone(), *v)).collect()
        }
        true => model
            .range((bound(last), Bound::Included(from.to_vec())))
            .rev()
            .map(|(k, v)| (k.clone(), *v))
            .collect(),
    };
    assert!(mine == expected, "a scan found {} of the owner's keys, not {}", mine.len(), expected.len());
}

/// Inserts and removes keys that all threads share. Each insert that was new is matched by one remove.
fn shared(index: &Index<MappedPool>, thread: u64, rounds: u64, balance: &[AtomicU64]) {
    let mut rng = fastrand::Rng::with_seed(thread);
    for round in 0..rounds {
        let n = rng.u64(..balance.len() as u64);
        let key = key(n, 0xff);
        if rng.bool() {
            let id = round << 8 | thread;
            if index.get_or_insert(&key, || Ok(id)).expect("insert").1 {
                balance[n as usize].fetch_add(1, Ordering::Relaxed);
            }
        } else if let Some(id) = index.get(&key).expect("get")
            && index.remove(&key, id).expect("remove")
        {
            balance[n as usize].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Goal: a leaf that just came into the chain is not replaced before the change that brought it is queued, nor written to while
/// the leaf that it took the place of seems to be alive.
/// Method: a split stops when its new leaves are in the chain, for as long as another thread takes to fill and split the last
/// of them, if it can; then pages are used again until a wrong order of the two changes is seen.
#[test]
fn a_new_leaf_is_not_changed_before_the_change_that_made_it_has_ended() {
    let world = World::new();
    let (index, _) = create(Arc::new(world.add_pool("fast", 400 * PAGE)));
    let index = Arc::new(index);
    let insert = |index: &Index<SimPool>, n: u64| {
        let key = format!("key {n:012}");
        assert_eq!(index.get_or_insert(key.as_bytes(), || Ok(n)).expect("room"), (n, true));
    };
    // The search layer still names the leaf that was the only one.
    let mut next = 0;
    while index.leaves() < 2 {
        insert(&index, next);
        next += 1;
    }
    // Whether the link to the new leaves was published, and who fills them then.
    let seen: Arc<Mutex<(bool, Option<JoinHandle<()>>)>> = Arc::default();
    let hook = {
        let (index, seen, this) = (index.clone(), seen.clone(), thread::current().id());
        move |_: &World, event: &Event| {
            // The other thread comes by here too.
            if !event.at.file().ends_with("index/change.rs") || thread::current().id() != this {
                return;
            }
            let (published, other) = &mut *seen.lock();
            if event.kind == EventKind::Publish {
                *published = true;
            } else if event.kind == EventKind::Fence && *published && other.is_none() {
                let index = index.clone();
                let other =
                    other.insert(thread::spawn(move || (1_000..1_400).for_each(|n| insert(&index, n))));
                let given_up = Instant::now() + Duration::from_millis(300);
                while !other.is_finished() && Instant::now() < given_up {
                    thread::yield_now();
                }
            }
        }
    };
    world.on_event(Some(Arc::new(hook)));
    while seen.lock().1.is_none() {
        insert(&index, next);
        next += 1;
    }
    world.on_event(None);
    let other = seen.lock().1.take().expect("it has begun");
    other.join().expect("it inserts its keys");
    for n in 2_000..8_000 {
        insert(&index, n);
        index.run_structure_updates();
        crossbeam_epoch::pin().flush();
    }
    let expected = (0..next).chain(1_000..1_400).chain(2_000..8_000);
    for n in expected.clone() {
        assert_eq!(index.get(format!("key {n:012}").as_bytes()).expect("whole"), Some(n));
    }
    let found = all(&index, false, 500).expect("scan");
    assert!(found.into_iter().map(|(_, id)| id).eq(expected));
    assert_eq!(index.verify(), []);
}

#[test]
fn threads_leave_the_keys_that_they_inserted() {
    let pool = Arc::new(MappedPool::in_memory(4 << 20));
    let (index, pages) = create(pool.clone());
    let balance: Vec<_> = (0..400).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let mut expected = BTreeMap::new();
    std::thread::scope(|scope| {
        let owners: Vec<_> = (0..THREADS)
            .map(|owner| {
                let (index, balance) = (&index, &balance);
                scope.spawn(move || {
                    let model = own(index, owner, 16_000);
                    shared(index, owner, 10_000, balance);
                    model
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                index.run_structure_updates();
                assert_eq!(index.verify(), []);
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        let models: Vec<_> = owners.into_iter().map(|owner| owner.join()).collect();
        done.store(true, Ordering::Relaxed);
        models.into_iter().for_each(|model| expected.extend(model.expect("owner")));
    });
    let count = |n: usize| balance[n].load(Ordering::Relaxed);
    for n in 0..balance.len() {
        let key = key(n as u64, 0xff);
        let id = index.get(&key).expect("get");
        assert_eq!(u64::from(id.is_some()), count(n), "a shared key is there once or not at all");
        expected.extend(id.map(|id| (key, id)));
    }
    assert!(all(&index, false, 500).expect("scan").into_iter().eq(expected.clone()));
    assert_eq!((index.verify(), index.keys()), (vec![], expected.len() as u64));
    let pages_used = pages.used();
    drop(index);
    let (index, pages, damage) = open(pool, 2).expect("open");
    assert_eq!(damage, []);
    assert!(pages.used() <= pages_used, "nothing is lost on open");
    assert!(all(&index, true, 500).expect("scan").into_iter().rev().eq(expected));
}
