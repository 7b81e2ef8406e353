use super::*;
use crate::cache::Copied;
use crate::pages::{PAGE, Purpose};
use crate::record::{self, Kind};
use std::collections::BTreeSet;
use tierdb_pmem::{MappedPool, Stage};

const SEED: u64 = 3;
const PAGES: u64 = 64;

type Level = SecondLevel<MappedPool>;

fn new() -> (Level, Arc<Pages<MappedPool>>) {
    sized(PAGES, 1 << 20)
}

fn sized(count: u64, budget: u64) -> (Level, Arc<Pages<MappedPool>>) {
    let pool = Arc::new(MappedPool::in_memory((count + 2) * PAGE));
    let mut stage = Stage::new(&*pool);
    let pages = Arc::new(Pages::format(pool.clone(), &mut stage, PAGE, 2, count, SEED));
    let _drained = stage.drain();
    (SecondLevel::new(pool, pages.clone(), true, budget), pages)
}

/// The record that was written as the `n`th, as most tests have it.
fn source(n: u64) -> Source {
    Source { entry: 7, word: n, filling: 0 }
}

/// A value of `len` bytes.
fn value(n: u64, len: usize) -> Vec<u8> {
    vec![n as u8; len]
}

/// The record of a value that was written as the `n`th.
fn record(n: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let len = record::encode(&mut bytes, SEED, Kind::Value, 7, n, b"key", value);
    bytes.truncate(len);
    bytes
}

fn keep_as(level: &Level, proven: bool, (n, filling): (u64, u32), value: &[u8]) {
    let record = Copied::new(&record(n, value), 0, None);
    level.keep(&Gone { word: n, filling, proven, record });
}

fn keep(level: &Level, n: u64, value: &[u8]) {
    keep_as(level, true, (n, 0), value);
}

fn offer(level: &Level, n: u64, value: &[u8]) {
    let record = record(n, value);
    level.offer((&Header::parse(&record).expect("a header"), &record), (n, 0));
}

/// Reads it as an engine does. Says whether it was for DRAM.
fn read(level: &Level, n: u64, value: &[u8]) -> Option<bool> {
    let frame = level.get(source(n))?;
    assert!(*frame.value == *value && frame.seqno == n, "{n} is another value");
    let made = if frame.is_for_dram() { Use::Cached } else { Use::Read };
    level.used(&frame, made);
    Some(made == Use::Cached)
}

/// Whether there is a frame, which does not count as found.
fn is_there(level: &Level, n: u64) -> bool {
    level.get(source(n)).is_some()
}

fn count(level: &Level, mut of: impl Iterator<Item = u64>) -> u64 {
    let mut there = 0;
    of.by_ref().for_each(|n| there += u64::from(is_there(level, n)));
    there
}

/// Frames lie in the area, one behind the other, and no two words name the same one. Returns how many are named.
fn check(level: &Level) -> usize {
    let mut writer = level.writer.lock();
    let Some(area) = level.area(&mut writer) else { return 0 };
    let mut starts = BTreeSet::new();
    let mut go = |mut at: u64, end: u64| {
        while at < end {
            assert!(at >= area.start && starts.insert(at));
            let Some(len) = level.head_at(at).and_then(|head| head.stored_len()) else { return end };
            at += len;
        }
        at
    };
    let end = go(writer.first, writer.next);
    assert!(end == writer.next || writer.next == area.end, "{end} and {}, of {area:?}", writer.next);
    assert!(writer.old >= writer.old_end || writer.next <= writer.old);
    go(writer.old, writer.old_end);
    assert!(writer.next.max(writer.old_end) <= area.end);
    drop(writer);
    let words = (0..level.words.len()).filter_map(|slot| level.words.at(slot));
    // The head of the last one may have gone as the table grew.
    let is_inside = |place: &u64| area.contains(place) && place + HEAD as u64 <= area.end;
    let places: Vec<u64> = words.map(|(place, _)| place).filter(is_inside).collect();
    assert!(places.iter().all(|place| starts.remove(place)), "words of frames, each of another");
    places.len()
}

