//! The rules of the media that the simulator keeps, each with the states it allows and those it does not.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tierdb_base::{ErrorKind, mutant};
use tierdb_device::{AlignedBuf, BlockFile, Dir, OpenMode};
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::{Options, Oracle, explore};
use tierdb_sim::{Budget, CrashModel, CrashPoint, FaultKind, FaultPlan, Ops, SimDir, SimFile, World};

/// Images of a point: enough that each state a test names is among them. Fewer under Miri, as are stores and rounds
/// below: an image takes it a thousand times as long.
const MANY: Budget = if cfg!(miri) {
    Budget { none: true, all: true, one_in: 8, one_out: 8, torn: 8, random: 32 }
} else {
    Budget { none: true, all: true, one_in: 64, one_out: 64, torn: 64, random: 600 }
};
/// Different ways in which a write of eight sectors is seen to tear.
const TORN: usize = if cfg!(miri) { 5 } else { 50 };
/// Stores to one line: far more than it keeps, and a multiple of four.
const STORES: u64 = if cfg!(miri) { 400 } else { 100_000 };
/// Writes of each of several threads.
const ROUNDS: u64 = if cfg!(miri) { 3 } else { 200 };

/// The distinct results of `read` over the images of `point`.
fn states<T: Ord>(point: &CrashPoint, model: CrashModel, read: impl Fn(&World) -> T) -> BTreeSet<T> {
    point.images(&[model], 1, &MANY).map(|image| read(&image.world)).collect()
}

fn words<const N: usize>(world: &World, at: [u64; N]) -> [u64; N] {
    at.map(|at| world.pool("fast").load(at))
}

fn block(byte: u8) -> AlignedBuf {
    AlignedBuf::from_bytes(&[byte; 4096]).expect("memory")
}

/// A directory and a file of two blocks in it, all durable.
fn with_file(world: &World) -> (SimDir, SimFile) {
    let dir = world.add_dir("flash");
    let file = dir.open("f", OpenMode::CreateNew).expect("new");
    file.set_len(8192).expect("room");
    file.sync().expect("sync");
    dir.sync().expect("sync");
    (dir, file)
}

fn open(world: &World) -> Option<SimFile> {
    world.dir("flash").open("f", OpenMode::Existing).ok()
}

fn sectors(world: &World) -> Vec<u8> {
    world.peek("flash/f", 0, 4096).chunks(512).map(|sector| sector[0]).collect()
}

#[test]
fn x86_keeps_program_order_within_a_line_and_weak_does_not() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    pool.store(8, 1);
    pool.store(0, 2);
    pool.store(8, 3);
    let point = world.capture();
    let x86 = states(&point, CrashModel::X86, |image| words(image, [0, 8]));
    assert_eq!(x86, BTreeSet::from([[0, 0], [0, 1], [2, 1], [2, 3]]));
    let weak = states(&point, CrashModel::WEAK, |image| words(image, [0, 8]));
    assert_eq!(weak, BTreeSet::from([[0, 0], [0, 1], [0, 3], [2, 0], [2, 1], [2, 3]]));
}

#[test]
fn lines_persist_in_any_order_until_a_fence() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    pool.store(0, 1);
    pool.store(64, 1);
    pool.flush(0, 72);
    let all = BTreeSet::from([[0, 0], [0, 1], [1, 0], [1, 1]]);
    for model in CrashModel::BOTH {
        assert_eq!(states(&world.capture(), model, |image| words(image, [0, 64])), all);
    }
    pool.fence();
    // A store after the flush is not made certain by its fence.
    pool.publish(128, 1);
    pool.store(128, 2);
    pool.fence();
    for model in CrashModel::BOTH {
        let states = states(&world.capture(), model, |image| words(image, [0, 64, 128]));
        assert_eq!(states, BTreeSet::from([[1, 1, 1], [1, 1, 2]]));
    }
}

