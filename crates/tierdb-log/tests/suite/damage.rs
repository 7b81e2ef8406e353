//! Damaged files: noticed, or harmless, never a wrong answer; and salvage of what is left.

use crate::support::{self, Known, TestDir, create, dir, open, paged, reopen, small, wide, work};
use tierdb_base::mutant;
use tierdb_base::sources::comparisons;
use tierdb_base::{Error, ErrorKind, FailureLatch, checksum};
use tierdb_device::Meter;
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::Oracle;
use tierdb_sim::{FaultKind, FaultPlan, Ops, World};

const BLOCK: u64 = 4096;

/// A pool with pages in the image and blocks in the log after them, as a crash leaves it.
fn crashed(options: &LoggedOptions) -> (World, Known) {
    let (world, pool, known) = support::world(options);
    work(&pool, &known, 20, 1).expect("no faults");
    pool.checkpoint().expect("no faults");
    // Not so many that the next checkpoint is due.
    for _ in 0..8 {
        support::publish(&pool, &known);
        support::acknowledge(&pool, &known).expect("no faults");
    }
    (world, known.get())
}

/// Damage is noticed, or recovery gives exactly what was acknowledged. Says which.
fn noticed(world: &World, options: &LoggedOptions, known: &Known) -> bool {
    match open(dir(world), options) {
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
            true
        }
        Ok(pool) => {
            let count = known.check(&pool).unwrap_or_else(|wrong| panic!("silently wrong: {wrong}"));
            assert_eq!(count, known.published.len(), "silently shorter");
            false
        }
    }
}

/// The same where pages are read when they are asked for.
fn noticed_in_reads(world: &World, known: &Known) {
    let pool = match open(dir(world), &paged(small())) {
        Ok(pool) => pool,
        // What the log has for a part of a page only is laid over it.
        Err(e) => return assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}"),
    };
    let pages = (0..pool.len()).step_by(BLOCK as usize);
    let refused = pages.filter_map(|at| pool.read(at, &mut [0; BLOCK as usize]).err());
    let refused: Vec<_> = refused.map(|e| e.kind()).collect();
    assert!(refused.iter().all(|kind| *kind == ErrorKind::Corrupt), "{refused:?}");
    if refused.is_empty() {
        let count = known.check(&pool).unwrap_or_else(|wrong| panic!("silently wrong: {wrong}"));
        assert_eq!(count, known.published.len(), "silently shorter");
    }
}

fn area(part: &str) -> String {
    format!("fast/pool.{part}")
}

fn len_of(world: &World, part: &str) -> u64 {
    let areas = world.areas();
    areas.iter().find(|found| found.name == area(part)).expect("the file").len
}

/// Where the blocks of the log are: byte, sequence number, payload bytes.
fn blocks(world: &World) -> Vec<(u64, u64, u32)> {
    let log = world.peek(&area("log"), 0, len_of(world, "log") as usize);
    let word = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().expect("eight bytes"));
    let starts = (0..log.len()).step_by(BLOCK as usize).filter(|at| log[*at..].starts_with(b"TierLogB"));
    let mut found: Vec<_> = starts.map(|at| (at as u64, word(at + 16), word(at + 40) as u32)).collect();
    found.sort_by_key(|block| block.1);
    found
}

#[test]
fn no_flipped_bit_of_any_file_gives_a_wrong_answer() {
    let (world, known) = crashed(&small());
    let blocks = blocks(&world);
    let last = blocks.last().expect("blocks").0;
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut seen, mut all) = (0, 0);
    for part in ["log", "image", "table"] {
        let len = len_of(&world, part);
        // The first bytes of every page, where the headers are, and any others.
        let heads = (0..len).step_by(BLOCK as usize).flat_map(|page| (page..page + 128).step_by(8));
        let places: Vec<u64> = heads.chain((0..300).map(|_| rng.u64(0..len))).collect();
        for at in places {
            // Damage to the last block cannot be told from a block that was in flight.
            if part == "log" && (last..last + BLOCK).contains(&at) {
                continue;
            }
            let image = world.copy();
            image.flip_bit(&area(part), at, rng.u32(0..8));
            seen += u32::from(noticed(&image, &small(), &known));
            all += 1;
        }
    }
    assert!(seen > 50 && seen < all, "{seen} of {all} noticed");
}

