//! Stores that are full, or as good as: what must go on, and where room must be found. Goal of the first tests: a put on a full
//! fast tier finds what was given up there, even if a reader that was not run for a while still holds it.
//! Method: keys until there is no room, all deleted, and all put again while another thread is pinned.

use crate::figure;
use crate::rig::Sizes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tierdb_base::{Error, TierRole};
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Background, Durability, Engine, KeyRange, WriteBatch};
use tierdb_sim::{FaultKind, FaultPlan, Ops};

/// What is given up comes back when no reader of the process is left. Some of these tests are readers that stand still, as is one of
/// crashes, so that one runs at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Puts keys until one is refused for want of room, or there are `most`.
fn fill(most: u64, put: impl Fn(u64) -> tierdb_base::Result<()>) -> u64 {
    for number in 0..most {
        if let Err(error) = put(number) {
            assert!(matches!(error, Error::NoSpace { tier: TierRole::Fast, .. }), "{error}");
            return number;
        }
    }
    most
}

fn run(put: impl Fn(&dyn Engine, u64) -> tierdb_base::Result<()> + Sync) {
    let _alone = alone();
    let rig = Rig::new(Sizes { flash: vec![8 << 20], ..Sizes::tiny() }, None);
    let engine = &*rig.open(&rig.empty_world()).expect("a new store");
    let full = fill(1 << 20, |number| engine.put(&key(number), b"v", Durability::Durable));
    assert!(full > 1000, "{full} keys fit");
    let reader = crossbeam_epoch::pin();
    for number in 0..full {
        engine.delete(&key(number), Durability::Durable).expect("deletes need no room");
    }
    std::thread::scope(|scope| {
        let again = scope.spawn(|| fill(full, |number| put(engine, number)));
        // As long as a reader stands still on a busy machine.
        std::thread::sleep(Duration::from_millis(60));
        drop(reader);
        let again = again.join().expect("no panic");
        // Of the few pages one less may be leaves than before, and the first leaf that is full and cannot be split ends it.
        assert!(again > full * 3 / 4, "{again} of {full} fit again");
    });
}

#[test]
fn puts_wait_for_what_readers_hold() {
    run(|engine, number| engine.put(&key(number), b"v", Durability::Durable));
}

#[test]
fn batches_wait_for_what_readers_hold() {
    run(|engine, number| {
        let mut batch = WriteBatch::new();
        batch.put(key(number), *b"v")?;
        engine.write(&batch, Durability::Durable)
    });
}

fn is_flash_full(result: &tierdb_base::Result<()>) -> bool {
    matches!(result, Err(Error::NoSpace { tier: TierRole::Flash, .. }))
}

fn open(sizes: Sizes) -> Box<dyn Engine> {
    let rig = Rig::new(sizes, None);
    rig.open(&rig.empty_world()).expect("a new store")
}

/// Chunks in which one value took an eighth or more of the room, and no other was put, were never collected.
#[test]
fn values_longer_than_a_quarter_of_a_ring_fill_flash() {
    let _alone = alone();
    let engine = open(Sizes { chunk: 64 << 10, flash: vec![8 << 20], pool: 1 << 20, ..Sizes::tiny() });
    let value = vec![7; 4200];
    for number in 0..900 {
        engine.put(&key(number), &value, Durability::Durable).expect("8 MiB hold 3.8 MB");
    }
    assert!((0..900).all(|number| engine.get(&key(number)).expect("whole").as_deref() == Some(&value[..])));
}

fn collected(engine: &dyn Engine) -> u64 {
    figure(engine, "collected_chunks")
}

/// Batches of so many values of such lengths until one is refused. Returns how many values there are.
fn fill_with_batches(engine: &dyn Engine, values: u64, len: impl Fn(u64) -> usize) -> u64 {
    let mut count = 0;
    loop {
        let mut batch = WriteBatch::new();
        for number in count..count + values {
            batch.put(key(number), vec![number as u8; len(number)]).expect("a small batch");
        }
        let written = engine.write(&batch, Durability::Durable);
        if is_flash_full(&written) {
            return count;
        }
        written.expect("nothing else fails");
        count += values;
    }
}

/// A batch that is longer than a quarter of a ring is written to chunks of its own, of which it leaves much empty.
#[test]
fn batches_that_go_to_flash_fill_it() {
    let _alone = alone();
    let engine = open(Sizes { chunk: 64 << 10, flash: vec![8 << 20], pool: 1 << 20, ..Sizes::tiny() });
    let count = fill_with_batches(&*engine, 36, |_| 1024);
    assert!(count << 10 > (8 << 20) * 4 / 5, "{count} KiB of 8 MiB");
    for number in 0..count {
        let value = engine.get(&key(number)).expect("whole");
        assert_eq!(value.as_deref(), Some(&[number as u8; 1024][..]));
    }
}

