//! Goal: a store that was closed is opened from the image that the close has left, also after the power failed,
//! and is the same store; once it is open, no crash brings the image back.
//! Method: stores with something of everything, closed; the media as they may be after a crash then, opened.

use crate::rig::Sizes;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::conformance::Oracle;
use tierdb_engine::conformance::harm::script::{self, Known, Script};
use tierdb_engine::conformance::harm::{LogPlace, Rig};
use tierdb_engine::{Durability, Engine};
use tierdb_pmem::Pool;
use tierdb_sim::{Budget, CrashModel, World};

const MODES: [Option<LogPlace>; 4] =
    [None, Some(LogPlace::FastTier), Some(LogPlace::WithValues), Some(LogPlace::TwoFastTiers)];
/// Byte of the pool's word that names the image.
const IMAGE_AT: u64 = 1024;

fn was_quick(engine: &dyn Engine) -> bool {
    engine.stats().figure("opened_from_image") == Some(1)
}

fn sizes() -> Sizes {
    // The scripts fill the tiny ones up, and then there is no room for an image.
    Sizes { pool: 512 << 10, flash: vec![512 << 10, 256 << 10], ..Sizes::tiny() }
}

fn rig(log: Option<LogPlace>) -> Rig<Sizes> {
    Rig::new(sizes(), log)
}

/// A store on which `script` has run, and what it holds.
fn closed(script: &Script, mode: Option<LogPlace>, seed: u64) -> (World, Oracle) {
    let world = rig(mode).empty_world();
    let known = Known::new(Oracle::new());
    fastrand::seed(seed);
    let engine = rig(mode).open(&world).expect("a whole store opens");
    script::run_on(script, 2 * seed, &*engine, &known);
    script::close(&*engine, &known);
    (world, known.get())
}

/// What the media may hold if the power fails once the store is closed.
fn after_power_loss(world: &World, seed: u64) -> Vec<World> {
    let point = world.capture();
    point.images(&CrashModel::BOTH, seed, &Budget::default()).map(|image| image.world).collect()
}

/// Whether every store is opened from its image after a power failure.
fn all_are_quick() -> bool {
    MODES.iter().all(|mode| {
        (0..4).zip(&Script::ALL).all(|(seed, script)| {
            let (world, oracle) = closed(script, *mode, seed);
            after_power_loss(&world, seed).iter().all(|image| {
                let engine = rig(*mode).open(image).expect("a closed store opens");
                was_quick(&*engine)
                    && oracle.check(&*engine).is_ok()
                    && engine.verify().is_ok_and(|v| v.is_clean())
            })
        })
    })
}

#[test]
fn a_closed_store_opens_from_its_image_after_a_power_failure() {
    let sites = mutant::record(|| assert!(all_are_quick()));
    // Nothing of an image is needed for a right answer: the crash suite cannot notice what is left out.
    let ours = |site: &Site| site.is_persist() && site.file.ends_with("valuelog/src/image.rs");
    let (missed, noticed): (Vec<Site>, Vec<Site>) =
        sites.into_keys().filter(ours).partition(|site| mutant::without(*site, all_are_quick));
    let kinds: Vec<_> = noticed.iter().map(|site| site.what).collect();
    assert_eq!(kinds, ["fence", "flush", "publish"], "{noticed:?}");
    // The order of record and name matters to a crash in between alone, which leaves no image or half of one. That the
    // name is taken away is another test's.
    let kinds: Vec<_> = missed.iter().map(|site| site.what).collect();
    assert_eq!(kinds, ["fence", "publish"], "{missed:?}");
}

/// Whether a store that was opened and written to has no image any more, whatever a crash leaves.
fn is_taken_away() -> bool {
    let (world, _) = closed(&Script::OVERWRITE, None, 3);
    let named = |world: &World| world.pool("pool").load(IMAGE_AT) << 23 != 0;
    assert!(named(&world), "a closed store has one");
    let engine = rig(None).open(&world).expect("a closed store opens");
    engine.put(b"later", b"value", Durability::Durable).expect("room");
    let left = after_power_loss(&world, 3);
    !left.iter().any(named)
}

#[test]
fn an_image_is_taken_away() {
    let sites = mutant::record(|| assert!(is_taken_away()));
    let ours = |site: &Site| site.what == "publish" && site.file.ends_with("valuelog/src/image.rs");
    let noticed = sites.into_keys().filter(ours).filter(|site| !mutant::without(*site, is_taken_away));
    assert_eq!(noticed.count(), 1, "a name that stays is noticed");
}

#[test]
fn an_image_is_used_once() {
    for mode in MODES {
        let (world, oracle) = closed(&Script::OVERWRITE, mode, 3);
        let engine = rig(mode).open(&world).expect("a closed store opens");
        assert!(was_quick(&*engine));
        let killed = world.copy();
        engine.put(b"later", b"value", Durability::Durable).expect("room");
        let later = world.copy();
        for (world, has_more) in [(killed, false), (later, true)] {
            let engine = rig(mode).open(&world).expect("a store opens after a kill");
            // In a log its name may still be there if nothing was waited for since; then nothing was changed, either.
            assert!(!has_more || !was_quick(&*engine), "{mode:?}: the image was used before");
            assert_eq!(engine.get(b"later").expect("whole").is_some(), has_more);
            if !has_more {
                oracle.check(&*engine).expect("the same store");
            }
        }
    }
}

#[test]
fn there_is_no_image_while_a_snapshot_is_open() {
    let (world, _) = closed(&Script::OVERWRITE, None, 3);
    let engine = rig(None).open(&world).expect("opens");
    engine.put(b"key", b"old", Durability::Durable).expect("room");
    let snapshot = engine.snapshot().expect("a snapshot");
    engine.delete(b"key", Durability::Durable).expect("room");
    engine.close().expect("closes");
    drop(snapshot);
    drop(engine);
    let engine = rig(None).open(&world).expect("opens");
    assert!(!was_quick(&*engine));
    assert!(engine.get(b"key").expect("whole").is_none());
    assert!(engine.verify().expect("verifies").is_clean());
}

/// The pages of which the page table says what they are used for.
fn used_pages(world: &World) -> Vec<u64> {
    let (sizes, pool) = (sizes(), world.pool("pool"));
    let table = (sizes.pool / 4096 * 8).next_multiple_of(4096);
    let first = (4096 + table + u64::from(sizes.rings) * sizes.ring) / 4096;
    let used = |page: &u64| pool.load(4096 + (page - first) * 8) != 0;
    (first..sizes.pool / 4096).filter(used).collect()
}

#[test]
fn what_was_changed_behind_the_back_of_an_image_is_looked_at() {
    let (world, oracle) = closed(&Script::CHURN, None, 5);
    let mut rng = fastrand::Rng::with_seed(9);
    let (mut quick, mut slow) = (0, 0);
    let pages = used_pages(&world);
    for _ in 0..400 {
        let image = world.copy();
        let page = pages[rng.usize(..pages.len())];
        image.overwrite("pool", page * 4096 + rng.u64(..4096), &[rng.u8(..)]);
        let Ok(engine) = rig(None).open(&image) else { continue };
        match was_quick(&*engine) {
            true => quick += 1,
            false => slow += 1,
        }
        let found = engine.verify().expect("verifies");
        assert!(!found.is_clean() || oracle.check(&*engine).is_ok(), "damage is found, or does not matter");
    }
    assert!(quick > 20 && slow > 100, "{quick} quick, {slow} slow");
}
