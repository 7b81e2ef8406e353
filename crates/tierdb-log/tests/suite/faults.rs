//! Every N-th operation fails: nothing hangs, nothing acknowledged is lost, and a reopen goes on.

use crate::support::{
    self, Known, TestDir, acknowledge, create, dir, open, paged, publish, reopen, small, wide, work,
};
use tierdb_base::{Error, ErrorKind, mutant};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::{Options, Oracle, explore};
use tierdb_sim::{Budget, CrashModel, FaultKind, FaultPlan, Ops, World};

const KINDS: [FaultKind; 5] =
    [FaultKind::Eio, FaultKind::Enospc, FaultKind::Short, FaultKind::Interrupted, FaultKind::SyncError];

/// Both plans of a kind: the N-th operation fails, and all from the N-th on do.
fn plans(nth: u64, kind: FaultKind) -> [FaultPlan; 2] {
    [FaultPlan::nth(nth, kind), FaultPlan::from_nth(nth, kind)]
}

/// After whatever happened in `world`: every power loss now recovers, and so does a process that just opens the
/// files again, works on, and then loses power.
fn survives(world: &World, options: &LoggedOptions, known: &Known) -> Result<(), String> {
    let budget = Budget { torn: 4, random: 4, ..Budget::SMALL };
    for image in world.capture().images(&CrashModel::BOTH, 3, &budget) {
        let (pool, known) = reopen(&image.world, options, known).map_err(|e| format!("{image:?}: {e}"))?;
        publish(&pool, &known);
        acknowledge(&pool, &known).map_err(|e| format!("{image:?}: {e}"))?;
    }
    let (pool, known) = reopen(world, options, known)?;
    for _ in 0..3 {
        publish(&pool, &known);
        acknowledge(&pool, &known).map_err(|e| e.to_string())?;
    }
    for image in world.capture().images(&CrashModel::BOTH, 4, &budget) {
        reopen(&image.world, options, &known.get()).map_err(|e| format!("after going on, {image:?}: {e}"))?;
    }
    Ok(())
}

/// Works until it is done or fails, and then checks that a failure stays one.
fn work_until_it_fails(options: &LoggedOptions, plan: FaultPlan) -> (World, Oracle<Known>, u64) {
    let (world, pool, known) = support::world(options);
    work(&pool, &known, 10, 1).expect("no faults yet");
    world.inject(plan);
    let mut done = work(&pool, &known, 25, 2);
    if done.is_ok() {
        done = pool.close();
    }
    let hit = world.heal().hit;
    if let Err(e) = done
        && e.kind() != ErrorKind::NoSpace
    {
        // The devices work again, but what is on them is unknown until they are opened again.
        publish(&pool, &known);
        let refused = [
            pool.wait(pool.lsn()).map_err(|e| e.kind()),
            pool.admit(1).map(drop).map_err(|e| e.kind()),
            pool.checkpoint().map_err(|e| e.kind()),
            pool.commit().map_err(|e| e.kind()),
            pool.persist_word(64).map_err(|e| e.kind()),
        ];
        assert_eq!(refused, [Err(ErrorKind::Poisoned); 5], "{e}");
    }
    (world, known, hit)
}

#[test]
fn a_failure_at_any_operation_of_work_loses_nothing() {
    for options in [small(), wide(), paged(small())] {
        for kind in KINDS {
            for persistent in [0, 1] {
                let mut nth = 1;
                loop {
                    let (world, known, hit) =
                        work_until_it_fails(&options, plans(nth, kind)[persistent].clone());
                    survives(&world, &options, &known.get())
                        .unwrap_or_else(|e| panic!("{kind:?} at operation {nth}, {persistent}: {e}"));
                    if hit == 0 {
                        break;
                    }
                    nth += 1;
                }
                assert!(nth > 2, "{kind:?} met only {nth} operations");
            }
        }
    }
}

#[test]
fn a_failure_at_any_operation_of_an_open_loses_nothing() {
    for options in [wide(), paged(wide())] {
        let (world, pool, known) = support::world(&options);
        work(&pool, &known, 30, 5).expect("no faults");
        publish(&pool, &known);
        drop(pool);
        fail_opens(&world, &options, &known);
        // The next one finds a spare in use.
        let (pool, known) = reopen(&world, &options, &known.get()).expect("no faults");
        publish(&pool, &known);
        acknowledge(&pool, &known).expect("no faults");
        drop(pool);
        fail_opens(&world, &options, &known);
    }
}