/// What is joined once is not joined again and again, and what cannot be joined is left where it is.
#[test]
fn collection_ends_where_nothing_is_to_be_gained() {
    let _alone = alone();
    let sizes = Sizes { chunk: 64 << 10, flash: vec![4 << 20], pool: 1 << 20, ..Sizes::tiny() };
    let [joined, mixed, apart] = [sizes.clone(), sizes.clone(), sizes].map(open);
    fill_with_batches(&*joined, 36, |_| 1024);
    fill_with_batches(&*mixed, 12, |number| if number % 12 < 2 { 15_000 } else { 900 });
    // One fills a little more than half of a chunk.
    let put = |number| apart.put(&key(number), &[7; 32 << 10], Durability::Durable);
    (0..100).find(|number| is_flash_full(&put(*number))).expect("4 MiB hold 64 at most");
    assert_eq!(collected(&*apart), 0);
    for engine in [&*joined, &*mixed, &*apart] {
        let again = || {
            engine.compact().expect("no faults");
            fill_with_batches(engine, 36, |_| 1024);
        };
        // What is left of the last batches may still be joined.
        (0..3).for_each(|_| again());
        let before = collected(engine);
        (0..5).for_each(|_| again());
        assert_eq!(collected(engine), before);
    }
}

/// Goal: what collection keeps for itself is enough whatever sizes values have. Method: flash full of values of 100 to 2,000 bytes, half of them
/// deleted, and new ones until there is no room.
#[test]
fn garbage_among_values_of_many_sizes_makes_room() {
    let _alone = alone();
    let flash = 8 << 20;
    let engine = &*open(Sizes {
        flash: vec![flash],
        pool: 4 << 20,
        ring: 128 << 10,
        chunk: 128 << 10,
        ..Sizes::tiny()
    });
    let len = |number: u64| 100 + (key(number)[3] as usize * 256 + key(number)[4] as usize) % 1900;
    let put = |number: u64| engine.put(&key(number), &vec![7; len(number)], Durability::Grouped);
    let full = (0..).find(|number| is_flash_full(&put(*number))).expect("flash is full");
    let deleted = (0..full).filter(|number| number % 2 == 0);
    deleted.for_each(|number| engine.delete(&key(number), Durability::Grouped).expect("room"));
    let new: Vec<u64> = (full + 1..2 * full).take_while(|number| put(*number).is_ok()).collect();
    let bytes: usize = new.iter().map(|number| len(*number)).sum();
    assert!(bytes as u64 > flash / 4, "{bytes} bytes of new values");
    // About two for each of the 64 chunks: none had ended because a short value followed on a long one.
    assert!(collected(engine) < 160, "{} chunks were collected", collected(engine));
}

/// The list of its writes is too long for a ring, and so was the record of where that list is.
#[test]
fn a_batch_of_many_writes_fits_a_small_ring() {
    let _alone = alone();
    let engine = open(Sizes { chunk: 64 << 10, flash: vec![8 << 20], pool: 4 << 20, ..Sizes::tiny() });
    for round in 0..3_u8 {
        // So that the list comes to another place of the ring each time.
        for number in 0..100 {
            engine.put(&key(number), &[round; 20], Durability::Durable).expect("there is room");
        }
        let mut batch = WriteBatch::new();
        for number in 0..5000 {
            batch.put(key(number), [round]).expect("a small batch");
        }
        engine.write(&batch, Durability::Durable).expect("there is room");
        assert!((0..5000).all(|n| engine.get(&key(n)).expect("whole").as_deref() == Some(&[round][..])));
    }
}

/// What lies before the first value that is needed in a ring is given up even if there is no room on flash for that value. Puts
/// one more key there, while a reader stands still for so long.
fn put_after_deletes(reader: Duration) {
    let _alone = alone();
    let engine = open(Sizes { rings: 1, ..Sizes::tiny() });
    // 256 bytes each with what stands before it, so 64 of them are in the ring.
    let put = |number| engine.put(&key(number), &[1; 256 - 40 - 8], Durability::Durable);
    let full = (0..10_000).find(|number| is_flash_full(&put(*number))).expect("256 KiB are full some time");
    for number in full - 64..full - 1 {
        engine.delete(&key(number), Durability::Durable).expect("deletes need no room");
    }
    std::thread::scope(|scope| {
        let (pinned, is_pinned) = mpsc::channel();
        scope.spawn(move || {
            let _reader = crossbeam_epoch::pin();
            pinned.send(()).expect("somebody waits");
            std::thread::sleep(reader);
        });
        is_pinned.recv().expect("it is pinned");
        put(full).expect("there is room");
    });
    assert!(engine.get(&key(full - 1)).expect("whole").is_some());
}

