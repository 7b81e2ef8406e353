//! Goal: what a missing flush or fence costs is noticed where no random script comes to the moment in which it tells.
//! Method: that moment is made, and every image of a crash in it looked at, with the call in its place and without.

use crate::rig::Sizes;
use tierdb_base::mutant;
use tierdb_engine::conformance::harm::{LogPlace, Rig};
use tierdb_engine::{Durability, Engine, KeyRange};
use tierdb_sim::{Budget, CrashModel, World, as_thread};

fn rig() -> Rig<Sizes> {
    Rig::new(Sizes::tiny(), None)
}

/// What `holds` says of the store in every image of a crash now.
fn after_any_crash(world: &World, holds: impl Fn(&dyn Engine) -> bool) -> bool {
    let point = world.capture();
    let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
    images.all(|image| rig().open(&image.world).is_ok_and(|engine| holds(&*engine)))
}

/// Whether all calls of `file` that are a `what` are noticed by `lasts` when they are left out.
fn all_noticed(file: &str, what: &str, lasts: impl Fn() -> bool) {
    let sites = mutant::record(|| assert!(lasts()));
    let ours = sites.into_keys().filter(|site| site.file.ends_with(file) && site.what == what);
    let ours: Vec<_> = ours.collect();
    assert!(!ours.is_empty(), "no {what} in {file} is passed");
    let missed: Vec<_> = ours.iter().filter(|site| mutant::without(**site, &lasts)).collect();
    assert!(missed.is_empty(), "not noticed when left out: {missed:?}");
}

/// The thread that raises the limit of seqnos writes nothing else; what another one writes then has seqnos below
/// the limit on media. Otherwise no cursor would see it after a crash.
#[test]
fn the_limit_of_seqnos_is_durable_before_they_are_used() {
    all_noticed("slab/src/core.rs", "fence", || {
        let world = rig().empty_world();
        let engine = rig().open(&world).expect("opens");
        as_thread(0, || engine.delete(b"absent", Durability::Durable)).expect("nothing to do");
        as_thread(1, || engine.put(b"key", b"value", Durability::Durable)).expect("room");
        after_any_crash(&world, |engine| {
            let mut cursor = engine.cursor(KeyRange::all(), None).expect("a cursor");
            cursor.next().is_ok_and(|entry| entry.is_some())
        })
    });
}

/// Nothing depends on a copy of what flash has; but one that is not lost by a crash need not be made again.
#[test]
fn a_copy_of_a_popular_key_lasts() {
    all_noticed("slab/src/promote.rs", "publish", || {
        fastrand::seed(1);
        // Without an object cache, which would answer.
        let rig = Rig::new(Sizes { memory: 1 << 10, ..Sizes::tiny() }, None);
        let world = rig.empty_world();
        let engine = rig.open(&world).expect("opens");
        let figure = |engine: &dyn Engine, name: &str| engine.stats().figure(name).expect("a figure");
        for number in 0..40 {
            let key = format!("key{number:02}");
            engine.put(key.as_bytes(), &[7; 100], Durability::Durable).expect("room");
        }
        engine.flush().expect("room");
        for _ in 0..20 {
            engine.get(b"key07").expect("whole").expect("there");
        }
        assert_eq!(figure(&*engine, "promoted_keys"), 1);
        engine.put(b"other", b"value", Durability::Durable).expect("room");
        after_any_crash(&world, |engine| figure(engine, "keys_fast") >= 2)
    });
}

/// What a version replaced may be live when the store goes down. The thread that opens the store frees it; another one
/// then deletes the key.
#[test]
fn what_an_open_frees_does_not_come_back() {
    all_noticed("slab/src/recover.rs", "fence", || {
        let world = rig().empty_world();
        let engine = rig().open(&world).expect("opens");
        // In different slabs, so that what is flushed of one says nothing of the other.
        for len in [10, 2000] {
            engine.put(b"key", &vec![7; len], Durability::Durable).expect("room");
        }
        let killed = world.copy();
        let engine = as_thread(0, || rig().open(&killed)).expect("opens");
        as_thread(1, || engine.delete(b"key", Durability::Durable)).expect("room");
        after_any_crash(&killed, |engine| engine.get(b"key").is_ok_and(|value| value.is_none()))
    });
}

/// The last thing that a thread does which moves records is to free a slot. Another one then deletes the key that was there.
fn moved_records_can_be_deleted() -> bool {
    fastrand::seed(1);
    let world = rig().empty_world();
    let engine = rig().open(&world).expect("opens");
    let put = |key: &str, len| engine.put(key.as_bytes(), &vec![7; len], Durability::Durable).expect("room");
    let delete = |key: &str| engine.delete(key.as_bytes(), Durability::Durable).expect("room");
    // Slabs of one length that are sparse, and of other lengths as many as it takes until few are free.
    let keys: Vec<String> = (0..300).map(|number| format!("key{number:03}")).collect();
    keys.iter().for_each(|key| put(key, 10));
    let (gone, kept): (Vec<_>, Vec<_>) = (0..300).partition(|number| number % 3 > 0);
    gone.iter().for_each(|number| delete(&keys[*number]));
    let moved = || engine.stats().figure("moved_records").expect("a figure");
    let others: Vec<String> = (50..3000).step_by(50).map(|len| len.to_string()).collect();
    let moves = |other: &String| {
        put(other, other.parse().expect("a length"));
        let before = moved();
        as_thread(0, || engine.compact()).expect("room");
        moved() > before
    };
    let last = others.iter().position(moves).expect("a record is moved");
    as_thread(1, || {
        kept.iter().for_each(|number| delete(&keys[*number]));
        others[..=last].iter().for_each(|other| delete(other));
    });
    after_any_crash(&world, |engine| {
        let mut cursor = engine.cursor(KeyRange::all(), None).expect("a cursor");
        cursor.next().is_ok_and(|entry| entry.is_none())
    })
}

#[test]
fn a_slot_that_a_record_has_left_stays_free() {
    let sites = mutant::record(|| assert!(moved_records_can_be_deleted()));
    let fence = |site: &mutant::Site| site.what == "fence" && site.file.ends_with("slab/src/tidy.rs");
    let last = sites.into_keys().rfind(fence).expect("it fences");
    assert!(!mutant::without(last, moved_records_can_be_deleted), "a missing fence is noticed");
}

/// What was grouped is durable when a sync has returned.
#[test]
fn a_sync_waits() {
    all_noticed("slab/src/engine.rs", "wait", || {
        let rig = Rig::new(Sizes::tiny(), Some(LogPlace::FastTier));
        let world = rig.world();
        let engine = rig.open(&world).expect("opens");
        engine.put(b"key", b"value", Durability::Grouped).expect("room");
        engine.sync().expect("it is made durable");
        let engine = rig.open(&world.capture().nothing()).expect("opens");
        engine.get(b"key").is_ok_and(|value| value.is_some())
    });
}
