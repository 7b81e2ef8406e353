//! Goal: the index is a sorted map, counts what it takes, and gives it back.
//! Method: random operations on it and on the library's map; keys that are alike, that are long, that come in order and leave.

use super::*;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

/// So many different keys are mostly alike.
const ALIKE: u32 = 20_000;

fn entry(n: u64) -> Entry {
    Entry::new(n * 64, n, false, false)
}

/// Keys of which many, or most, are alike in their first bytes, and some are long.
fn random_key(rng: &mut fastrand::Rng, most: u32) -> Vec<u8> {
    let n = rng.u32(..most);
    match if most == ALIKE && !n.is_multiple_of(50) { 1 } else { n % 5 } {
        0 => n.to_be_bytes()[rng.usize(..4)..].to_vec(),
        1 => format!("user{n:09}").into_bytes(),
        2 => [&n.to_be_bytes()[..], &[7; 90]].concat(),
        _ => format!("{:016x}", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes(),
    }
}

fn bound<'k>(rng: &mut fastrand::Rng, key: &'k [u8]) -> Bound<&'k [u8]> {
    [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded][rng.usize(..3)]
}

fn check(index: &Index, model: &BTreeMap<Vec<u8>, Entry>) {
    assert_eq!((index.len(), index.is_empty()), (model.len(), model.is_empty()));
    assert!(index.iter().eq(model.iter().map(|(key, entry)| (&key[..], *entry))));
    let empty = Index::default().root.heap_bytes();
    assert_eq!(index.bytes + empty, index.root.heap_bytes(), "what it takes is counted");
    let (mut last, mut leaves) = (Vec::new(), 0);
    fn check_level<T>(level: &Level<T>) {
        let apart: u64 = level.lows.iter().map(|low| apart_bytes(low)).sum();
        assert!(level.apart as u64 == apart && level.lows.len() + 1 == level.parts.len());
        assert!(level.heads.are_of(&level.lows));
    }
    check_level(&index.root);
    let bounds = |lows: &[Key], low: &Key| [std::slice::from_ref(low), lows].concat();
    for (low, branch) in bounds(&index.root.lows, &Key::new()).iter().zip(&index.root.parts) {
        check_level(branch);
        assert!(branch.parts.len() <= BRANCH);
        for (low, leaf) in bounds(&branch.lows, low).iter().zip(&branch.parts) {
            assert!(last[..] <= low[..] && leaf.size() <= LEAF && (leaf.size() > 0 || model.is_empty()));
            assert!(leaf.heads.are_of(&leaf.keys));
            for number in 0..leaf.size() {
                let key = leaf.keys.key(number);
                assert!(key >= &low[..]);
                last = key.to_vec();
            }
            leaves += 1;
        }
    }
    // Neighbours of a branch have more than half a leaf together.
    let branches = index.root.parts.len();
    assert!(leaves <= 2 * branches + model.len() / (LEAF / 4), "{leaves} leaves for {}", model.len());
    assert!(branches <= 2 + leaves / (BRANCH / 4), "{branches} branches for {leaves} leaves");
}

/// Goal: whatever is done in whatever order, it is what a sorted map is.
#[test]
fn it_does_what_a_sorted_map_does() {
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let most = [60, 3_000, ALIKE, 60_000][seed as usize % 4];
        let (mut index, mut model) = (Index::default(), BTreeMap::new());
        // It grows and shrinks in turn.
        for round in 0..6 {
            for step in 0..4_000 {
                let key = random_key(&mut rng, most);
                if (rng.u8(..8) < 2) == (round % 2 == 0) {
                    assert_eq!(index.remove(&key), model.remove(&key));
                } else {
                    assert_eq!(index.insert(&key, entry(step)), model.insert(key, entry(step)));
                }
                let key = random_key(&mut rng, most);
                assert_eq!(index.get(&key), model.get(&key).copied());
                assert_eq!(index.get_mut(&key).copied(), model.get(&key).copied());
            }
            check(&index, &model);
            for _ in 0..50 {
                let (start, end) = (random_key(&mut rng, most), random_key(&mut rng, most));
                let bounds = (bound(&mut rng, &start), bound(&mut rng, &end));
                let empty = matches!(bounds, (Bound::Excluded(_), Bound::Excluded(_)) if start == end)
                    || !matches!(bounds, (Bound::Unbounded, _) | (_, Bound::Unbounded)) && start > end;
                let wanted: Vec<_> = match empty {
                    true => Vec::new(),
                    false => model.range::<[u8], _>(bounds).map(|(key, entry)| (&key[..], *entry)).collect(),
                };
                assert!(index.range(bounds).eq(wanted.iter().copied()), "seed {seed}, {bounds:?}");
                assert!(index.range(bounds).rev().eq(wanted.iter().rev().copied()));
                let few = index.range(bounds).take(3).collect::<Vec<_>>();
                assert_eq!(few, wanted[..wanted.len().min(3)]);
            }
        }
        let keys: Vec<_> = model.keys().cloned().collect();
        for key in keys {
            assert_eq!(index.remove(&key), model.remove(&key));
        }
        check(&index, &model);
    }
}