#[test]
fn deletes_make_room_in_the_write_buffer_of_a_full_store() {
    put_after_deletes(Duration::ZERO);
}

#[test]
fn room_in_the_write_buffer_that_readers_hold_is_waited_for() {
    put_after_deletes(Duration::from_millis(60));
}

/// One of two file systems is full. What comes is written to the other one, where there is garbage to be collected.
#[test]
fn a_full_file_system_leaves_the_other_directory_to_write_to() {
    let _alone = alone();
    for len in [200, 6000, 20_000] {
        let rig = Rig::new(Sizes { flash: vec![512 << 10, 512 << 10], ..Sizes::tiny() }, None);
        let world = rig.empty_world();
        let engine = &*rig.open(&world).expect("a new store");
        let put = |number: u64| engine.put(&key(number), &vec![7; len], Durability::Durable);
        let full = (0..10_000).find(|number| is_flash_full(&put(*number))).expect("full some time");
        for number in (0..full).step_by(2) {
            engine.delete(&key(number), Durability::Durable).expect("deletes need no room");
        }
        world.inject(FaultPlan::from_nth(1, FaultKind::Enospc).on(Ops::WRITE).in_dir("flash1"));
        for number in 0..full / 8 {
            put(full + number).unwrap_or_else(|error| panic!("{number} of {full} values of {len}: {error}"));
        }
    }
}

#[test]
fn a_batch_of_deletes_empties_a_full_index() {
    let _alone = alone();
    let engine = open(Sizes { flash: vec![8 << 20], ..Sizes::tiny() });
    let put = |number| engine.put(&key(number), b"v", Durability::Durable);
    let full = fill(1 << 20, put);
    let mut batch = WriteBatch::new();
    for number in 0..full {
        batch.delete(key(number)).expect("a small batch");
    }
    engine.write(&batch, Durability::Durable).expect("deletes need no room");
    // Other keys, which need room in the index.
    let again = fill(full, |number| put(number + full));
    assert!(again > full / 2, "{again} of {full} fit again");
}

#[test]
fn a_range_is_removed_where_both_tiers_are_full() {
    let _alone = alone();
    let engine = open(Sizes { flash: vec![1 << 20], ..Sizes::tiny() });
    let full = fill(1 << 20, |number| engine.put(&key(number), b"v", Durability::Durable));
    let longer = |number| engine.put(&key(number % full), &[1; 900], Durability::Durable);
    (0..100_000).find(|number| is_flash_full(&longer(*number))).expect("1 MiB is full some time");
    let removed = engine.delete_range(&KeyRange::all(), Durability::Durable);
    assert_eq!(removed.expect("deletes need no room"), full);
    let mut left = engine.cursor(KeyRange::all(), None).expect("a cursor");
    assert!(left.next().expect("whole").is_none());
}

/// Goal: who waits for room is not passed over for as long as others write. Method: four threads, each with a ring, overwrite keys of which
/// flash has room for twice as many and which takes its time, so that whatever one of them is given was collected for it.
#[test]
fn no_writer_waits_while_others_go_on() {
    const THREADS: usize = 4;
    const PUTS: usize = 20_000;
    let _alone = alone();
    let sizes = Sizes {
        pool: 1 << 20,
        rings: THREADS as u32,
        ring: 64 << 10,
        flash: vec![2 << 20],
        background: Background::Threads,
        ..Sizes::tiny()
    };
    let rig = Rig::new(sizes, None);
    let world = rig.empty_world();
    let engine = &*rig.open(&world).expect("a new store");
    let put = |number: u64| engine.put(&key(number), &[7; 900], Durability::Grouped).expect("room");
    (0..1000).for_each(put);
    let stall = FaultKind::Stall(Duration::from_micros(200));
    world.inject(FaultPlan::from_nth(1, stall).on(Ops::READ | Ops::WRITE));
    let done = AtomicUsize::new(0);
    let writer = |thread: u64| {
        let mut rng = fastrand::Rng::with_seed(thread);
        let mut own = 0;
        while done.fetch_add(1, Ordering::Relaxed) < PUTS {
            put(rng.u64(..1000));
            own += 1;
        }
        own
    };
    let own: Vec<usize> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                scope.spawn({
                    let writer = &writer;
                    move || writer(thread)
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().expect("no panic")).collect()
    });
    world.heal();
    assert!(figure(engine, "collected_chunks") > 500, "garbage is collected all the time");
    assert!(own.iter().all(|own| *own > PUTS / THREADS / 4), "{own:?} puts");
}