#[test]
fn frames_of_all_sizes_keep_their_order_whatever_pages_are_taken() {
    // With words for all frames, and with fewer.
    for (budget, longest, least) in [(1 << 20, LONGEST, 20), (1 << 20, 600, 300), (160 << 10, 300, 600)] {
        let (level, pages) = sized(300, budget);
        let mut random = fastrand::Rng::with_seed(budget ^ longest as u64);
        let of = |n: u64| value(n, (n * n % 7919) as usize * longest / 8000);
        let (mut most, mut found, mut moved_up) = (0, 0, 0);
        for n in 1..12_000u64 {
            keep_as(&level, n % 7 != 0, (n, 0), &of(n));
            for _ in 0..3 {
                let n = n - n.min(random.u64(..500) * random.u64(..3));
                if let Some(for_dram) = read(&level, n, &of(n)) {
                    found += 1;
                    moved_up += u32::from(for_dram);
                }
            }
            if n % 50 == 0 {
                most = check(&level).max(most);
            }
            if n > 6000 && n % 40 == 0 {
                let page = pages.allocate(Purpose::Grow);
                page.iter().for_each(|page| level.pool.write(page * PAGE, &[n as u8; PAGE as usize]));
            }
        }
        assert!(level.words.memory_bytes() <= budget / MEMORY_SHARE);
        while pages.allocate(Purpose::Shrink).is_ok() {
            keep(&level, random.u64(5000..9000), &of(random.u64(1..4000)));
            check(&level);
        }
        assert!(most >= least && found > 1000 && moved_up > 100, "{most} frames, {found}, {moved_up}");
    }
}

#[test]
fn a_copy_is_found_by_its_place_and_filling_alone() {
    let (level, _) = new();
    let values: Vec<_> = (1..51).map(|n| value(n, 20 * n as usize)).collect();
    let get = |n, filling| level.get(Source { filling, ..source(n) });
    let has = |n: u64, filling, value: &[u8]| {
        get(n, filling).is_some_and(|frame| *frame.value == *value && frame.seqno == n)
    };
    for (n, value) in (1..).zip(&values) {
        keep_as(&level, true, (n, 4), value);
        keep_as(&level, true, (n, 4), value);
    }
    assert_eq!(level.kept(), 50, "none is kept twice");
    for (n, value) in (1..).zip(&values) {
        assert!(has(n, 4, value), "{n}");
        assert!(get(n, 5).is_none() && get(n + 100, 4).is_none());
    }
    keep_as(&level, true, (1, 5), &values[9]);
    assert!(has(1, 5, &values[9]) && has(1, 4, &values[0]));
    keep(&level, 2000, &vec![0; LONGEST + 1]);
    assert!(!is_there(&level, 2000));
}

#[test]
fn the_newest_are_kept_and_the_kept_are_whole() {
    let (level, _) = new();
    (1..5000).for_each(|n| keep(&level, n, &value(n, 900)));
    let room = level.bytes() / stored_len(900);
    let kept: Vec<u64> = (1..5000).filter(|n| read(&level, *n, &value(*n, 900)).is_some()).collect();
    assert!(kept.len() as u64 > room * 9 / 10 && kept.len() as u64 <= room, "{} of {room}", kept.len());
    assert!(kept[0] >= 5000 - room && kept.contains(&4999), "the last ones, from {}", kept[0]);
}

/// As long as there is room, the table has a place for each.
#[test]
fn every_copy_has_a_word() {
    for many in [500, 2000, 6000, 20_000] {
        let (level, _) = sized(800, 8 << 20);
        (0..many).for_each(|n| offer(&level, n, &value(n, 12)));
        let there = count(&level, 0..many);
        assert!(level.is_open() && there >= many * 999 / 1000, "{there} of {many}");
    }
}