#[test]
fn ranges_that_leave_take_their_leaves_with_them() {
    let mut index = Index::default();
    let mut model = BTreeMap::new();
    for n in 0..40_000_u64 {
        index.push(&n.to_be_bytes(), entry(n));
        model.insert(n.to_be_bytes().to_vec(), entry(n));
    }
    check(&index, &model);
    for n in (10_000..30_000_u64).chain(0..5_000).chain(35_000..40_000) {
        assert!(index.remove(&n.to_be_bytes()).is_some() && index.remove(&n.to_be_bytes()).is_none());
        model.remove(&n.to_be_bytes()[..]);
    }
    check(&index, &model);
    // Less than all there are, from the highest down: they come to the first leaf, whatever its bound was once.
    for n in (0..6_000_u64).rev() {
        assert_eq!(index.insert(&n.to_be_bytes(), entry(n)), model.insert(n.to_be_bytes().into(), entry(n)));
    }
    check(&index, &model);
    model.keys().for_each(|key| assert!(index.remove(key).is_some()));
    check(&index, &BTreeMap::new());
    assert_eq!(index.memory_bytes(), 0, "nothing is left of what there was");
}

/// Goal: what a key takes stays what `docs/design/slab.md` says, and `Index` of itself.
#[test]
fn a_key_takes_its_bytes_and_few_more() {
    let rng = &mut fastrand::Rng::with_seed(1);
    for (len, most) in [(8, 44), (16, 53), (24, 62), (100, 146)] {
        let key = |n: u64| {
            let mut key = vec![0; len];
            key[..8].copy_from_slice(&n.to_be_bytes());
            key
        };
        let mut ascending = Index::default();
        (0..100_000).for_each(|n| ascending.push(&key(n), entry(n)));
        let mut random = Index::default();
        (0..100_000).for_each(|n| _ = random.insert(&key(rng.u64(..)), entry(n)));
        for index in [ascending, random] {
            let bytes = index.memory_bytes() / index.len() as u64;
            assert!(bytes <= most, "{bytes} bytes a key of {len}");
        }
    }
}

/// Prints what a lookup costs, beside the library's map, that of choosing the key included: eight of each have 200,000 keys.
#[test]
#[ignore = "a measurement, not a check"]
fn search_cost() {
    const KEYS: u64 = 200_000;
    const LOOKUPS: usize = 2_000_000;
    for begin in ["", "tenant-0001-"] {
        let key = |n: u64| format!("{begin}{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let tree_of = |key: &[u8]| usize::from(key[begin.len()]) % 8;
        let mut maps = vec![BTreeMap::<Key, Entry>::new(); 8];
        let mut indexes: Vec<_> = (0..8).map(|_| Index::default()).collect();
        for (n, key) in keys.iter().enumerate() {
            maps[tree_of(key)].insert(Key::from_slice(key), entry(n as u64));
            indexes[tree_of(key)].insert(key, entry(n as u64));
        }
        let mut rng = fastrand::Rng::with_seed(1);
        let chosen: Vec<_> = (0..LOOKUPS).map(|_| &keys[rng.usize(..keys.len())][..]).collect();
        let cost = |lookup: &dyn Fn(&[u8]) -> Option<Entry>| {
            let start = Instant::now();
            chosen.iter().for_each(|key| _ = black_box(lookup(key).expect("there")));
            start.elapsed().as_nanos() as f64 / LOOKUPS as f64
        };
        for _ in 0..3 {
            let of_map = cost(&|key| maps[tree_of(key)].get(key).copied());
            let of_index = cost(&|key| indexes[tree_of(key)].get(key));
            println!("keys that begin with {begin:?}: map {of_map:.0} ns, index {of_index:.0} ns");
        }
    }
}