fn fail_opens(world: &World, options: &LoggedOptions, known: &Oracle<Known>) {
    for kind in KINDS {
        for persistent in [0, 1] {
            let mut nth = 1;
            loop {
                // As after the death of the process, and as after a power loss with what was in flight.
                let (world, known) = (world.copy(), known.get());
                world.inject(plans(nth, kind)[persistent].clone());
                let opened = reopen(&world, options, &known);
                let hit = world.heal().hit;
                let known = match opened {
                    Ok((_, known)) => known.get(),
                    Err(_) => known,
                };
                survives(&world, options, &known)
                    .unwrap_or_else(|e| panic!("{kind:?} at operation {nth}, {persistent}: {e}"));
                if hit == 0 {
                    break;
                }
                nth += 1;
            }
            assert!(nth > 2 || kind == FaultKind::SyncError, "{kind:?} met only {nth} operations");
        }
    }
}

/// The last block's write failed although all of it can be read. Then a sync may fail too, and later ones succeed.
/// What an open has shown must be certain all the same. How many opens showed such a block.
fn shown_after_failed_writes() -> Result<usize, String> {
    let mut shown = 0;
    for nth in 1.. {
        let mut hit = 0;
        for plan in plans(1, FaultKind::SyncError) {
            let writes = FaultPlan::nth(nth, FaultKind::Eio).on(Ops::WRITE);
            let (world, known, failed) = work_until_it_fails(&small(), writes);
            hit += failed;
            world.inject(plan);
            let first = reopen(&world, &small(), &known.get());
            world.heal();
            let seen = first.map_or(known.get(), |(_, known)| known.get());
            let (pool, after) = reopen(&world, &small(), &seen)?;
            shown += usize::from(after.get().acked > known.get().acked);
            publish(&pool, &after);
            acknowledge(&pool, &after).map_err(|e| e.to_string())?;
            reopen(&world.capture().nothing(), &small(), &after.get())
                .map_err(|e| format!("failed write {nth}: {e}"))?;
        }
        if hit == 0 {
            break;
        }
    }
    Ok(shown)
}

/// Whether it is a durable write of the store of pages.
fn writes_durably(site: &mutant::Site) -> bool {
    site.what == "write_durable" && site.file.ends_with("src/store.rs")
}

#[test]
fn what_an_open_shows_survives_even_if_the_write_of_it_had_failed() {
    let mut shown = Ok(0);
    let sites = mutant::record(|| shown = shown_after_failed_writes());
    assert!(matches!(shown, Ok(20..)), "{shown:?}");
    // The first durable write of the store is that of the spare.
    let spare = sites.into_keys().find(writes_durably).expect("the spare");
    assert!(mutant::without(spare, shown_after_failed_writes).is_err(), "{spare} can be left out unnoticed");
}

/// A write had failed although all of it can be read, and then one of the open that finds it fails, and power is
/// lost. Either the open fails, or what it shows is certain. How many opens showed such a block.
fn shown_by_opens_that_fail() -> Result<usize, String> {
    let mut shown = 0;
    for nth in 1.. {
        let mut met = 0;
        for write in 1.. {
            let writes = FaultPlan::nth(nth, FaultKind::Eio).on(Ops::WRITE);
            let (world, known, failed) = work_until_it_fails(&small(), writes);
            met += failed;
            world.inject(FaultPlan::nth(write, FaultKind::Eio).on(Ops::WRITE));
            let opened = reopen(&world, &small(), &known.get());
            let hit = world.heal().hit;
            if let Ok((_, seen)) = opened {
                shown += usize::from(seen.get().acked > known.get().acked);
                reopen(&world.capture().nothing(), &small(), &seen.get())
                    .map_err(|e| format!("failed write {nth}, and {write} of the open: {e}"))?;
            }
            if hit == 0 {
                break;
            }
        }
        if met == 0 {
            break;
        }
    }
    Ok(shown)
}

#[test]
fn an_open_that_fails_shows_nothing_that_can_be_lost() {
    assert!(matches!(shown_by_opens_that_fail(), Ok(10..)));
    let (world, pool, known) = support::world(&small());
    work(&pool, &known, 10, 1).expect("no faults");
    drop(pool);
    let seen = mutant::record(|| assert!(reopen(&world.copy(), &small(), &known.get()).is_ok()));
    let sites: Vec<_> = seen.into_keys().filter(|site| site.what == "failure").collect();
    // The copy of the last block, and the table.
    assert_eq!(sites.len(), 2, "{sites:?}");
    for site in sites {
        let ignored = mutant::without(site, shown_by_opens_that_fail);
        assert!(ignored.is_err(), "{site} can be ignored unnoticed");
    }
}