#[test]
fn a_fence_covers_the_flushes_of_its_own_thread() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    pool.publish(0, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pool.publish(64, 1);
            pool.fence();
        });
    });
    assert_eq!(words(&world.capture().nothing(), [0, 64]), [0, 1]);
    assert_eq!(pool.persist_word(0).ok(), Some(()));
    assert_eq!(words(&world.capture().nothing(), [0, 64]), [1, 1]);
}

#[test]
fn stores_after_the_capture_do_not_reach_media() {
    let world = World::new();
    let pool = world.add_pool("fast", 8192);
    let (_, file) = with_file(&world);
    pool.store(0, 1);
    file.write(0, &block(1)).expect("write");
    let point = world.capture();
    pool.store(0, 2);
    pool.write(4096, &[2; 100]);
    pool.flush(0, 8192);
    pool.fence();
    file.write_durable(0, &block(2)).expect("write");
    file.set_len(4096).expect("shorter");
    file.sync().expect("sync");
    for model in CrashModel::BOTH {
        for image in point.images(&[model], 3, &MANY) {
            assert!(image.world.pool("fast").load(0) <= 1);
            assert_eq!(image.world.pool("fast").load(4096), 0);
            assert_eq!(open(&image.world).expect("durable").len().expect("len"), 8192);
            assert!(!sectors(&image.world).contains(&2) || model.garbage);
        }
    }
    assert_eq!(pool.load(0), 2);
}

#[test]
fn images_are_worlds_of_their_own() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    let (_, file) = with_file(&world);
    pool.store(0, 1);
    let image = world.copy();
    let again = image.pool("fast");
    again.store(8, 5);
    open(&image).expect("file").write(0, &block(9)).expect("write");
    assert_eq!((pool.load(8), again.load(0), image.pool("fast").load(8)), (0, 1, 5));
    let mut buf = block(1);
    file.read(0, &mut buf).expect("read");
    assert_eq!(buf[0], 0);
    // And they crash in their turn.
    assert_eq!(words(&image.capture().nothing(), [0, 8]), [1, 0]);
}

#[test]
fn a_line_stored_without_end_stays_cheap_and_keeps_its_oldest_state() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    for value in 1..=STORES {
        pool.store(value % 4 * 8, value);
    }
    let found = states(&world.capture(), CrashModel::X86, |image| words(image, [0, 8, 16, 24]));
    assert!(found.contains(&[0; 4]) && found.contains(&[STORES, STORES - 3, STORES - 2, STORES - 1]));
    // Program order: no word is more than a round ahead of the word stored before it.
    assert!(found.iter().all(|words| *words == [0; 4] || words.iter().max() <= words.iter().min().map(|m| m + 3).as_ref()));
    pool.flush(0, 32);
    pool.fence();
    assert_eq!(words(&world.capture().nothing(), [0]), [STORES]);
}

#[test]
fn sectors_of_a_write_tear_until_the_sync() {
    let world = World::new();
    let (_, file) = with_file(&world);
    file.write(0, &block(1)).expect("write");
    let torn = states(&world.capture(), CrashModel::X86, sectors);
    assert!(torn.len() > TORN && torn.iter().flatten().all(|byte| *byte <= 1));
    let garbage = states(&world.capture(), CrashModel::WEAK, sectors);
    assert!(garbage.iter().flatten().any(|byte| *byte > 1));
    let whole = CrashModel { sector: 4096, ..CrashModel::X86 };
    assert_eq!(states(&world.capture(), whole, sectors), BTreeSet::from([vec![0; 8], vec![1; 8]]));
    file.sync().expect("sync");
    assert_eq!(states(&world.capture(), CrashModel::WEAK, sectors), BTreeSet::from([vec![1; 8]]));
}

