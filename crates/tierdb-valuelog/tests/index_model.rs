//! Goal: the index is the sorted map, whatever the keys, through growth, decay and reopening.
//! Method: random operations on an index and on a `BTreeMap`, on a pool of a few hundred pages.

mod index_kit;

use index_kit::{all, create, odd_key, open};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{Error, ErrorKind};
use tierdb_pmem::MappedPool;
use tierdb_valuelog::index::Index;

type Model = BTreeMap<Vec<u8>, u64>;

/// The tests run one after the other: readers of one would hold back the pages of the others, as long as the machine does not
/// run them, and a pool that they fill would be full sooner.
static ONE_AT_A_TIME: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

fn check_scans(index: &Index<MappedPool>, model: &Model, rng: &mut fastrand::Rng, variety: u32) {
    for _ in 0..4 {
        let key = odd_key(rng, variety);
        let (wanted, reverse) = (rng.usize(..300), rng.bool());
        let (bound, range) = match rng.u32(..3) {
            0 => (Bound::Included(key.as_slice()), Bound::Included(key.clone())),
            1 => (Bound::Excluded(key.as_slice()), Bound::Excluded(key.clone())),
            _ => (Bound::Unbounded, Bound::Unbounded),
        };
        let expected: Vec<_> = if reverse {
            model.range((Bound::Unbounded, range)).rev().map(|(k, v)| (k.clone(), *v)).collect()
        } else {
            model.range((range, Bound::Unbounded)).map(|(k, v)| (k.clone(), *v)).collect()
        };
        let mut found = Vec::new();
        index.scan(bound, reverse, wanted, |key, id| found.push((key.to_vec(), id))).expect("scan");
        let enough = found.len() >= wanted.min(expected.len());
        assert!(
            enough && expected.starts_with(&found),
            "scan from {bound:?}, reverse {reverse}, wanted {wanted}"
        );
    }
}

fn check_all(index: &Index<MappedPool>, model: &Model) {
    let forward = all(index, false, 100).expect("scan");
    assert!(forward.iter().map(|(k, v)| (k, v)).eq(model), "forward");
    let backward = all(index, true, 77).expect("scan");
    assert!(backward.iter().map(|(k, v)| (k, v)).eq(model.iter().rev()), "backward");
    assert_eq!(index.keys(), model.len() as u64);
    assert_eq!(index.verify(), []);
}

fn run(seed: u64, variety: u32, phases: &[(u32, usize)]) {
    let pool = Arc::new(MappedPool::in_memory(4 << 20));
    let (mut index, mut pages) = create(pool.clone());
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = Model::new();
    let mut next_id = 1;
    for (step, (inserts, _)) in
        phases.iter().flat_map(|phase| std::iter::repeat_n(phase, phase.1)).enumerate()
    {
        let key = odd_key(&mut rng, variety);
        if rng.u32(..10) < *inserts {
            let known = model.get(&key).copied();
            let (id, new) = index.get_or_insert(&key, || Ok(next_id)).expect("insert");
            assert_eq!((id, new), (known.unwrap_or(next_id), known.is_none()));
            model.entry(key).or_insert(next_id);
            next_id = (next_id * 7 + 1) % (1 << 40);
        } else {
            let known = model.get(&key).copied();
            assert!(!index.remove(&key, known.map_or(0, |id| id ^ 1)).expect("remove"), "another id");
            assert_eq!(index.remove(&key, known.unwrap_or(0)).expect("remove"), known.is_some());
            model.remove(&key);
        }
        let key = odd_key(&mut rng, variety);
        assert_eq!(index.get(&key).expect("get"), model.get(&key).copied());
        if step % 50 == 0 {
            check_scans(&index, &model, &mut rng, variety);
        }
        if step % 997 == 0 {
            index.run_structure_updates();
        }
        if step % 2500 == 2499 {
            check_all(&index, &model);
            drop(index);
            let damage;
            (index, pages, damage) = open(pool.clone(), 1 + step % 2).expect("open");
            assert_eq!(damage, []);
            check_all(&index, &model);
            let seen = parking_lot::Mutex::new(Model::new());
            let visit = |key: &[u8], id| {
                assert!(seen.lock().insert(key.to_vec(), id).is_none());
                Ok(())
            };
            assert_eq!(index.visit(1 + step % 3, &visit).expect("visit"), []);
            assert!(*seen.lock() == model);
        }
    }
    check_all(&index, &model);
    assert_eq!(pages.used() * 4096, index.pool_bytes(), "no page is lost");
    for (key, id) in std::mem::take(&mut model) {
        assert!(index.remove(&key, id).expect("remove"));
    }
    index.run_structure_updates();
    check_all(&index, &model);
    assert_eq!(index.leaves(), 1, "an emptied index has one leaf");
}