/// A write failed although all of it may be there, and then power is lost while the next open is at work. How many images were opened.
fn opens_cut_short() -> Result<u64, String> {
    let mut images = 0;
    for nth in 1.. {
        let (world, pool, known) = support::world(&wide());
        world.inject(FaultPlan::nth(nth, FaultKind::Eio).on(Ops::WRITE));
        // A checkpoint while much was published and not yet logged: its table is followed by a block.
        let failed = (0..10).find_map(|_| {
            (0..5).for_each(|_| publish(&pool, &known));
            pool.checkpoint().and_then(|()| acknowledge(&pool, &known)).err()
        });
        world.heal();
        drop(pool);
        // Once after that, and once after another write has failed in between.
        let mut known = known.get();
        for times in 1..=2 {
            let mut opened = None;
            let run = explore(
                &world,
                &Options::default(),
                &Oracle::new(known.clone()),
                |world, _| opened = Some(reopen(world, &wide(), &known).expect("devices work")),
                |_| Ok(()),
                // And what one open has found not to be there, no later one finds.
                |known, image| {
                    let (_, found) = reopen(image, &wide(), known)?;
                    reopen(&image.capture().nothing(), &wide(), &found.get()).map(|_| ())
                },
            );
            let run = run.map_err(|failure| format!("failed write {nth}, open {times}: {failure}"))?;
            images += run.images;
            let (pool, after) = opened.expect("the script ran");
            // The plain write that comes first has brought all of the block there.
            world.inject(FaultPlan::nth(4, FaultKind::Eio).on(Ops::WRITE));
            for _ in 0..2 {
                (0..3).for_each(|_| publish(&pool, &after));
                let _ = acknowledge(&pool, &after);
            }
            assert_eq!(world.heal().hit, 1);
            known = after.get();
        }
        if failed.is_none() {
            break;
        }
    }
    Ok(images)
}

#[test]
fn an_open_after_a_failed_write_can_be_cut_short_anywhere() {
    let mut images = Ok(0);
    let sites = mutant::record(|| images = opens_cut_short());
    assert!(matches!(images, Ok(501..)), "{images:?}");
    // Behind that of the spare, that of nothing in its place.
    let nothing = sites.into_keys().filter(writes_durably).nth(1).expect("of an empty place");
    assert!(mutant::without(nothing, opens_cut_short).is_err(), "{nothing} can be left out unnoticed");
}

/// A pool on a device with room for the log and the table and for no page, worked on until it refuses.
fn full() -> (World, Oracle<Known>, Error) {
    let (world, pool, known) = support::world(&small());
    let used: u64 = world.areas().iter().map(|area| area.len).sum();
    world.dir("fast").set_capacity(Some(used));
    let refused = loop {
        let admitted = match pool.admit(3000) {
            Ok(admitted) => admitted,
            Err(refused) => break refused,
        };
        publish(&pool, &known);
        drop(admitted);
        acknowledge(&pool, &known).expect("what was admitted has room");
    };
    (world, known, refused)
}

#[test]
fn a_full_device_refuses_for_a_while_and_nothing_is_lost() {
    let (world, known, refused) = full();
    assert!(matches!(refused, Error::NoSpace { .. }) && refused.to_string().contains("fast/pool.image"));
    // It opens, with all that was acknowledged, although it cannot checkpoint.
    let (pool, known) = reopen(&world, &small(), &known.get()).expect("opens while full");
    assert_eq!(pool.admit(100).map(drop).map_err(|e| e.kind()), Err(ErrorKind::NoSpace));
    world.dir("fast").set_capacity(None);
    work(&pool, &known, 60, 3).expect("goes on by itself");
    reopen(&world.capture().nothing(), &small(), &known.get()).expect("nothing lost");
}

#[test]
fn a_pool_comes_to_take_as_much_as_it_says() {
    for options in [small(), wide()] {
        let (world, pool, _) = support::world(&options);
        for page in (0..support::POOL / 4096).cycle().take(100) {
            pool.flush(page * 4096, 4096);
            pool.commit().expect("no faults");
        }
        assert!(pool.stats().checkpoints > 2);
        let taken: u64 = world.areas().iter().map(|area| area.len).sum();
        assert_eq!(taken, options.most_bytes());
    }
}

/// A pool that has dirtied its first two pages, on a device with room for `pages` more than are taken.
fn nearly_full(pages: u64) -> (World, LoggedPool<TestDir>) {
    let (world, pool, _) = support::world(&small());
    pool.flush(0, 2 * 4096);
    set_room(&world, pages);
    (world, pool)
}

fn set_room(world: &World, pages: u64) {
    let used: u64 = world.areas().iter().map(|area| area.len).sum();
    world.dir("fast").set_capacity(Some(used + pages * 4096));
}