#[test]
fn cut_files_lost_pages_and_strangers_are_noticed() {
    let (world, known) = crashed(&wide());
    for part in ["log", "image", "table"] {
        for len in [0, BLOCK, len_of(&world, part) / 2 / BLOCK * BLOCK, len_of(&world, part) - BLOCK] {
            let image = world.copy();
            image.truncate(&area(part), len);
            let cut = noticed(&image, &wide(), &known);
            // The end of the image may hold no page.
            assert!(cut || part == "image" && len > BLOCK, "{part} cut to {len}");
        }
        for page in (0..len_of(&world, part)).step_by(BLOCK as usize) {
            if part == "log" && blocks(&world).last().is_some_and(|last| page >= last.0) {
                continue;
            }
            let image = world.copy();
            image.zero_page(&area(part), page);
            noticed(&image, &wide(), &known);
        }
    }
    let image = world.copy();
    image.swap(&area("log"), &area("table"));
    assert!(noticed(&image, &wide(), &known));
    let seed = support::SEED + 1;
    let other = LoggedPool::open(dir(&world), wide(), seed, FailureLatch::new(), Meter::new(), None)
        .err()
        .expect("foreign");
    assert!(matches!(other, Error::ForeignTier { .. }), "{other}");
    assert!(other.to_string().contains("fast/pool.table"), "{other}");
}

/// A log that lost a block, with what was acknowledged before it.
fn with_a_hole(world: &World, known: &Known) -> (World, usize) {
    let blocks = blocks(world);
    let kept = 3;
    let image = world.copy();
    let first = newest_table(world, 64);
    let lost = blocks.iter().find(|block| block.1 == first + kept).expect("several blocks");
    // As if the write had been reported and never made.
    image.zero_page(&area("log"), lost.0);
    (image, known.published.len() - 8 + kept as usize)
}

/// A word of the header of the newest table.
fn newest_table(world: &World, at: usize) -> u64 {
    let areas = len_of(world, "table") / 3;
    let heads = (0..3).map(|i| world.peek(&area("table"), i * areas, 128));
    let word = |head: &[u8], at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let newest = heads.max_by_key(|head| word(head, 24)).expect("three");
    word(&newest, at)
}

#[test]
fn a_hole_in_the_log_is_missing_data_and_salvage_keeps_what_is_before_it() {
    let (world, known) = crashed(&small());
    let (world, kept) = with_a_hole(&world, &known);
    let missing = open(dir(&world), &small()).err().expect("a hole");
    assert!(matches!(missing, Error::AcknowledgedDataMissing { .. }), "{missing}");
    assert!(missing.to_string().contains("fast/pool.log"), "{missing}");
    let salvage = LoggedOptions { salvage: true, ..small() };
    let pool = open(dir(&world), &salvage).expect("salvage");
    assert!(pool.salvage().log.is_some() && pool.salvage().pages.is_empty());
    let left = Known { acked: 0, ..known };
    assert_eq!(left.check(&pool), Ok(kept));
    // The past that was given up raises no alarm later, neither at once nor after more was written.
    reopen(&world.copy(), &small(), &left).expect("whole again");
    let left =
        Oracle::new(Known { published: left.published[..kept].to_vec(), acked: kept, era: 1, created: true });
    work(&pool, &left, 10, 3).expect("no faults");
    drop(pool);
    reopen(&world.copy(), &small(), &left.get()).expect("whole again");
}

/// The slots that the newest table names, in the order of pages.
fn slots(world: &World) -> Vec<u64> {
    let areas = len_of(world, "table") / 3;
    let generation = newest_table(world, 24).to_le_bytes();
    let newest = (0..3).find(|i| world.peek(&area("table"), i * areas + 24, 8) == generation);
    let pages = newest_table(world, 88);
    let at = newest.expect("the newest") * areas + BLOCK + pages * 8;
    let stored = world.peek(&area("table"), at, pages as usize * 4);
    let slots = stored.chunks_exact(4).map(|slot| u32::from_le_bytes(slot.try_into().expect("four bytes")));
    slots.map(u64::from).collect()
}

#[test]
fn a_lost_page_is_named_and_salvage_zeroes_it_alone() {
    let (world, _) = crashed(&small());
    let whole = |pool: &LoggedPool<TestDir>| {
        let mut bytes = vec![0; support::POOL as usize];
        pool.read(0, &mut bytes).expect("memory");
        bytes
    };
    let before = whole(&open(dir(&world.copy()), &small()).expect("whole"));
    let slots = slots(&world);
    assert!(slots.len() > 10);
    for (page, slot) in (0..).zip(slots) {
        if slot == u64::from(u32::MAX) {
            continue;
        }
        let world = world.copy();
        world.flip_bit(&area("image"), slot * BLOCK + 70, 3);
        let corrupt = open(dir(&world), &small()).err().expect("damaged");
        let Error::Corrupt { place, .. } = &corrupt else { panic!("{corrupt}") };
        assert_eq!((&*place.file, place.offset), ("fast/pool.image", slot * BLOCK));
        let pool = open(dir(&world), &LoggedOptions { salvage: true, ..small() }).expect("salvage");
        let lost = &pool.salvage().pages;
        assert_eq!((lost.len(), lost[0].at, &lost[0].place), (1, page * BLOCK, place), "{lost:?}");
        let now = whole(&pool);
        for (at, (now, before)) in (0..).zip(now.iter().zip(&before)) {
            assert!(now == before || *now == 0 && at / BLOCK == page, "byte {at}, page {page}");
        }
        drop(pool);
        // It was repaired on media as well.
        assert_eq!(whole(&open(dir(&world), &small()).expect("repaired")), now);
    }
}

