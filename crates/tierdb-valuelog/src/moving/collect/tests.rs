use super::{READERS_GONE, VICTIMS_FOR_A_GAIN};
use crate::core::Core;
use crate::core::tests::{open_on, store, store_of, wait_for_readers};
use crate::moving::Reclaim;
use crate::storage::{Appender, State};
use crate::word::{Place, Word};
use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tierdb_base::ErrorKind;
use tierdb_device::{AlignedBuf, Cause};
use tierdb_engine::{Durability, WriteBatch};
use tierdb_sim::{FaultKind, FaultPlan, Ops, SimDir, SimPool, World};

pub(in crate::moving) fn key_of(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b9).to_be_bytes()
}

/// Values of 400 bytes, put in an order that is not theirs, with a few chunks left.
pub(in crate::moving) fn nearly_full() -> (Core<SimPool, SimDir>, u32) {
    nearly_full_in(&World::new())
}

fn nearly_full_in(world: &World) -> (Core<SimPool, SimDir>, u32) {
    let core = store_of(world, 40 * (16 << 10));
    let mut count = 0;
    while core.storage.room() > 3 {
        let key = key_of(count);
        core.put(&key, &[1; 400], Durability::Durable).expect("room");
        count += 1;
    }
    core.reclaim(Reclaim::All).expect("room");
    (core, count)
}

fn delete(core: &Core<SimPool, SimDir>, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        core.delete(&key_of(number), Durability::Durable).expect("deletes need no room");
    }
}

/// Does `work` beside a reader that stands still for so long.
fn beside_a_reader(stays: Duration, work: impl FnOnce()) {
    let (pinned, is_pinned) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _reader = crossbeam_epoch::pin();
            pinned.send(()).expect("somebody waits");
            std::thread::sleep(stays);
        });
        is_pinned.recv().expect("it is pinned");
        work();
    });
}

/// Goal: that the file system was full once keeps no write from chunks that come back later. Method: a write meets it,
/// while a reader holds what was emptied before. Values in parts, and such as are too long for a ring.
#[test]
fn a_file_system_that_was_full_is_asked_again() {
    for len in [16_000, 6_000] {
        let world = World::new();
        let core = store(&world);
        let put = |key: &[u8]| core.put(key, &vec![1; len], Durability::Durable);
        let reader = crossbeam_epoch::pin();
        while core.storage.room() > 1 {
            put(b"key").expect("room");
        }
        let device = &core.storage.devices()[0];
        refuse_a_write(&world, &core);
        while device.available() > 2 {
            device.allocate(&*core.pool, State::Part, 16 << 10, false).expect("room");
        }
        // Nothing is left to collect.
        core.delete(b"key", Durability::Durable).expect("deletes need no room");
        drop(reader);
        put(b"key").expect("all chunks but a few are garbage");
    }
}

/// A write to a free chunk finds the file system full.
fn refuse_a_write(world: &World, core: &Core<SimPool, SimDir>) {
    let device = &core.storage.devices()[0];
    let chunk = device.allocate(&*core.pool, State::Part, 16 << 10, false).expect("room");
    world.inject(FaultPlan::nth(1, FaultKind::Enospc).on(Ops::WRITE));
    let block = AlignedBuf::zeroed(4096).expect("memory");
    let refused = device.write_durable(u64::from(chunk) * (16 << 10), &block, Cause::Reclaim);
    assert_eq!(refused.expect_err("the file system is full").kind(), ErrorKind::NoSpace);
    world.heal();
}

/// Goal: garbage is collected in the background before a writer needs it, where a file system is full and the chunks that are free have
/// given their space back. Method: half of a store does, and a write is refused.
#[test]
fn free_chunks_without_space_leave_a_full_file_system_short_of_them() {
    let world = World::new();
    let (core, count) = nearly_full_in(&world);
    let (device, free_pct) = (&core.storage.devices()[0], core.options.gc_free_pct);
    delete(&core, 0..count / 2);
    core.collect_all().expect("no faults");
    wait_for_readers(&core);
    core.discard_free().expect("no faults");
    assert!(!device.is_short(free_pct), "half of it is free");
    refuse_a_write(&world, &core);
    assert!(device.is_short(free_pct), "{} chunks are free", device.available());
}