/// However short values are, nearly all of the room is theirs.
#[test]
fn the_table_has_room_for_frames_of_any_length() {
    for len in [0, 8, 35, 100, 400, 1000, 5000] {
        let (level, _) = sized(400, 4 << 20);
        let bytes = stored_len(len) + 8 * WORDS_A_FRAME;
        let room = level.bytes() / bytes;
        (1..room * 3).for_each(|n| keep(&level, n, &value(n, len)));
        let there = count(&level, 1..room * 3);
        assert!(there > room * 17 / 20 && there <= room * 21 / 20, "{there} of {room} with {len} bytes");
        assert_eq!(there, check(&level) as u64);
        let words = level.words.len();
        assert!(words <= 3 * there || words * 8 == PAGE, "{words} for {there}");
    }
}

#[test]
fn what_was_read_once_takes_the_place_of_nothing() {
    let (level, _) = new();
    let once = |n: u64| keep_as(&level, false, (n, 0), &value(n, 900));
    (1..5000).for_each(once);
    let room = level.bytes() / stored_len(900);
    assert!(level.kept() <= room && count(&level, 1..room) > room * 9 / 10, "the first ones fill it");
    (5000..5100).for_each(|n| keep(&level, n, &value(n, 900)));
    (6000..6100).for_each(once);
    assert!(count(&level, 5000..5100) > 90 && count(&level, 6000..6100) == 0);
}

#[test]
fn what_nobody_asked_for_takes_the_place_of_nothing_and_makes_way() {
    let (level, _) = new();
    let room = level.bytes() / stored_len(900);
    let once = |n: u64| keep_as(&level, false, (n, 0), &value(n, 900));
    (1..50).for_each(once);
    assert!(level.is_open());
    (1000..5000).for_each(|n| offer(&level, n, &value(n, 900)));
    assert!(!level.is_open(), "it is full");
    assert_eq!(count(&level, 1..50), 49);
    let offered = count(&level, 1000..1000 + room);
    assert!(offered > (room - 50) * 9 / 10 && level.kept() == offered + 49, "{offered} of {room}");
    // Then what is read once has a round or two.
    (5000..9000).for_each(once);
    assert!(count(&level, 1000..5000) == 0 && count(&level, 5000..5000 + 2 * room) > room * 9 / 10);
    assert_eq!(count(&level, 5000 + 2 * room..9000), 0);
    (1000..1100).for_each(|n| offer(&level, n, &value(n, 900)));
    assert_eq!(count(&level, 1000..1100), 0);
    (9000..9100).for_each(|n| keep(&level, n, &value(n, 900)));
    assert_eq!(count(&level, 9000..9100), 100);
}

#[test]
fn what_is_found_stays_and_is_for_dram_when_it_is_found_often() {
    let (level, _) = new();
    let of = |n: u64| value(n, 900 + 37 * n as usize % 600);
    let found = |n: u64| read(&level, n, &of(n));
    (1..400).for_each(|n| keep(&level, n, &of(n)));
    let kept: Vec<u64> = (1..400).filter(|n| is_there(&level, *n)).collect();
    let (read, left): (Vec<u64>, Vec<u64>) = kept.into_iter().partition(|n| n % 5 == 0);
    for lap in 0..6 {
        let lost: Vec<_> = read.iter().filter(|n| found(**n).is_none()).collect();
        assert!(lost.is_empty(), "lap {lap}: {lost:?} of {read:?}");
        let from = 1000 + lap * 120;
        (from..from + 120).for_each(|n| keep(&level, n, &of(n)));
    }
    assert_eq!(left.iter().filter(|n| is_there(&level, **n)).count(), 0);

    keep(&level, 5000, &of(5000));
    let answers: Vec<bool> = (0..6).map(|_| found(5000).expect("kept")).collect();
    assert_eq!(answers, [false, false, true, false, false, true]);
    // What DRAM gives up again counts as found.
    found(5000);
    found(5000);
    assert!(found(5000).expect("kept"), "counts from nothing");
    keep(&level, 5000, &of(5000));
    assert!(!found(5000).expect("kept") && found(5000).expect("kept"));
}