#[test]
fn what_a_full_device_admits_has_room_in_the_log() {
    let (world, pool) = nearly_full(0);
    while pool.log_used() < 15 * 4096 {
        pool.flush(0, 8);
        pool.commit().expect("much room");
    }
    drop(pool.admit(100).expect("less has room"));
    // More than an empty ring takes, and what one takes.
    for bytes in [support::POOL, 8 * 4096] {
        assert_eq!(pool.admit(bytes).map(drop).map_err(|e| e.kind()), Err(ErrorKind::NoSpace));
    }
    world.dir("fast").set_capacity(None);
    let admitted = pool.admit(8 * 4096).expect("goes on by itself");
    set_room(&world, 0);
    pool.flush(0, 8 * 4096);
    pool.commit().expect("what was admitted has room");
    drop(admitted);
}

/// Goal: room that one has been promised is not promised to another. Method: more ask than there is room for, before any of
/// them appends; each takes a block of its own then, as writers do who all wait for theirs.
#[test]
fn what_a_full_device_admits_to_many_at_once_has_room_in_the_log() {
    let (_, pool) = nearly_full(0);
    let admitted: Vec<_> = (0..32).map_while(|_| pool.admit(3000).ok()).collect();
    assert!((4..16).contains(&admitted.len()), "{} admitted", admitted.len());
    assert_eq!(pool.admit(3000).map(drop).map_err(|e| e.kind()), Err(ErrorKind::NoSpace));
    drop(admitted);
    // What was given back can be had again.
    let admitted: Vec<_> = (0..32).map_while(|_| pool.admit(3000).ok()).collect();
    assert!(admitted.len() >= 4, "{} admitted", admitted.len());
    for admitted in admitted {
        pool.flush(0, 3000);
        pool.commit().expect("what was admitted has room");
        drop(admitted);
    }
}

#[test]
fn what_is_longer_than_the_log_is_admitted_with_room_for_its_pages() {
    let (world, pool) = nearly_full(16);
    let first = pool.admit(2 * support::POOL).map(drop);
    assert_eq!(first.map_err(|e| e.kind()), Err(ErrorKind::NoSpace), "28 pages may become dirty");
    set_room(&world, 29);
    let _admitted = pool.admit(2 * support::POOL).expect("room for all pages");
    set_room(&world, 0);
    for _ in 0..2 {
        pool.flush(0, support::POOL);
    }
    pool.commit().expect("what was admitted has room");
    assert!(pool.stats().checkpoints > 0);
}

#[test]
fn a_checkpoint_takes_what_room_there_is_and_goes_on_in_rounds() {
    let (world, pool) = nearly_full(8);
    pool.flush(0, 8 * 4096);
    pool.checkpoint().expect("eight pages have room");
    pool.flush(0, 8 * 4096);
    assert_eq!(pool.checkpoint().map_err(|e| e.kind()), Err(ErrorKind::NoSpace));
    set_room(&world, 3);
    pool.checkpoint().expect("in rounds");
    assert_eq!((pool.stats().checkpoints, pool.stats().checkpoint_pages), (2, 16));
}

#[test]
fn what_an_open_of_a_full_device_shows_survives_as_far_as_a_sync_can_tell() {
    let shown = || {
        let (world, known, _) = full();
        let (pool, known) = reopen(&world, &small(), &known.get()).expect("opens while full");
        // The plain write before it has brought all of the block there.
        world.inject(FaultPlan::nth(2, FaultKind::Eio).on(Ops::WRITE));
        publish(&pool, &known);
        acknowledge(&pool, &known).expect_err("the write fails");
        world.heal();
        let (_, after) = reopen(&world, &small(), &known.get()).expect("opens while full");
        assert_eq!(after.get().acked, known.get().acked + 1, "it can be read");
        reopen(&world.capture().nothing(), &small(), &after.get()).map(|_| ())
    };
    let seen = mutant::record(|| shown().expect("certain"));
    let syncs = seen.into_keys().filter(|site| site.what == "sync" && site.file.ends_with("src/log.rs"));
    let syncs: Vec<_> = syncs.collect();
    assert_eq!(syncs.len(), 1, "{syncs:?}");
    assert!(mutant::without(syncs[0], shown).is_err(), "the sync can be left out unnoticed");
}

#[test]
fn files_that_are_there_are_not_created_over_and_those_that_are_not_are_named() {
    let (world, pool, _) = support::world(&small());
    drop(pool);
    assert!(create(dir(&world), &small()).is_err());
    let empty = World::new();
    let missing = open(support::new_dir(&empty), &small()).err().expect("no files");
    assert!(missing.to_string().contains("pool.log"), "{missing}");
    for wrong in [
        LoggedOptions { pool_len: 5000, ..small() },
        LoggedOptions { log_len: 31 * 4096, ..small() },
        LoggedOptions { buffer_bytes: 100, ..small() },
        LoggedOptions { image_capacity: support::POOL, ..small() },
    ] {
        let refused = create(dir(&empty), &wrong).err().expect("lengths that do not fit");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    assert!(empty.areas().is_empty(), "nothing was created");
}