/// Goal: who is given a free chunk for which the file system has no room, since it gave its space back and others took that, goes on
/// with what collection gains. Method: half of all is garbage when a write finds no room, of reclamation and of a batch that is too long
/// for a ring.
#[test]
fn what_finds_no_room_in_a_free_chunk_goes_on_after_a_collection() {
    for is_batch in [false, true] {
        let world = World::new();
        let (core, count) = nearly_full_in(&world);
        delete(&core, (0..count).step_by(2));
        core.put(b"key", &[3; 400], Durability::Durable).expect("room");
        // What leaves the ring goes to a chunk that is open, and the batch to the last one.
        let device = &core.storage.devices()[0];
        while core.storage.room() > u64::from(is_batch) {
            device.allocate(&*core.pool, State::Part, 16 << 10, false).expect("room");
        }
        let mut batch = WriteBatch::new();
        for number in 0..60u32 {
            batch.put(key_of(count + number), [2; 400]).expect("a small batch");
        }
        let collected = core.counters.collected_chunks.get();
        world.inject(FaultPlan::nth(1, FaultKind::Enospc).on(Ops::WRITE).in_dir("flash"));
        if is_batch {
            core.write(&batch, Durability::Durable).expect("half of all is garbage");
        } else {
            core.reclaim(Reclaim::All).expect("half of all is garbage");
        }
        assert_eq!(world.heal().hit, 1, "the write was refused");
        assert!(core.counters.collected_chunks.get() > collected);
        let ring = core.rings.iter().map(|ring| ring.head() - ring.tail()).sum::<u64>();
        assert_eq!(ring == 0, !is_batch, "{ring} bytes are in the ring");
        assert_eq!(core.get(b"key").expect("whole").as_deref(), Some(&[3; 400][..]));
        for number in 0..count + 60 {
            let found = core.get(&key_of(number)).expect("whole").map(|value| value[0]);
            let put = if number < count { (number % 2 == 1).then_some(1) } else { is_batch.then_some(2) };
            assert_eq!(found, put, "{number}");
        }
    }
}

/// Goal: chunks that come back with their space are waited for, and used, though the file system is full. Method: a chunk that gave its
/// space back gets none, as no other is free that has it, while a reader holds what was emptied.
#[test]
fn what_readers_hold_is_waited_for_where_the_file_system_is_full() {
    let world = World::new();
    let (core, count) = nearly_full_in(&world);
    delete(&core, 0..count / 2);
    core.collect_all().expect("no faults");
    wait_for_readers(&core);
    core.discard_free().expect("no faults");
    let device = &core.storage.devices()[0];
    device.allocate(&*core.pool, State::Part, 16 << 10, false).expect("one that has its space");
    beside_a_reader(Duration::from_millis(300), || {
        delete(&core, count / 2..count);
        world.inject(FaultPlan::nth(1, FaultKind::Enospc).on(Ops::WRITE).in_dir("flash"));
        let value = [2; 6000];
        core.put(b"key", &value, Durability::Durable).expect("room, when the reader has gone");
        assert_eq!(world.heal().hit, 1, "the write was refused");
        assert_eq!(core.get(b"key").expect("whole").as_deref(), Some(&value[..]));
    });
}

/// A store that is opened again does not know which of its free chunks take no space.
#[test]
fn collection_goes_on_with_another_chunk_where_one_gets_no_space() {
    let world = World::new();
    let (core, count) = nearly_full_in(&world);
    delete(&core, (0..count).step_by(2));
    world.inject(FaultPlan::nth(1, FaultKind::Enospc).on(Ops::WRITE).in_dir("flash"));
    core.collect_all().expect("no faults but that");
    assert_eq!(world.heal().hit, 1, "the write was refused");
    assert!(core.counters.collected_chunks.get() > 0);
}

/// Goal: where readers hold what collection has emptied, it goes on with what they let go. Method: all chunks have some
/// garbage, fewer are free than are needed to gain one, and a reader stands still for a while.
#[test]
fn collection_goes_on_when_readers_have_gone() {
    let core = store_of(&World::new(), 16 * (16 << 10));
    let put = |number: u32| core.put(&key_of(number), &[1; 400], Durability::Durable);
    let full = (0..).find(|number| put(*number).is_err()).expect("flash is full some time");
    delete(&core, (0..full).step_by(3));
    beside_a_reader(Duration::from_millis(50), || {
        core.put(b"long", &[1; 40_000], Durability::Durable).expect("a third of all is garbage");
    });
}