#[test]
fn where_all_is_found_what_comes_takes_the_place_of_few() {
    let (level, _) = new();
    // So few that no bucket is full.
    let of = |n: u64| value(n, 2000);
    (1..200).for_each(|n| keep(&level, n, &of(n)));
    let kept: Vec<u64> = (1..200).filter(|n| read(&level, *n, &of(*n)).is_some()).collect();
    keep(&level, 1000, &of(1000));
    assert!(read(&level, 1000, &of(1000)).is_some());
    let hot = (0..level.words.len()).filter(|slot| level.words.at(*slot).is_some_and(|at| at.1 > 0));
    let passed = kept.len() - (hot.count() - 1);
    assert_eq!(passed, MOST_KEPT + 1, "of {}", kept.len());
    let gone = kept.iter().filter(|n| !is_there(&level, **n)).count();
    assert_eq!(gone, 1);
}

#[test]
fn a_damaged_copy_makes_way() {
    let (level, _) = new();
    let of = value(5, 900);
    keep(&level, 5, &of);
    let (_, place, _) = level.find(&source(5)).expect("kept");
    level.pool.write(place + (HEAD + of.len() / 2) as u64, b"damage");
    assert!(!is_there(&level, 5) && level.find(&source(5)).is_none());
    keep(&level, 5, &of);
    assert!(read(&level, 5, &of).is_some());
}

/// A damaged word of the HSIT may lead to another key's record.
#[test]
fn a_copy_is_not_given_to_another_entry() {
    let (level, _) = new();
    keep(&level, 5, &value(5, 900));
    assert!(level.get(Source { entry: 8, ..source(5) }).is_none());
}

#[test]
fn what_is_given_up_makes_room_for_others_and_for_nothing_else() {
    let (level, _) = new();
    let room = level.bytes() / stored_len(900);
    (1..2 * room).for_each(|n| offer(&level, n, &value(n, 900)));
    let kept: Vec<u64> = (1..2 * room).filter(|n| is_there(&level, *n)).collect();
    assert!(!level.is_open() && !level.has_room_for_more() && kept.len() as u64 > room * 9 / 10);
    let (given_up, others): (Vec<u64>, Vec<u64>) = kept.iter().partition(|n| *n % 4 == 0);
    given_up.iter().for_each(|n| level.forget(source(*n)));
    assert!(level.is_open() && level.has_room_for_more());
    assert!(!given_up.iter().any(|n| is_there(&level, *n)));
    (1000..2000).for_each(|n| offer(&level, n, &value(n, 900)));
    let came = count(&level, 1000..2000);
    let half = given_up.len() as u64 / 2;
    assert!(!level.is_open() && came > half / 2, "{came} in the place of {}", given_up.len());
    assert_eq!(count(&level, others.iter().copied()), others.len() as u64);
    check(&level);
}

#[test]
fn what_is_moved_takes_its_copy_along() {
    let (level, _) = new();
    (1..30).for_each(|n| keep(&level, n, &value(n, 900)));
    let hot = || {
        let frame = level.get(source(5)).expect("kept");
        level.used(&frame, Use::Read);
        frame.is_for_dram()
    };
    assert!(!hot() && !hot() && hot());
    level.carry(source(5), Source { filling: 3, ..source(100) });
    level.carry(source(50), source(101));
    assert!(!is_there(&level, 5) && !is_there(&level, 100) && !is_there(&level, 101));
    let frame = level.get(Source { filling: 3, ..source(100) }).expect("it was moved there");
    assert!(*frame.value == *value(5, 900) && frame.seqno == 5 && frame.is_for_dram());
}

