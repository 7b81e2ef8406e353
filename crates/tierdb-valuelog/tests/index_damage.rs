//! Goal: whatever bytes are in the pool, nothing panics or hangs, no answer is wrong without an error,
//! damage costs the keys of one leaf at most, and it is reported. And: each checksum matters.
//! Method: single flipped bits at every byte in use, before the index is opened and while it is open;
//! lost pages; random bytes; then each checksum comparison switched off in turn.

mod index_kit;
mod sites;

use index_kit::{HEAD, TABLE, all, create, first_page, odd_key, open, pages_of, pages_of_kind};
use sites::sites;
use std::collections::BTreeMap;
use std::sync::Arc;
use tierdb_base::ErrorKind;
use tierdb_base::mutant;
use tierdb_engine::KeyRange;
use tierdb_pmem::{MappedPool, Pool};
use tierdb_valuelog::index::Index;
use tierdb_valuelog::pages::{KIND_BLOB, KIND_LEAF, PAGE};

const POOL: u64 = 48 * PAGE;

type Model = BTreeMap<Vec<u8>, u64>;

/// An index of a few leaves with keys of all kinds, some removed, and the keys that are in it.
fn sample() -> (Arc<MappedPool>, Model) {
    let pool = Arc::new(MappedPool::in_memory(POOL));
    let (index, _) = create(pool.clone());
    let mut rng = fastrand::Rng::with_seed(8);
    let mut model = Model::new();
    for id in 1..400 {
        // Fewer of the longest, so that the pool holds all.
        let key = odd_key(&mut rng, if id % 8 == 0 { 2000 } else { 700 });
        let key = if key.len() > 1000 { key[..300].to_vec() } else { key };
        model.entry(key.clone()).or_insert(id);
        index.get_or_insert(&key, || Ok(id)).expect("insert");
        if id % 5 == 0 {
            let (key, id) =
                model.iter().nth(rng.usize(..model.len())).map(|(k, id)| (k.clone(), *id)).expect("some");
            assert!(index.remove(&key, id).expect("remove"));
            model.remove(&key);
        }
    }
    index.run_structure_updates();
    assert!(index.leaves() > 5, "{} leaves", index.leaves());
    assert_eq!(index.verify(), []);
    (pool, model)
}

fn copy(pool: &MappedPool) -> Arc<MappedPool> {
    let copy = MappedPool::in_memory(pool.len());
    let mut bytes = vec![0; pool.len() as usize];
    pool.read(0, &mut bytes).expect("read");
    copy.write(0, &bytes);
    Arc::new(copy)
}

/// Keys that are refused, if no answer is wrong.
fn answers(index: &Index<MappedPool>, model: &Model) -> Result<Vec<Vec<u8>>, String> {
    let mut refused = Vec::new();
    for (key, id) in model {
        match index.get(key) {
            Ok(found) if found == Some(*id) => {}
            Ok(found) => return Err(format!("get of {key:?} is {found:?}, not {id}")),
            Err(e) if e.kind() == ErrorKind::Corrupt => refused.push(key.clone()),
            Err(e) => return Err(e.to_string()),
        }
        let mut absent = key.clone();
        absent.push(0x55);
        if !model.contains_key(&absent) && index.get(&absent).is_ok_and(|found| found.is_some()) {
            return Err(format!("{absent:?} was never there"));
        }
    }
    for reverse in [false, true] {
        let mut found = Vec::new();
        let push = |key: &[u8], id| found.push((key.to_vec(), id));
        let done = index.scan(std::ops::Bound::Unbounded, reverse, usize::MAX, push);
        let in_order: Vec<_> = match reverse {
            false => model.iter().map(|(k, v)| (k.clone(), *v)).collect(),
            true => model.iter().rev().map(|(k, v)| (k.clone(), *v)).collect(),
        };
        if !in_order.starts_with(&found) || done.is_ok() && found.len() < in_order.len() {
            return Err(format!("a scan (reverse {reverse}) is wrong"));
        }
    }
    Ok(refused)
}