#[test]
fn unsynced_writes_survive_in_any_order() {
    let world = World::new();
    let (_, file) = with_file(&world);
    file.write(0, &block(1)).expect("write");
    file.write(0, &block(2)).expect("write");
    file.write(4096, &block(3)).expect("write");
    let whole = CrashModel { sector: 4096, ..CrashModel::X86 };
    let found = states(&world.capture(), whole, |image| {
        (image.peek("flash/f", 0, 1)[0], image.peek("flash/f", 4096, 1)[0])
    });
    assert_eq!(found, BTreeSet::from([(0, 0), (0, 3), (1, 0), (1, 3), (2, 0), (2, 3)]));
    // A durable write stands whatever becomes of those before it, and says nothing of the others.
    file.write_durable(0, &block(4)).expect("write");
    let found = states(&world.capture(), whole, |image| {
        (image.peek("flash/f", 0, 1)[0], image.peek("flash/f", 4096, 1)[0])
    });
    assert_eq!(found, BTreeSet::from([(4, 0), (4, 3)]));
}

#[test]
fn lengths_are_durable_after_a_sync() {
    let world = World::new();
    let (_, file) = with_file(&world);
    file.write_durable(4096, &block(1)).expect("write");
    file.set_len(4096).expect("shorter");
    file.set_len(12288).expect("longer");
    file.write_durable(8192, &block(2)).expect("write");
    let read = |image: &World| {
        let len = open(image).expect("file").len().expect("len");
        let second = (len > 4096).then(|| image.peek("flash/f", 4096, 1)[0]);
        (len, second, (len > 8192).then(|| image.peek("flash/f", 8192, 1)[0]))
    };
    let found = states(&world.capture(), CrashModel::X86, read);
    // The second one is half way to the greater length.
    let expected = [
        (4096, None, None),
        (8192, Some(0), None),
        (8192, Some(1), None),
        (12288, Some(0), Some(2)),
        (12288, Some(1), Some(2)),
    ];
    assert_eq!(found, BTreeSet::from(expected));
    file.sync().expect("sync");
    assert_eq!(states(&world.capture(), CrashModel::X86, read), BTreeSet::from([expected[3]]));
}

#[test]
fn names_are_durable_after_a_sync_of_the_directory() {
    let world = World::new();
    let (dir, _) = with_file(&world);
    let file = dir.open("new", OpenMode::CreateNew).expect("new");
    file.set_len(4096).expect("room");
    file.write(0, &block(5)).expect("write");
    file.sync().expect("sync");
    dir.rename("new", "f").expect("rename");
    let read = |image: &World| {
        let names = image.dir("flash").list().expect("list").join(" ");
        (names, image.peek("flash/f", 0, 1)[0])
    };
    let found = states(&world.capture(), CrashModel::X86, read);
    let old = ("f".to_string(), 0);
    let expected = [old, ("f new".into(), 0), ("f".into(), 5)];
    assert_eq!(found, BTreeSet::from(expected.clone()));
    dir.sync().expect("sync");
    assert_eq!(states(&world.capture(), CrashModel::X86, read), BTreeSet::from([expected[2].clone()]));
    dir.remove("f").expect("remove");
    assert_eq!(dir.list().expect("list").len(), 0);
    assert!(open(&world.capture().nothing()).is_some() && open(&world.copy()).is_none());
}

#[test]
fn a_failed_sync_is_never_made_good_by_a_later_one() {
    let world = World::new();
    let (_, file) = with_file(&world);
    file.write(0, &block(1)).expect("write");
    world.inject(FaultPlan::nth(1, FaultKind::SyncError));
    assert_eq!(file.sync().map_err(|e| e.kind()), Err(ErrorKind::Io));
    assert_eq!((world.faults().seen, world.heal().hit), (1, 1));
    file.write(4096, &block(2)).expect("write");
    file.sync().expect("the device works again");
    let image = world.capture().nothing();
    assert_eq!((image.peek("flash/f", 0, 1)[0], image.peek("flash/f", 4096, 1)[0]), (0, 2));
    assert_eq!(world.copy().peek("flash/f", 0, 1)[0], 1);
}