/// The time for which readers are waited for does not begin before collection has ended. Method: that is held up, and so is
/// what it gains.
#[test]
fn collection_takes_nothing_of_the_time_to_wait() {
    let (core, count) = nearly_full();
    delete(&core, (0..count).step_by(2));
    let allocate = || core.storage.devices()[0].allocate(&*core.pool, State::Part, 16 << 10, false);
    let full = (0..40).find_map(|_| allocate().err()).expect("it is full some time");
    let (pinned, is_pinned) = channel();
    let mut given_up = None;
    let begin = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let _reader = crossbeam_epoch::pin();
            let collecting = core.collect.lock();
            pinned.send(()).expect("somebody waits");
            std::thread::sleep(Duration::from_millis(20));
            let begin = Instant::now();
            drop(collecting);
            std::thread::sleep(Duration::from_millis(20));
            begin
        });
        is_pinned.recv().expect("it is pinned");
        core.try_collect(1, &mut given_up, full).expect("half of all is garbage");
        reader.join().expect("no panic")
    });
    assert!(given_up.is_none_or(|given_up| given_up >= begin + READERS_GONE));
}

/// What a thread gives up is not kept back by its doing nothing afterwards.
#[test]
fn what_an_idle_thread_gave_up_comes_back() {
    let core = store_of(&World::new(), 1 << 20);
    let value = [1; 3 * 16_000];
    core.put(b"key", &value, Durability::Durable).expect("room");
    let (done, is_done) = channel();
    let (end, is_end) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let core = &core;
        scope.spawn(move || {
            core.put(b"key", &value, Durability::Durable).expect("room");
            done.send(()).expect("somebody waits");
            let _ = is_end.recv();
        });
        is_done.recv().expect("it is done");
        let device = &core.storage.devices()[0];
        let given_up = Instant::now() + Duration::from_secs(10);
        while device.is_waiting() {
            core.work.settle_epochs();
            std::thread::sleep(Duration::from_millis(1));
            assert!(Instant::now() < given_up, "its chunks are not free");
        }
        drop(end);
    });
}

/// Collects until `gained` more chunks are free, which may take until the readers of other tests let go of them.
fn collect_until_more_is_free(core: &Core<SimPool, SimDir>, gained: u64) {
    let device = &core.storage.devices()[0];
    let (enough, given_up) = (device.free_soon() + gained, Instant::now() + Duration::from_secs(20));
    while device.free_soon() < enough {
        let free = device.free_soon();
        assert!(Instant::now() < given_up, "{free} instead of {enough} chunks are free");
        core.collect_all().expect("no faults");
        core.work.settle_epochs();
    }
}

/// Goal: what is overwritten again and again takes no more of flash than its share, though there is room. Method: a few
/// keys, and more garbage than data behind each pass, in all chunks.
#[test]
fn garbage_is_collected_though_there_is_room() {
    let core = store_of(&World::new(), 64 << 20);
    let device = &core.storage.devices()[0];
    let chunk = device.chunk_bytes();
    let (mut most, mut rng) = (0, fastrand::Rng::with_seed(1));
    for pass in 0..20 {
        for put in 0..4000 {
            core.put(&key_of(rng.u32(0..4000)), &[pass; 400], Durability::Durable).expect("room");
            if put % 500 == 0 {
                core.gain_space(Reclaim::All).expect("room");
            }
        }
        core.work.settle_epochs();
        most = most.max(device.usage().used);
    }
    let live = device.usage().live;
    // Beside what is allowed there are chunks that are being filled, and such as wait for the readers of other tests.
    let allowed = live * 100 / (100 - u64::from(core.options.gc_garbage_pct)) + 48 * chunk;
    assert!(live > 80 * chunk && most <= allowed, "{live} live, {most} used");
}

/// The count of garbage is that of all chunks, whatever happened to them.
#[test]
fn garbage_is_counted_as_it_comes_and_goes() {
    let (core, count) = nearly_full();
    let device = &core.storage.devices()[0];
    let counted = || {
        let each =
            (0..device.chunks_in_file()).map(|number| device.with_chunk(number, |chunk| chunk.garbage()));
        assert_eq!(device.garbage(), each.sum::<u64>());
        device.garbage()
    };
    let full = counted();
    delete(&core, (0..count).step_by(2));
    core.reclaim(Reclaim::All).expect("deletes need no room");
    let half = counted();
    assert!(half > full + device.usage().used / 4, "{full} before, {half} behind");
    core.collect_all().expect("no faults");
    assert!(counted() < half);
}

/// The same of a store that is opened, from its image and from its words.
#[test]
fn garbage_is_counted_on_open() {
    for closed in [true, false] {
        let (world, bytes) = (World::new(), 64 * (16 << 10));
        let core = store_of(&world, bytes);
        for number in 0..1200 {
            core.put(&key_of(number), &[1; 400], Durability::Durable).expect("room");
        }
        core.reclaim(Reclaim::All).expect("room");
        for number in (0..1200).filter(|number| number % 4 != 0) {
            core.delete(&key_of(number), Durability::Durable).expect("deletes need no room");
        }
        core.work.settle_epochs();
        if closed {
            core.leave_image().expect("no faults");
        }
        drop(core);
        let core = open_on(&world, world.pool("pool"), bytes);
        let device = &core.storage.devices()[0];
        let each =
            (0..device.chunks_in_file()).map(|number| device.with_chunk(number, |chunk| chunk.garbage()));
        assert_eq!(device.garbage(), each.sum::<u64>());
        assert!(device.garbage() > device.usage().used / 2);
    }
}