/// Flips a bit of byte `at`, before opening or after, and says whether anyone reported it.
fn flipped(pool: &MappedPool, model: &Model, at: u64, bit: u32, before: bool) -> Result<bool, String> {
    let pool = copy(pool);
    let flip = || pool.store(at & !7, pool.load(at & !7) ^ 1 << (at % 8 * 8 + u64::from(bit)));
    if before {
        flip();
    }
    let (index, pages, mut damage) = open(pool.clone(), 1).map_err(|e| e.to_string())?;
    let in_use = pages.is_taken(at / PAGE);
    if !before {
        flip();
    }
    let refused = answers(&index, model)?;
    let seen = parking_lot::Mutex::new(Model::new());
    damage.extend(
        index
            .visit(1, &|key, id| {
                seen.lock().insert(key.to_vec(), id);
                Ok(())
            })
            .map_err(|e| e.to_string())?,
    );
    if let Some(wrong) = seen.lock().iter().find(|(key, id)| model.get(*key) != Some(id)) {
        return Err(format!("visited {wrong:?}"));
    }
    if damage.is_empty() && seen.lock().len() < model.len() {
        return Err("keys are missing in a visit".into());
    }
    damage.extend(index.verify());
    for key in &refused {
        let names = |range: &KeyRange| range.contains(key);
        if !damage.iter().any(|damage| damage.keys.as_ref().is_some_and(names)) {
            return Err(format!("{key:?} is refused, but not reported: {damage:?}"));
        }
    }
    let in_header = at >= first_page(POOL) * PAGE && at % PAGE < 64 && is_leaf(&pool, at / PAGE) && in_use;
    let is_link = at / 8 == HEAD / 8 || in_header && at % PAGE / 8 == 1;
    if is_link && !refused.is_empty() {
        return Err(format!("a link costs {} keys, and they are all there", refused.len()));
    }
    if !before && in_header {
        unharmed(&index, model, flip)?;
    }
    Ok(!damage.is_empty())
}

/// Whether a page has, but for a flipped bit, the magic of a leaf.
fn is_leaf(pool: &MappedPool, page: u64) -> bool {
    ((pool.load(page * PAGE) ^ 0x4c54) & 0xffff).count_ones() <= 1
}

/// What was done with a damaged leaf has not made it worse: without the flip all is well again.
fn unharmed(index: &Index<MappedPool>, model: &Model, flip_back: impl Fn()) -> Result<(), String> {
    let mut later = model.clone();
    for (id, (key, _)) in model.iter().enumerate().step_by(9) {
        let key = [&key[..], b"+"].concat();
        if let Ok((id, true)) = index.get_or_insert(&key, || Ok(id as u64)) {
            later.insert(key, id);
        }
    }
    flip_back();
    let refused = answers(index, &later)?;
    let damage = index.verify();
    if refused.is_empty() && damage.is_empty() {
        Ok(())
    } else {
        Err(format!("made worse: {refused:?} {damage:?}"))
    }
}

/// The bytes of head word, page table and pages in use that are not zero, or stand in a leaf's header.
fn bytes_in_use(pool: &Arc<MappedPool>) -> Vec<u64> {
    let (_, pages, _) = open(pool.clone(), 1).expect("open");
    let mut bytes = vec![0; POOL as usize];
    pool.read(0, &mut bytes).expect("read");
    let counts = |at: &u64| {
        let is_header = pages.is_taken(*at / PAGE) && at % PAGE < 64;
        let is_used = *at / 8 == HEAD / 8
            || (TABLE..first_page(POOL) * PAGE).contains(at)
            || pages.is_taken(*at / PAGE);
        is_used && (bytes[*at as usize] != 0 || is_header)
    };
    (0..POOL).filter(counts).collect()
}

/// Whether a byte is one of the fences of a leaf, or of the entries right behind them.
fn is_of_fences(pool: &MappedPool, at: u64) -> bool {
    let (page, offset) = (at / PAGE, at % PAGE);
    let slots = pool.load(page * PAGE) >> 24 & 0xff;
    is_leaf(pool, page) && (64 + 3 * slots..64 + 3 * slots + 256).contains(&offset)
}