#[test]
fn devices_have_timelines_of_their_own() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    let (_, file) = with_file(&world);
    file.write(0, &block(1)).expect("write");
    pool.store(0, 1);
    let corners = Budget { one_in: 0, one_out: 0, torn: 0, random: 0, ..Budget::default() };
    let point = world.capture();
    let found: BTreeSet<_> = point
        .images(&CrashModel::BOTH, 1, &corners)
        .map(|image| (image.world.pool("fast").load(0), sectors(&image.world)[0]))
        .collect();
    assert_eq!(found, BTreeSet::from([(0, 0), (0, 1), (1, 0), (1, 1)]));
}

#[test]
fn the_images_of_a_point_are_distinct_and_the_seed_repeats_them() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    pool.store(0, 1);
    pool.store(64, 1);
    let point = world.capture();
    assert_eq!(point.images(&CrashModel::BOTH, 1, &MANY).count(), 4);
    assert!(pool.compare_exchange(64, 0, 9).is_err());
    for at in 2..30 {
        pool.store(at * 64, at);
    }
    let of = |seed| -> Vec<Vec<u64>> {
        let point = world.capture();
        let images = point.images(&CrashModel::BOTH, seed, &Budget::default());
        images.map(|image| (0..30).map(|at| image.world.pool("fast").load(at * 64)).collect()).collect()
    };
    assert_eq!(of(5), of(5));
    assert_ne!(of(5), of(6));
    // A point with nothing uncertain has one image.
    assert_eq!(world.copy().capture().images(&CrashModel::BOTH, 1, &MANY).count(), 1);
}

#[test]
fn an_oracle_and_its_image_are_of_one_moment_whatever_other_threads_do() {
    let world = World::new();
    let pool = world.add_pool("fast", 4096);
    let oracle = Oracle::new([0u64; 4]);
    let script = |_: &World, oracle: &Oracle<[u64; 4]>| {
        std::thread::scope(|scope| {
            for slot in 0..4 {
                let pool = &pool;
                scope.spawn(move || {
                    for value in 1..=ROUNDS {
                        pool.publish(slot as u64 * 64, value);
                        pool.fence();
                        oracle.update(|done| done[slot] = value);
                    }
                });
            }
        });
    };
    let check = |done: &[u64; 4], image: &World| {
        let found = words(image, [0, 64, 128, 192]);
        let right = found.iter().zip(done).all(|(found, done)| (*done..=done + 1).contains(found));
        right.then_some(()).ok_or_else(|| format!("found {found:?}, acknowledged {done:?}"))
    };
    // The corners tell a store from a moment to either side.
    let budget = if cfg!(miri) { Budget::SMALL } else { Budget::default() };
    let run = explore(&world, &Options { budget, ..Options::default() }, &oracle, script, |_| Ok(()), check);
    let run = run.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(run.points, 4 * ROUNDS * 2 + 1);
    assert_eq!(oracle.get(), [ROUNDS; 4]);
}

#[test]
fn faults_hit_the_operation_they_name() {
    let world = World::new();
    let (dir, file) = with_file(&world);
    world.add_dir("other");
    let kinds = [
        (FaultKind::Eio, Some(5)),
        (FaultKind::Enospc, Some(28)),
        (FaultKind::Short, None),
        (FaultKind::Interrupted, None),
    ];
    for (kind, code) in kinds {
        world.inject(FaultPlan::nth(2, kind).on(Ops::WRITE).in_dir("flash"));
        file.write(0, &block(7)).expect("the first");
        let error = file.write(0, &block(9)).expect_err("the second");
        let tierdb_base::Error::Io { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), code);
        file.write(4096, &block(7)).expect("the third");
        let now: BTreeSet<u8> = sectors(&world).into_iter().collect();
        let torn = matches!(kind, FaultKind::Eio | FaultKind::Short);
        assert!(now.contains(&7) && (torn || now.len() == 1), "{kind:?} {now:?}");
        assert_eq!(world.heal().seen, 3);
    }
    world.inject(FaultPlan::from_nth(1, FaultKind::Eio).in_dir("other"));
    assert!(dir.sync().is_ok() && world.dir("other").sync().is_err() && world.dir("other").list().is_err());
    world.inject(FaultPlan::nth(1, FaultKind::Stall(std::time::Duration::from_millis(20))));
    let start = std::time::Instant::now();
    file.sync().expect("late, but good");
    assert!(start.elapsed().as_millis() >= 20);
}