/// A record that nothing points at, as a lost race may leave one, keeps its chunk and no other one. Nor do many such
/// chunks use up all tries of each collection.
#[test]
fn chunks_that_cannot_be_emptied_do_not_end_a_collection() {
    for (stuck, gained) in [(1, 8), (VICTIMS_FOR_A_GAIN as usize + 4, 4)] {
        let (core, count) = nearly_full();
        let device = &core.storage.devices()[0];
        let sealed = |number: &u32| device.with_chunk(*number, |chunk| chunk.state == State::Sealed);
        let stuck: Vec<u32> = (0..device.chunks_in_file()).filter(sealed).take(stuck).collect();
        let word = Word::new(Place::Flash(0, 0), 1, 448, false);
        for number in 0..count {
            let key = key_of(number);
            let entry = core.index.get(&key).expect("whole").expect("it was put");
            let Place::Flash(_, at) = core.hsit.word(entry).place() else { continue };
            let (chunk, offset) = device.chunk_of(at);
            if stuck.contains(&chunk) || number % 2 == 0 {
                core.delete(&key, Durability::Durable).expect("deletes need no room");
                if stuck.contains(&chunk) && device.with_chunk(chunk, |chunk| chunk.live == 1) {
                    device.with_chunk(chunk, |chunk| chunk.set(offset, word));
                }
            }
        }
        let is_left = |number: &u32| device.with_chunk(*number, |chunk| chunk.live > 0);
        assert!(stuck.iter().all(is_left), "something is left in each");
        // Half of the others can be gained.
        collect_until_more_is_free(&core, gained);
    }
}

/// Goal: an open chooses the granules of a chunk by what is live, so dead records that are shorter may start in one
/// before the live one: that is moved all the same. Method: chunks of pairs of which the long one stays.
#[test]
fn a_record_is_found_behind_dead_ones_of_its_granule() {
    const CHUNKS: u32 = VICTIMS_FOR_A_GAIN + 8;
    const FLASH: u64 = 40 * (16 << 10);
    let world = World::new();
    let core = store_of(&world, FLASH);
    let key = |number: u32, len: u32| [number.to_be_bytes(), len.to_be_bytes()].concat();
    let (pairs, lens) = (5 * CHUNKS, [60, 2900]);
    for number in 0..pairs {
        for len in lens {
            let value = vec![number as u8; len as usize];
            core.put(&key(number, len), &value, Durability::Durable).expect("room");
        }
    }
    core.reclaim(Reclaim::All).expect("room");
    // Of each five long ones two stay, so that chunks can be brought together.
    let is_left = |number: u32, len: u32| len == lens[1] && number % 5 < 2;
    let each = || (0..pairs).flat_map(|number| lens.map(|len| (number, len)));
    for (number, len) in each().filter(|(number, len)| !is_left(*number, *len)) {
        core.delete(&key(number, len), Durability::Durable).expect("deletes need no room");
    }
    drop(core);
    let core = open_on(&world, world.pool("pool"), FLASH);
    collect_until_more_is_free(&core, u64::from(CHUNKS / 2));
    for (number, len) in each() {
        let value = core.get(&key(number, len)).expect("whole");
        assert_eq!(value.map(|value| value.len()), is_left(number, len).then_some(len as usize));
    }
}

/// Three quarters of a chunk are filled when a record comes that needs a chunk with shorter granules.
#[test]
fn what_collection_has_joined_is_not_joined_again() {
    for collecting in [false, true] {
        let core = store(&World::new());
        let device = &core.storage.devices()[0];
        let mut appender = match collecting {
            false => Appender::new(Cause::Reclaim),
            true => Appender::collecting(device.clone()),
        };
        for len in [3008, 3008, 3008, 64] {
            let word = Word::new(Place::Ring(0), 1, len, false);
            let added = appender.add(&core.storage, &*core.pool, &vec![7; len as usize], word, ());
            assert!(matches!(added, Ok(None)));
            assert_eq!(appender.commit().expect("no faults").len(), 1);
        }
        let victim = device.victims(&HashSet::new()).pop().map(|victim| victim.number);
        assert_eq!(victim.is_none(), collecting, "{victim:?}");
        appender.seal();
    }
}