/// Flips a random bit of bytes in use, until `most` flips or a wrong answer; else how many were reported. A third
/// each is of words that are read first of all, of fences (which are few), and of all others.
fn flip_many(most: usize, seed: u64) -> Result<usize, String> {
    let (pool, model) = sample();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = bytes_in_use(&pool);
    rng.shuffle(&mut bytes);
    let first = |at: &u64| *at < first_page(POOL) * PAGE || at % PAGE < 64;
    let (mut words, others): (Vec<_>, Vec<_>) = bytes.into_iter().partition(first);
    let (mut fences, mut others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|at| is_of_fences(&pool, *at));
    words.truncate(most / 3);
    fences.truncate(most / 3);
    others.truncate(most - words.len() - fences.len());
    let mut reported = 0;
    for at in words.into_iter().chain(fences).chain(others) {
        let (bit, before) = (rng.u32(..8), rng.bool());
        let outcome = flipped(&pool, &model, at, bit, before);
        reported +=
            usize::from(outcome.map_err(|e| format!("bit {bit} of byte {at}, before {before}: {e}"))?);
    }
    Ok(reported)
}

#[test]
fn a_flipped_bit_never_gives_a_wrong_answer() {
    let most = 2000;
    let reported = flip_many(most, 1).unwrap_or_else(|wrong| panic!("{wrong}"));
    // What is left are bytes of dead entries, and of pages that nothing refers to.
    assert!(reported * 10 > most * 6, "{reported} of {most} reported");
}

/// A damaged group of a leaf hides the keys of that group alone.
#[test]
fn keys_beside_a_damaged_group_are_found() {
    const KEYS: u64 = 150;
    let pool = Arc::new(MappedPool::in_memory(POOL));
    let (index, pages) = create(pool.clone());
    for id in 1..=KEYS {
        index.get_or_insert(&id.to_be_bytes(), || Ok(id)).expect("insert");
    }
    assert_eq!(index.leaves(), 1);
    let leaf = (first_page(POOL)..POOL / PAGE).find(|page| pages.is_taken(*page) && is_leaf(&pool, *page));
    let group = leaf.expect("there is one") * PAGE + 16;
    pool.store(group, pool.load(group) ^ 1 << 60);
    let refused: Vec<u64> = (1..=KEYS)
        .filter(|id| match index.get(&id.to_be_bytes()) {
            Ok(found) => found != Some(*id),
            Err(error) => error.kind() == ErrorKind::Corrupt,
        })
        .collect();
    assert_eq!(refused, (1..=56).collect::<Vec<u64>>());
    let absent = index.get(&0u64.to_be_bytes()).expect_err("the damaged group may have it");
    assert_eq!(absent.kind(), ErrorKind::Corrupt);
}

#[test]
fn every_checksum_is_needed() {
    let comparisons = sites(true);
    assert!(comparisons.len() >= 7, "{} comparisons", comparisons.len());
    // What flips of a store show to be wrong.
    let wrong = |seed: u64| match std::panic::catch_unwind(|| flip_many(600, seed)) {
        Ok(Ok(_)) => None,
        Ok(Err(wrong)) => Some(wrong),
        Err(_) => Some("panic".into()),
    };
    let mut idle = Vec::new();
    for of in &comparisons {
        match mutant::without(of.site, || (0..20).find_map(wrong)) {
            Some(wrong) => println!("{of}: {:.120}", wrong),
            None => idle.push(of.to_string()),
        }
    }
    println!("{} of {} comparisons noticed", comparisons.len() - idle.len(), comparisons.len());
    assert!(idle.is_empty(), "of {} comparisons nobody misses {idle:#?}", comparisons.len());
}

#[test]
fn a_lost_leaf_costs_its_own_keys_only() {
    let (pool, model) = sample();
    let (index, _, _) = open(pool.clone(), 1).expect("open");
    let most = model.len() / 2;
    drop(index);
    for page in first_page(POOL)..POOL / PAGE {
        let pool = copy(&pool);
        let was_leaf = is_leaf(&pool, page);
        pool.write(page * PAGE, &[0; PAGE as usize]);
        let (index, pages, damage) = open(pool.clone(), 1).expect("opens all the same");
        let refused = answers(&index, &model).unwrap_or_else(|wrong| panic!("page {page}: {wrong}"));
        let reported = damage.len() + index.verify().len();
        assert_eq!(refused.is_empty(), reported == 0, "page {page}");
        assert!(refused.len() < most, "page {page}: {} of {} keys", refused.len(), model.len());
        // Life goes on beside it, and a later opening finds the same.
        let mut later = model.clone();
        later.retain(|key, _| !refused.contains(key));
        let mut rng = fastrand::Rng::with_seed(page);
        for id in 1000..1150 {
            let key = [&rng.u64(..).to_be_bytes()[..], &[7; 30]].concat();
            match index.get_or_insert(&key, || Ok(id)) {
                Ok(_) => assert!(later.insert(key, id).is_none()),
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NoSpace) => {}
                Err(e) => panic!("page {page}: {e}"),
            }
        }
        assert!(!was_leaf || refused.is_empty() || pages.is_taken(page), "evidence is kept");
        drop(index);
        let (index, _, _) = open(pool.clone(), 1).expect("opens again");
        for (key, id) in &later {
            assert_eq!(index.get(key).ok(), Some(Some(*id)), "page {page}: {key:?}");
        }
        for key in &refused {
            assert!(index.get(key).is_err(), "page {page}: {key:?} is still refused");
        }
    }
}