#[test]
fn a_change_of_a_name_or_a_length_that_fails_has_been_made_or_not() {
    type Change = fn(&SimDir, &SimFile) -> tierdb_base::Result<()>;
    let changes: [Change; 4] = [
        |dir, _| dir.open("new", OpenMode::CreateNew).map(drop),
        |dir, _| dir.remove("f"),
        |dir, _| dir.rename("f", "g"),
        |_, file| file.set_len(4096),
    ];
    for (i, change) in changes.iter().enumerate() {
        for (kind, outcomes) in [(FaultKind::Eio, 2), (FaultKind::Enospc, 1)] {
            let after = |plan: FaultPlan| {
                let world = World::new();
                let (dir, file) = with_file(&world);
                world.inject(plan.on(Ops::NAMES | Ops::RESIZE));
                change(&dir, &file).expect_err("it fails");
                world.heal();
                (dir.list().expect("names"), file.len().expect("length"))
            };
            let found = BTreeSet::from([FaultPlan::nth(1, kind), FaultPlan::from_nth(1, kind)].map(after));
            assert_eq!(found.len(), outcomes, "change {i}: {kind:?} {found:?}");
        }
    }
}

#[test]
fn space_locks_and_wrong_calls_are_refused() {
    let world = World::new();
    let (dir, file) = with_file(&world);
    dir.set_capacity(Some(3 * 4096));
    let full = file.set_len(4 * 4096).expect_err("full");
    let tierdb_base::Error::Io { source, .. } = &full else { panic!("{full}") };
    assert_eq!((source.kind(), file.len().expect("len")), (std::io::ErrorKind::StorageFull, 8192));
    file.set_len(3 * 4096).expect("just fits");
    let lock = dir.lock().expect("free");
    assert_eq!(world.dir("flash").lock().err().map(|e| e.kind()), Some(ErrorKind::Locked));
    assert!(world.copy().dir("flash").lock().is_ok());
    drop(lock);
    assert!(dir.lock().is_ok());
    assert!(file.read(3 * 4096, &mut block(0)).is_err() && file.write(7, &block(0)).is_err());
    assert!(dir.open("a/b", OpenMode::CreateNew).is_err() && dir.open("f", OpenMode::CreateNew).is_err());
    assert!(dir.open("g", OpenMode::Existing).is_err() && dir.remove("g").is_err());
}

