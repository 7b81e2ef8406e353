//! Goal: after a crash at any persist event every acknowledged insert is in the index with its id, every
//! acknowledged remove is not, the one under way is or is not, and nothing is damaged or leaked. And: this
//! test would notice if any flush, fence or publish of index or pages were left out.
//! Method: scripts of inserts and removes on a pool so small that pages are reused at once, some of them
//! on a second thread, whose fences say nothing of the first one's flushes; images of every event in both
//! models; then each call site left out in turn.

mod index_kit;

use index_kit::{HEAD, SEED, TABLE, all, first_page, format, open};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tierdb_base::ErrorKind;
use tierdb_base::mutant::{self, Site};
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, Oracle, explore};
use tierdb_sim::{Budget, CrashModel, SimPool, World};
use tierdb_valuelog::index::Index;
use tierdb_valuelog::pages::{PAGE, PageUse, Pages};

const POOL: u64 = 40 * PAGE;

/// What was acknowledged, and what was under way.
#[derive(Clone, Default)]
struct Known {
    formatted: bool,
    created: bool,
    /// Nothing is under way, so the page table has all pages in use.
    fenced: bool,
    /// Nothing is queued either, so it has no others.
    quiet: bool,
    keys: BTreeMap<Vec<u8>, u64>,
    under_way: Option<(Vec<u8>, Option<u64>)>,
}

/// Keys of which a few fill a leaf: medium, long, and with long common starts, which make long fences.
fn key(n: u64) -> Vec<u8> {
    match n % 4 {
        0 => [&n.to_be_bytes()[..], &[1; 120]].concat(),
        1 => [&[b's'; 180][..], &n.to_be_bytes(), &[2; 40]].concat(),
        2 => [&[b's'; 180][..], &n.to_be_bytes(), &vec![3; 300 * (1 + n as usize % 3)]].concat(),
        _ => [&[n as u8][..], &[b'x'; 230]].concat(),
    }
}

struct Script {
    name: &'static str,
    /// Of ten operations so many insert, in phases.
    phases: &'static [(u64, usize)],
    variety: u64,
    /// One operation in so many is done by another thread.
    elsewhere: u64,
}

const SCRIPTS: [Script; 3] = [
    Script { name: "churn", phases: &[(9, 70), (1, 70), (5, 40)], variety: 120, elsewhere: 4 },
    Script { name: "alone", phases: &[(8, 60), (2, 60), (7, 30), (1, 50)], variety: 60, elsewhere: u64::MAX },
    Script { name: "in turn", phases: &[(9, 60), (1, 80)], variety: 90, elsewhere: 2 },
];

fn run(script: &Script, seed: u64, world: &World, known: &Oracle<Known>) {
    let pool = Arc::new(world.pool("fast"));
    let pages = format(pool.clone());
    known.update(|known| known.formatted = true);
    let index = Index::create(pool.clone(), pages.clone(), HEAD).expect("create");
    known.update(|known| known.created = true);
    let pause = |mark: fn(&mut Known) -> &mut bool| {
        pool.fence();
        known.update(|known| *mark(known) = true);
        // An event at which a crash finds it so.
        pool.fence();
        known.update(|known| *mark(known) = false);
    };
    pause(|known| &mut known.fenced);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut id = 0;
    for (inserts, operations) in script.phases {
        for operation in 0..*operations {
            let key = key(rng.u64(..script.variety));
            let insert = rng.u64(..10) < *inserts;
            let elsewhere = rng.u64(..script.elsewhere) == 0;
            let old = known.get().keys.get(&key).copied();
            id += 1;
            let new = if insert { Some(old.unwrap_or(id)) } else { None };
            known.update(|known| known.under_way = Some((key.clone(), new)));
            let work = || match (insert, old) {
                (true, _) => index.get_or_insert(&key, || Ok(id)).map(|_| true),
                (false, Some(old)) => index.remove(&key, old),
                (false, None) => index.remove(&key, id),
            };
            let done = match elsewhere {
                true => std::thread::scope(|scope| scope.spawn(work).join().expect("operation")),
                false => work(),
            };
            known.update(|known| {
                known.under_way = None;
                match done {
                    Ok(_) if insert => drop(known.keys.entry(key).or_insert(id)),
                    Ok(_) => drop(known.keys.remove(&key)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}"),
                }
            });
            // Another thread's kind words, which are hints, are on their way until it fences.
            if script.elsewhere == u64::MAX {
                pause(|known| &mut known.fenced);
                if operation % 8 == 7 && settle(&index, &pages) {
                    pause(|known| &mut known.quiet);
                }
            }
        }
    }
    settle(&index, &pages);
}

/// Lets replaced pages come back, and says whether all did.
fn settle(index: &Index<SimPool>, pages: &Pages<SimPool>) -> bool {
    (0..100).any(|_| {
        index.run_structure_updates();
        crossbeam_epoch::pin().flush();
        std::thread::yield_now();
        pages.used() * PAGE == index.pool_bytes() && index.waiting() == 0
    })
}

fn recover(image: &World) -> Result<(), String> {
    let pool = Arc::new(image.pool("fast"));
    if pool.load(HEAD) == 0 {
        return Ok(());
    }
    open(pool, 1).map(|_| ()).map_err(|e| e.to_string())
}