#[test]
fn any_keys_as_in_a_sorted_map() {
    let _alone = ONE_AT_A_TIME.lock();
    run(1, 4000, &[(9, 6000), (5, 6000), (1, 4000), (8, 4000)]);
    run(2, 300, &[(5, 10_000)]);
}

#[test]
fn keys_in_order_fill_their_leaves() {
    let _alone = ONE_AT_A_TIME.lock();
    for backward in [false, true] {
        let pool = Arc::new(MappedPool::in_memory(8 << 20));
        let (index, _) = create(pool);
        for n in 0..50_000u64 {
            let n = if backward { 50_000 - n } else { n };
            index.get_or_insert(format!("table7/{n:09}").as_bytes(), || Ok(n)).expect("insert");
        }
        assert_eq!(index.verify(), []);
        assert!(
            index.leaves() < 330,
            "backward {backward}: {} leaves for 50,000 keys in order",
            index.leaves()
        );
    }
}

/// Where keys leave here and there no leaf is nearly empty, and together they hold three times the pages that are needed.
#[test]
fn half_empty_leaves_are_joined_when_that_is_asked_for() {
    let _alone = ONE_AT_A_TIME.lock();
    let (index, _) = create(Arc::new(MappedPool::in_memory(1 << 20)));
    let key = |n: u64| format!("table7/{n:09}").into_bytes();
    // Until there is no page left.
    let all =
        (0..).find(|n| index.get_or_insert(&key(*n), || Ok(*n)).is_err()).expect("it is full some time");
    let full = index.leaves();
    assert!(all > 10_000 && full > 200, "{all} keys in {full} leaves");
    (0..all).filter(|n| n % 3 > 0).for_each(|n| assert!(index.remove(&key(n), n).expect("whole")));
    let sparse = index.leaves();
    assert!(sparse * 4 > full * 3, "{sparse} leaves of {full}");
    index.join_sparse();
    let joined = index.leaves();
    assert!(joined * 2 < full, "{joined} leaves of {full}");
    index.join_sparse();
    assert_eq!(index.leaves(), joined, "nothing is left to be joined");
    assert_eq!(index.verify(), []);
    for n in 0..all {
        assert_eq!(index.get(&key(n)).expect("whole"), (n % 3 == 0).then_some(n));
    }
}

#[test]
fn a_full_pool_refuses_inserts_and_recovers_when_keys_go() {
    let _alone = ONE_AT_A_TIME.lock();
    let pool = Arc::new(MappedPool::in_memory(256 << 10));
    let (index, pages) = create(pool.clone());
    let mut rng = fastrand::Rng::with_seed(4);
    let key = |n: u64| [n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), n.to_be_bytes()].concat();
    let mut count = 0;
    for round in 0..5 {
        let refused = loop {
            match index.get_or_insert(&key(count), || Ok(count)) {
                Ok(_) => count += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
        assert!(count > 4500, "round {round}: {count}");
        assert!(pages.free() <= pages.reserve() + 1, "round {round}: {} pages free", pages.free());
        assert_eq!(index.keys(), count);
        let long = |n: u8| [&[9; 3000][..], &[n]].concat();
        let longs = (0..).find(|n| index.get_or_insert(&long(*n), || Ok(7)).is_err()).expect("full");
        assert_eq!(index.keys(), count + u64::from(longs), "a refused key is not there");
        (0..longs).for_each(|n| assert!(index.remove(&long(n), 7).expect("remove")));
        let mut order: Vec<_> = (0..count).collect();
        rng.shuffle(&mut order);
        for n in order {
            assert!(index.remove(&key(n), n).expect("removes need no page"));
        }
        assert_eq!((index.keys(), index.get(&key(3)).expect("get")), (0, None));
        // The epoch that they wait for takes a few steps to pass.
        let start = std::time::Instant::now();
        while pages.used() > 1 {
            assert!(
                start.elapsed().as_secs() < 60,
                "{} pages in use, {} leaves",
                pages.used(),
                index.leaves()
            );
            index.run_structure_updates();
            crossbeam_epoch::pin().flush();
            std::thread::yield_now();
        }
        count = 0;
    }
    assert_eq!(index.verify(), []);
    assert_eq!(index.leaves(), 1);
}

#[test]
fn a_failed_make_changes_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let pool = Arc::new(MappedPool::in_memory(1 << 20));
    let (index, pages) = create(pool);
    for key in [&b"short"[..], &[1; 1000]] {
        let failed = index.get_or_insert(key, || Err(Error::invalid("no id")));
        assert_eq!(failed.expect_err("make failed").kind(), ErrorKind::Invalid);
        assert_eq!(index.get(key).expect("get"), None);
    }
    assert_eq!((index.keys(), pages.used()), (0, 1));
    assert_eq!(index.get_or_insert(&[1; 4097], || Ok(1)).expect_err("too long").kind(), ErrorKind::Invalid);
}