#[test]
fn damage_reaches_media_and_readers_at_once() {
    let world = World::new();
    let pool = world.add_pool("fast", 8192);
    let (dir, file) = with_file(&world);
    pool.write(0, &[0xff; 100]);
    world.flip_bit("fast", 9, 0);
    for seen in [pool.clone(), world.copy().pool("fast")] {
        assert_eq!(seen.load(8), !0x100);
    }
    // The word was on its way: the damage stays, and its line's other words are still uncertain.
    assert_eq!(words(&world.capture().nothing(), [0, 8]), [0, !0x100]);
    pool.poison(4096..4160);
    assert_eq!(pool.read(4150, &mut [0; 100]).map_err(|e| e.kind()), Err(ErrorKind::Corrupt));
    assert!(
        pool.read(4160, &mut [0; 100]).is_ok() && world.copy().pool("fast").read(4096, &mut [0]).is_err()
    );
    pool.heal();
    assert!(pool.read(4096, &mut [0; 100]).is_ok());

    file.write(0, &block(1)).expect("write");
    file.write(4096, &block(2)).expect("write");
    dir.open("g", OpenMode::CreateNew).expect("new");
    let names: Vec<_> = world.areas().into_iter().map(|area| (area.name, area.len)).collect();
    assert_eq!(names, [("fast".into(), 8192), ("flash/f".into(), 8192), ("flash/g".into(), 0)]);
    let older = world.copy();
    world.zero_page("flash/f", 5000);
    world.truncate("flash/f", 4096 + 512);
    assert_eq!(file.len().expect("len"), 4608);
    assert_eq!(
        world.capture().nothing().peek("flash/f", 4000, 200),
        [[1; 96].as_slice(), &[0; 104]].concat()
    );
    world.swap("flash/f", "flash/g");
    assert_eq!(file.len().expect("len"), 0);
    world.replace("flash/f", &older, "flash/f");
    assert_eq!(world.peek("flash/f", 4096, 2), [2, 2]);
    world.replace("fast", &older, "fast");
    world.overwrite("fast", 0, &[3; 8]);
    let mixed = world.copy_with("fast", &older).copy_with("flash", &World::clone(&older));
    assert_eq!((mixed.peek("fast", 0, 1)[0], mixed.areas()[1].len), (0xff, 8192));
    let empty = World::new();
    empty.add_dir("flash");
    assert_eq!(world.copy_with("flash", &empty).areas().len(), 1);
}

#[test]
fn every_kind_of_site_can_be_switched_off() {
    let work = || {
        let world = World::new();
        let pool = world.add_pool("fast", 4096);
        let (_, file) = with_file(&world);
        pool.store(0, 1);
        pool.flush(0, 8);
        pool.fence();
        pool.publish(64, 1);
        pool.fence();
        pool.store(128, 1);
        pool.persist_word(128).expect("never fails");
        file.write_durable(0, &block(1)).expect("write");
        file.write(4096, &block(2)).expect("write");
        file.sync().expect("sync");
        let image = world.capture().nothing();
        let bytes = open(&image).map(|file| (file.len().expect("len"), image));
        bytes.map(|(len, image)| {
            let end = if len == 8192 { image.peek("flash/f", 4096, 1)[0] } else { 99 };
            (words(&image, [0, 64, 128]), end)
        })
    };
    let sites = mutant::record(|| assert_eq!(work(), Some(([1, 1, 1], 2))));
    let kinds: BTreeSet<_> = sites.keys().map(|site| site.what).collect();
    let all = ["dir_sync", "fence", "flush", "persist_word", "publish", "sync", "write_durable"];
    assert_eq!(kinds, BTreeSet::from(all));
    // A later fence or sync makes good for some; each of these others leaves a trace.
    for site in sites.keys().filter(|site| ["dir_sync", "flush", "publish"].contains(&site.what)) {
        assert_ne!(mutant::without(*site, work), Some(([1, 1, 1], 2)), "{site}");
    }
}

#[test]
fn a_durable_write_that_is_on_its_way_may_be_torn() {
    let world = World::new();
    let (_, file) = with_file(&world);
    file.write_durable(0, &block(1)).expect("write");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    world.on_event(Some(Arc::new(move |world, _| {
        let sector = CrashModel { sector: 512, ..CrashModel::X86 };
        let of = |image: &World| (image.peek("flash/f", 0, 1)[0], image.peek("flash/f", 4095, 1)[0]);
        // Few images tear this write and leave the last one whole.
        let budget = Budget { random: MANY.random.max(128), ..MANY };
        let point = world.capture();
        let found = point.images(&[sector], 1, &budget).map(|image| of(&image.world));
        sink.lock().expect("seen").push(found.collect::<BTreeSet<_>>());
    })));
    file.write_durable(0, &block(2)).expect("write");
    world.on_event(None);
    let seen = seen.lock().expect("seen");
    assert_eq!(seen[0], BTreeSet::from([(1, 1)]), "before it");
    assert!(seen[1].is_superset(&BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)])), "{:?}", seen[1]);
}