#[test]
fn all_at_once_are_the_same_as_one_by_one() {
    let (level, _) = sized(100, 1 << 20);
    (1..5000).for_each(|n| keep(&level, n, &value(n, n as usize % 100)));
    let wanted = (1..5000).map(source);
    let frames = level.get_many(wanted.clone());
    let mut there = 0;
    for (source, frame) in wanted.zip(frames) {
        let alone = level.get(source).map(|frame| (frame.value.to_vec(), frame.seqno));
        there += u32::from(alone.is_some());
        assert_eq!(frame.map(|frame| (frame.value.to_vec(), frame.seqno)), alone, "{source:?}");
    }
    assert!((2000..4900).contains(&there), "{there} of 4,999");
}

#[test]
fn pages_that_are_taken_cost_their_copies_and_are_not_written() {
    let (level, pages) = new();
    let mut taken = Vec::new();
    for n in 1..3000 {
        keep(&level, n, &value(n, 900));
        if n % 60 == 0 {
            let page = pages.allocate(Purpose::Grow).expect("room");
            level.pool.write(page * PAGE, &[n as u8; PAGE as usize]);
            taken.push((page, n as u8));
        }
    }
    for (page, filler) in &taken {
        let mut bytes = vec![0; PAGE as usize];
        level.pool.read(page * PAGE, &mut bytes).expect("read");
        assert!(bytes.iter().all(|byte| byte == filler), "page {page}");
    }
    let found = |n: &u64| read(&level, *n, &value(*n, 900)).is_some();
    assert!(taken.len() > 40 && (1..3000).filter(found).count() > 20);
    while pages.allocate(Purpose::Shrink).is_ok() {}
    keep(&level, 9999, &value(1, 1));
    assert!(!is_there(&level, 9999), "there is no room at all");
}

/// Where the index has come as far as the words, what is left begins anew. Before anybody notices, readers find what the index
/// has written where they look for words, and nothing is written there.
#[test]
fn a_table_whose_pages_are_taken_begins_anew() {
    let (level, pages) = sized(100, 1 << 20);
    let mut random = fastrand::Rng::with_seed(SEED);
    (1..4000).for_each(|n| keep(&level, n, &value(n, 35)));
    let start = level.words.start();
    assert!(pages.unused().end - start > 8 * PAGE, "a table of several pages");
    let mut taken = Vec::new();
    while pages.unused().start < start + 3 * PAGE {
        let page = pages.allocate(Purpose::Grow).expect("room");
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(PAGE as usize).collect();
        level.pool.write(page * PAGE, &bytes);
        taken.push((page, bytes));
    }
    (1..4000).for_each(|n| {
        read(&level, n, &value(n, 35));
    });
    (5000..5050).for_each(|n| keep(&level, n, &value(n, 35)));
    assert_eq!(count(&level, 5000..5050), 50);
    assert!(level.words.start() > start && count(&level, 1..4000) == 0);
    check(&level);
    for (page, bytes) in taken {
        let mut now = vec![0; PAGE as usize];
        level.pool.read(page * PAGE, &mut now).expect("read");
        assert!(now == bytes, "page {page}");
    }
}

#[test]
fn a_frame_of_an_earlier_open_is_not_taken_for_one_of_this() {
    let (level, pages) = sized(300, 1 << 20);
    keep(&level, 1, b"the value");
    assert!(is_there(&level, 1));
    let pool = level.pool.clone();
    let mut bytes = vec![0; pool.len() as usize];
    pool.read(0, &mut bytes).expect("memory");
    let level = SecondLevel::new(pool.clone(), pages, true, 1 << 20);
    keep(&level, 1, b"the value");
    assert!(is_there(&level, 1));
    // Words and frames are where they were.
    pool.write(0, &bytes);
    assert!(!is_there(&level, 1));
}