#[test]
fn random_bytes_give_errors_and_nothing_worse() {
    let (pool, _) = sample();
    let mut rng = fastrand::Rng::with_seed(2);
    let ends = [0, 1, 8, 16, 48, 56, 64, 224, 544, 560, 4000, 4095];
    for round in 0..1000 {
        let pool = copy(&pool);
        for _ in 0..rng.u32(1..6) {
            let page = rng.u64(first_page(POOL)..POOL / PAGE);
            let at = page * PAGE + if rng.bool() { ends[rng.usize(..ends.len())] } else { rng.u64(..PAGE) };
            let bytes: Vec<u8> = (0..rng.usize(1..64)).map(|_| rng.u8(..)).collect();
            match rng.u32(..4) {
                // A word that is itself whole, but belongs elsewhere.
                0 => pool.store(at & !7, pool.load(rng.u64(..POOL / 8) * 8)),
                1 => {
                    let mut other = vec![0; PAGE as usize];
                    pool.read(rng.u64(..POOL / PAGE) * PAGE, &mut other).expect("read");
                    pool.write(page * PAGE, &other);
                }
                _ => pool.write(at, &bytes[..bytes.len().min((POOL - at) as usize)]),
            }
        }
        if round % 10 == 0 {
            pool.store(HEAD, rng.u64(..));
        }
        let Ok((index, _, _)) = open(pool.clone(), 1) else { continue };
        let _reported = (index.verify(), index.visit(1, &|_, _| Ok(())).is_ok());
        let _found = (all(&index, false, 50).is_ok(), all(&index, true, 50).is_ok());
        for id in 0..20 {
            let key = odd_key(&mut rng, 400);
            let _got = index.get(&key).is_ok();
            let _put = index.get_or_insert(&key, || Ok(id)).is_ok();
            let _gone = index.remove(&key, id).is_ok();
        }
        index.run_structure_updates();
    }
}

#[test]
fn the_page_of_long_keys_is_kept_though_the_table_lost_it() {
    let pool = Arc::new(MappedPool::in_memory(POOL));
    let long = |i: u8| vec![i; 300];
    {
        let (index, _) = create(pool.clone());
        for i in 1..=3u8 {
            index.get_or_insert(&long(i), || Ok(u64::from(i))).expect("insert");
        }
    }
    let named = || pages_of_kind(&pages_of(pool.clone()), KIND_BLOB);
    let [page] = named()[..] else { panic!("one page: {:?}", named()) };
    pool.store(TABLE + (page - first_page(POOL)) * 8, 0);
    let (index, pages, damage) = open(pool.clone(), 1).expect("open");
    assert_eq!(damage, []);
    assert!(pages.is_taken(page), "the keys of page {page} stand in one that is free");
    for i in 1..=3u8 {
        assert_eq!(index.get(&long(i)).expect("whole"), Some(u64::from(i)));
    }
    assert_eq!(named(), [page], "the table names it again");
}

#[test]
fn a_leaf_that_says_its_keys_begin_with_more_than_they_do_takes_no_key() {
    let pool = Arc::new(MappedPool::in_memory(POOL));
    let (index, pages) = create(pool.clone());
    index.get_or_insert(b"key", || Ok(1)).expect("insert");
    let [leaf] = pages_of_kind(&pages, KIND_LEAF)[..] else { panic!("one leaf") };
    // The prefix, and what is folded of it.
    pool.store(leaf * PAGE, pool.load(leaf * PAGE) ^ 0x10 << 32 ^ 0x10 << 48);
    let error = index.get_or_insert(b"other", || Ok(2)).expect_err("not this key's leaf");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("prefix"), "{error}");
}