#[test]
fn a_newer_table_that_is_lost_is_never_a_shorter_history() {
    let (world, pool, known) = support::world(&small());
    work(&pool, &known, 20, 1).expect("no faults");
    pool.close().expect("no faults");
    drop(pool);
    let (pool, known) = reopen(&world, &small(), &known.get()).expect("clean");
    support::publish(&pool, &known);
    support::acknowledge(&pool, &known).expect("no faults");
    support::publish(&pool, &known);
    support::acknowledge(&pool, &known).expect("no faults");
    drop(pool);
    let areas = len_of(&world, "table") / 3;
    let newest = newest_table(&world, 24);
    for index in 0..3 {
        let generation = u64::from_le_bytes(
            world.peek(&area("table"), index * areas + 24, 8).try_into().expect("eight bytes"),
        );
        if generation == newest {
            world.zero_page(&area("table"), index * areas);
        }
    }
    // The table before it is marked clean, but the log after it is found.
    assert!(!noticed(&world.copy(), &small(), &known.get()));
    let last = blocks(&world)[blocks(&world).len() - 2];
    world.zero_page(&area("log"), last.0);
    assert!(noticed(&world, &small(), &known.get()), "a hole right after it");
}

#[test]
fn a_damaged_format_is_damage_and_costs_no_more_than_its_table() {
    let (world, known) = crashed(&small());
    let areas = len_of(&world, "table") / 3;
    let newest = newest_table(&world, 24).to_le_bytes();
    for index in 0..3 {
        let image = world.copy();
        image.flip_bit(&area("table"), index * areas + 9, 0);
        let stale = image.peek(&area("table"), index * areas + 24, 8) != newest;
        assert!(!noticed(&image, &small(), &known) || !stale, "area {index}");
    }
}

/// Goal: one block of the log or of the tables that cannot be read costs a salvage what its damage would, and the image
/// stays.
/// Method: each block of both files unreadable in turn, in pools with blocks of one and of two pages and a spare; and
/// each read of an open failing once, which costs nothing where the device is asked again.
#[test]
fn an_unreadable_block_costs_a_salvage_no_more_than_a_damaged_one() {
    for options in [small(), wide()] {
        let (world, known) = crashed(&options);
        // Opened twice, so that the table has a spare.
        drop(open(dir(&world), &options).expect("whole"));
        let salvage = LoggedOptions { salvage: true, ..options.clone() };
        let left = Known { acked: 0, ..known.clone() };
        let held = |pool: &LoggedPool<TestDir>| left.check(pool).expect("a prefix of the publishes");
        let mut whole = 0;
        for part in ["log", "table"] {
            for at in (0..len_of(&world, part)).step_by(BLOCK as usize) {
                let (unreadable, damaged) = (world.copy(), world.copy());
                damaged.overwrite(&area(part), at, &[0; BLOCK as usize]);
                let pool = open(support::dir_without(&unreadable, &format!("pool.{part}"), at), &salvage)
                    .unwrap_or_else(|error| panic!("{part} at {at}: {error}"));
                let other = open(dir(&damaged), &salvage).expect("salvage");
                assert_eq!(held(&pool), held(&other), "{part} at {at}");
                let noted = pool.salvage().unreadable.iter().map(ToString::to_string).collect::<Vec<_>>();
                assert!(noted.len() <= 1 && noted.iter().all(|e| e.contains(&area(part))), "{noted:?}");
                assert!(part == "table" || !noted.is_empty(), "{part} at {at}");
                assert!(pool.salvage().pages.is_empty());
                whole += usize::from(held(&pool) == known.published.len());
            }
        }
        assert!(whole > 20, "{whole}");
        for nth in 1.. {
            let world = world.copy();
            world.inject(FaultPlan::nth(nth, FaultKind::Eio).on(Ops::READ));
            let pool = open(dir(&world), &salvage).unwrap_or_else(|error| panic!("read {nth}: {error}"));
            if world.heal().hit == 0 {
                assert!(nth > 5 && pool.salvage().is_empty());
                break;
            }
            held(&pool);
        }
    }
}