fn check(known: &Known, image: &World) -> Result<(), String> {
    let pool = Arc::new(image.pool("fast"));
    let first = first_page(POOL);
    let before = Pages::open(pool.clone(), TABLE, first, POOL / PAGE - first, SEED);
    let kinds: Vec<_> = before.kinds().collect();
    if known.formatted && kinds.iter().any(|(_, of)| *of == PageUse::Damaged) {
        return Err("what was in the page table is back".into());
    }
    if pool.load(HEAD) == 0 {
        return if known.created { Err("the index is gone".into()) } else { Ok(()) };
    }
    let (index, pages, damage) = open(pool, 1).map_err(|e| e.to_string())?;
    let clean =
        |damage: &[_], when| if damage.is_empty() { Ok(()) } else { Err(format!("{when}: {damage:?}")) };
    clean(&damage, "open")?;
    if kinds.iter().any(|(page, of)| pages.is_taken(*page) && *of == PageUse::Free) {
        // A crash took a kind word; opening has brought it back for good.
        let only_certain = Budget { none: true, all: false, one_in: 0, one_out: 0, torn: 0, random: 0 };
        for later in image.capture().images(&[CrashModel::X86], 0, &only_certain) {
            let later =
                Pages::open(Arc::new(later.world.pool("fast")), TABLE, first, POOL / PAGE - first, SEED);
            if later.kinds().any(|(page, of)| pages.is_taken(page) && of == PageUse::Free) {
                return Err("a kind word is gone again".into());
            }
        }
    }
    clean(&index.verify(), "verify")?;
    if pages.used() * PAGE != index.pool_bytes() {
        return Err(format!("{} pages taken, but {} bytes in use", pages.used(), index.pool_bytes()));
    }
    if known.fenced || known.quiet {
        let mut wrong = kinds.iter().filter(|(page, of)| pages.is_taken(*page) != (*of != PageUse::Free));
        let wrong = wrong.find(|(page, _)| known.quiet || pages.is_taken(*page));
        wrong.map_or(Ok(()), |(page, of)| Err(format!("the page table says that page {page} is {of:?}")))?;
    }
    let mut found: BTreeMap<_, _> = all(&index, false, 16).map_err(|e| e.to_string())?.into_iter().collect();
    if index.keys() != found.len() as u64 {
        return Err(format!("{} keys counted, {} found", index.keys(), found.len()));
    }
    let mut expected = known.keys.clone();
    if let Some((key, _)) = &known.under_way {
        let is = found.remove(key);
        let was = expected.remove(key);
        if is.is_some() && is != was && known.under_way.as_ref().is_none_or(|(_, new)| is != *new) {
            return Err(format!("key under way has id {is:?}"));
        }
    }
    if found != expected {
        let key = found
            .iter()
            .find(|(key, id)| expected.get(*key) != Some(id))
            .or(expected.iter().find(|(key, _)| !found.contains_key(*key)));
        return Err(format!(
            "key {:?}: found {:?}",
            key.map(|(k, _)| k),
            key.map(|(k, _)| (found.get(k), expected.get(k)))
        ));
    }
    for (key, id) in &expected {
        if index.get(key).map_err(|e| e.to_string())? != Some(*id) {
            return Err(format!("get of {key:?} is not {id}"));
        }
    }
    // The index goes on working: what came back may be used.
    for n in 0..12 {
        match index.get_or_insert(&key(1000 + n), || Ok(n)) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NoSpace => break,
            Err(e) => return Err(e.to_string()),
        }
    }
    clean(&index.verify(), "verify after inserts")
}

fn explored(script: &Script, seed: u64, options: &Options) -> Result<CrashRun, Box<CrashFailure>> {
    let world = World::new();
    let pool = world.add_pool("fast", POOL);
    // What another store left in the page table.
    for page in 0..POOL / PAGE {
        world.overwrite("fast", TABLE + page * 8, &(page * 0x0101_0101).to_le_bytes());
    }
    drop(pool);
    let known = Oracle::new(Known::default());
    explore(&world, options, &known, |world, known| run(script, seed, world, known), recover, check)
}

/// The tests run one after the other: readers of one would hold back the pages of the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn acknowledged_changes_survive_a_crash_at_every_event() {
    let _alone = ONE_AT_A_TIME.lock();
    let mut total = CrashRun::default();
    for (seed, script) in SCRIPTS.iter().enumerate() {
        let options = Options { max_images: Some(12_000), ..Options::default().seed(seed as u64).depth(2) };
        let run = explored(script, seed as u64, &options)
            .unwrap_or_else(|failure| panic!("{}: {failure}", script.name));
        total.add(&run);
    }
    println!("{total}");
    assert!(total.images > 10_000, "{total}");
}

/// Sites of index and pages that the scripts pass.
fn sites() -> Vec<Site> {
    let mut found = BTreeMap::new();
    for script in &SCRIPTS {
        let options = Options { max_images: Some(300), ..Options::default() };
        found.extend(mutant::record(|| drop(explored(script, 0, &options))));
    }
    let ours = |site: &Site| {
        let file = site.file;
        site.is_persist() && (file.contains("src/index") || file.contains("src/pages"))
    };
    found.into_keys().filter(ours).collect()
}

#[test]
fn every_persist_call_that_is_left_out_is_noticed() {
    let _alone = ONE_AT_A_TIME.lock();
    let sites = sites();
    assert!(sites.len() > 10, "{sites:?}");
    let caught = |site: Site| {
        let tries = (0..6).flat_map(|seed| SCRIPTS.iter().map(move |script| (seed, script)));
        mutant::without(site, || {
            tries.into_iter().any(|(seed, script)| {
                let options = Options { max_images: Some(4_000), ..Options::default().seed(seed).depth(2) };
                let outcome = std::panic::catch_unwind(|| explored(script, seed, &options).is_err());
                outcome.unwrap_or(true)
            })
        })
    };
    let missed: Vec<_> = sites.iter().filter(|site| !caught(**site)).map(Site::to_string).collect();
    assert!(missed.is_empty(), "of {} sites these are not noticed when left out: {missed:#?}", sites.len());
}