/// Two futures of one past, with a block of one spliced into the log of the other.
fn spliced() -> (World, Known) {
    let (world, known) = crashed(&small());
    let future = |era| {
        let image = world.copy();
        let known = Known { era, ..known.clone() };
        let (pool, known) = reopen(&image, &small(), &known).expect("no faults");
        for _ in 0..2 {
            // A word each, so that both futures have blocks of the same lengths.
            pool.publish(8, era);
            pool.wait(pool.lsn()).expect("no faults");
        }
        (image, known.get())
    };
    let ((one, known), (other, _)) = (future(3), future(4));
    let first = blocks(&one)[blocks(&one).len() - 2].0;
    let block = other.peek(&area("log"), first, BLOCK as usize);
    one.overwrite(&area("log"), first, &block);
    (one, known)
}

/// Each damage must be noticed; a checksum that is not compared lets one of them through.
fn every_damage() {
    let (world, known) = crashed(&small());
    let spoil = |part: &str, at: u64| {
        let image = world.copy();
        image.flip_bit(&area(part), at, 0);
        noticed(&image, &small(), &known);
    };
    // Content of a block in the middle, and of a page.
    let first = newest_table(&world, 64);
    let block = *blocks(&world).iter().find(|block| block.1 == first + 2).expect("several blocks");
    spoil("log", block.0 + 64 + u64::from(block.2) - 1);
    for page in (0..len_of(&world, "image")).step_by(BLOCK as usize) {
        spoil("image", page + 70);
        spoil("image", page + 2000);
        let image = world.copy();
        image.flip_bit(&area("image"), page + 2000, 0);
        noticed_in_reads(&image, &known);
    }
    // A sequence number in the newest table's header that is past all blocks, and a page that it forgets.
    let areas = len_of(&world, "table") / 3;
    for index in 0..3 {
        let image = world.copy();
        image.flip_bit(&area("table"), index * areas + 64 + 1, 0);
        noticed(&image, &small(), &known);
        let image = world.copy();
        let pages = u64::from_le_bytes(
            image.peek(&area("table"), index * areas + 88, 8).try_into().expect("eight bytes"),
        );
        if pages > 0 {
            // Page 0, which has the words, as if it had never been checkpointed.
            image.overwrite(&area("table"), index * areas + BLOCK, &[0; 8]);
            image.overwrite(&area("table"), index * areas + BLOCK + pages * 8, &[0xff; 4]);
            noticed(&image, &small(), &known);
        }
    }
    let (world, known) = spliced();
    match open(dir(&world), &small()) {
        Err(e) => assert_eq!(e.kind(), ErrorKind::Corrupt),
        Ok(pool) => {
            known.check(&pool).expect("words");
            panic!("a block of another future was taken");
        }
    }
}

#[test]
fn a_checksum_that_is_not_compared_lets_damage_through() {
    every_damage();
    // A block and its chain; a table's header and its entries; a page at open, and one that is asked for.
    let comparisons = comparisons(env!("CARGO_MANIFEST_DIR"), &["tierdb-log"], &[]);
    assert_eq!(comparisons.len(), 6, "{comparisons:?}");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (noticed, missed): (Vec<_>, Vec<_>) = comparisons
        .into_iter()
        .partition(|of| mutant::without(of.site, || std::panic::catch_unwind(every_damage)).is_err());
    std::panic::set_hook(hook);
    noticed.iter().for_each(|of| println!("noticed: {of}"));
    assert!(missed.is_empty(), "not compared and not noticed: {missed:?}");
}

#[test]
fn arbitrary_bytes_never_panic() {
    let (world, _) = crashed(&small());
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..300 {
        let image = world.copy();
        for _ in 0..rng.usize(1..6) {
            let part = ["log", "image", "table"][rng.usize(0..3)];
            let at = rng.u64(0..len_of(&image, part) / 8) * 8;
            let bytes: Vec<u8> = match rng.u8(0..3) {
                0 => vec![0xff; 8],
                1 => rng.u64(..).to_le_bytes().to_vec(),
                _ => checksum(1, &[rng.u8(..)]).to_le_bytes().to_vec(),
            };
            image.overwrite(&area(part), at, &bytes);
        }
        let _ = open(dir(&image), &LoggedOptions { salvage: rng.bool(), ..small() });
    }
    assert!(create(dir(&world), &small()).is_err());
}
