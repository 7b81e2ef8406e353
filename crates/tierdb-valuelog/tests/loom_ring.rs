//! The rings of the write buffer, under every interleaving of a few threads: writers that append and then
//! publish, and reclamation that gives their space up.
//!
//! 1. A ring has one appender at a time, and a record is on media before a word points at it.
//! 2. A record is not released while a word points at it, or is about to.
//! 3. Over a log, what a word points at stays in the log that is kept.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-valuelog --test loom_ring`
#![cfg(loom)]

mod loom_kit;

use loom::thread;
use loom_kit::{Broken, LoomPool, Medium};
use std::sync::Arc;
use tierdb_pmem::Pool;
use tierdb_sync::CommitClock;
use tierdb_sync::switch::explore;
use tierdb_valuelog::modelled::{Hsit, Kind, Layout, Place, Rings, Word, encode};
use tierdb_valuelog::pages::{PAGE, Pages};

const SEED: u64 = 5;
const POOL: u64 = 32 * PAGE;
const RING: u64 = 4 * PAGE;
const KEY: &[u8] = b"key";

struct Store {
    pool: Arc<LoomPool>,
    hsit: Hsit<LoomPool>,
    rings: Rings<LoomPool>,
    clock: CommitClock,
    layout: Layout,
}

impl Store {
    fn new(rings: u32, medium: Medium, broken: Broken) -> Arc<Store> {
        let layout = Layout { pool_len: POOL, chunk_bytes: 64 << 10, rings, ring_bytes: RING, flash: 1 };
        let page = layout.first_page();
        let mut words: Vec<u64> = (0..4).map(|word| page * PAGE + word * 8).collect();
        words.extend((0..rings).map(Layout::commit_slot));
        let guarded = layout.rings_at()..layout.first_page() * PAGE;
        let pool = Arc::new(LoomPool::new(POOL, medium, broken, &words, guarded));
        let pages = Arc::new(Pages::open(pool.clone(), layout.page_table_at(), page, 1, SEED));
        let hsit = Hsit::open(pool.clone(), pages, &[(0, page)]);
        for entry in 0..2 {
            hsit.mark(entry, Word::NONE);
        }
        let ends = vec![(0, 0); rings as usize];
        let rings = Rings::new(pool.clone(), SEED, &layout, &ends);
        Arc::new(Store { pool, hsit, rings, clock: CommitClock::new(0), layout })
    }

    /// A put, as an engine makes it.
    fn put(&self, entry: u64) {
        let latched = self.hsit.latch(entry);
        let in_flight = self.clock.begin();
        let word = self.append(entry, in_flight.seqno());
        let Place::Ring(at) = word.place() else { unreachable!("it was appended") };
        assert!(self.pool.is_safe(at, 64), "a word is published whose record a crash could leave torn");
        self.hsit.publish(entry, word.dirty());
        drop(in_flight);
        drop(latched);
        self.pool.fence();
        self.pool.wait(self.pool.lsn()).expect("no faults");
        self.hsit.clear_dirty(entry, word);
    }

    fn append(&self, entry: u64, seqno: u64) -> Word {
        let mut record = Vec::new();
        let len = encode(&mut record, SEED, Kind::Value, entry, seqno, KEY, b"value");
        let mut lease = self.rings.lease();
        let at = lease.append(&record).expect("the ring has room");
        lease.drain();
        Word::new(Place::Ring(at), seqno, len as u64, false)
    }

    /// Moves what is live out of the first ring and releases the rest, as an engine reclaims.
    fn reclaim(&self, settle: fn(&CommitClock) -> u64) {
        self.rings.mark_log();
        let ring = self.rings.iter().next().expect("a ring");
        let head = ring.head();
        settle(&self.clock);
        let mut live = Vec::new();
        let walked = self.rings.walk(ring, ring.tail(), head, head, |found| {
            let place = Place::Ring(found.offset);
            let word = self.hsit.word(found.header.entry).clean();
            if word.place() == place && found.header.is_coupled(found.header.entry, word.tag()) {
                live.push((found.header.entry, place, word));
            }
            Ok(())
        });
        assert_eq!(walked.expect("no faults"), head, "every record before the head is whole");
        for (entry, from, word) in live {
            let _latched = self.hsit.latch(entry);
            self.hsit.swing(entry, from, word.moved_to(Place::Flash(0, 0)));
        }
        self.pool.fence();
        // SAFETY: what the ring defers owns what it touches; it runs at once, as if no reader were left.
        self.rings.release(ring, head, unsafe { crossbeam_epoch::unprotected() });
        self.rings.mark_log();
    }

    /// At rest: every word points at a record that is there, and that is not released.
    fn assert_nothing_lost(&self) {
        for entry in 0..2 {
            let word = self.hsit.word(entry);
            let Place::Ring(at) = word.place() else { continue };
            let ring = self.rings.ring_of(at).expect("it lies in a ring");
            let position = at - self.layout.rings_at() - u64::from(ring.number()) * RING;
            assert!(position >= ring.tail(), "{word:?} points at a record that was released");
            assert!(position < ring.head(), "{word:?} points behind the head");
            assert!(self.pool.is_safe(at, 64), "{word:?} points at a record that the log need not keep");
        }
    }
}

type Work = Box<dyn FnOnce(&Store)>;

/// Runs `others` on threads of their own, and `own` meanwhile.
fn run(store: &Arc<Store>, others: Vec<Work>, own: impl FnOnce(&Store)) {
    let start = |work: Work| {
        let store = store.clone();
        thread::spawn(move || work(&store))
    };
    let threads: Vec<_> = others.into_iter().map(start).collect();
    own(store);
    for thread in threads {
        thread.join().expect("no thread fails");
    }
    store.assert_nothing_lost();
}

/// Two puts of one key, and reclamation.
fn writers_and_reclamation(medium: Medium, broken: Broken, settle: fn(&CommitClock) -> u64) {
    explore(move || {
        let store = Store::new(1, medium, broken);
        run(&store, vec![Box::new(move |store| store.reclaim(settle))], |store| {
            store.put(0);
            store.put(0);
        });
    });
}

/// Two puts of different keys, on so many rings, and reclamation of the first.
fn writers_that_share(rings: u32) {
    explore(move || {
        let store = Store::new(rings, Medium::Memory, Broken::No);
        let others: Vec<Work> =
            vec![Box::new(|store| store.put(0)), Box::new(|store| store.reclaim(CommitClock::settled))];
        run(&store, others, |store| store.put(1));
    });
}

#[test]
fn a_record_is_not_released_before_its_word_is_published() {
    writers_and_reclamation(Medium::Memory, Broken::No, CommitClock::settled);
}

#[test]
fn what_a_word_points_at_stays_in_the_log() {
    writers_and_reclamation(Medium::Log, Broken::No, CommitClock::settled);
}

#[test]
fn two_writers_share_a_ring() {
    writers_that_share(1);
}

#[test]
fn two_writers_and_two_rings() {
    writers_that_share(2);
}

// Canaries: the same models fail when the protocol is broken.

#[test]
#[should_panic(expected = "a record that was released")]
fn reclamation_that_does_not_wait_for_writers_is_noticed() {
    writers_and_reclamation(Medium::Memory, Broken::No, CommitClock::last);
}

#[test]
#[should_panic(expected = "a crash could leave torn")]
fn a_record_that_is_not_flushed_is_noticed() {
    writers_and_reclamation(Medium::Memory, Broken::Flush, CommitClock::settled);
}

#[test]
#[should_panic(expected = "a crash could leave torn")]
fn a_record_that_is_not_drained_is_noticed() {
    writers_and_reclamation(Medium::Memory, Broken::Fence, CommitClock::settled);
}

/// Two sets of rings over the same bytes share no latch.
#[test]
#[should_panic]
fn two_appenders_of_a_ring_are_noticed() {
    explore(|| {
        let store = Store::new(1, Medium::Memory, Broken::No);
        let rings = Rings::new(store.pool.clone(), SEED, &store.layout, &[(0, 0)]);
        let append = move |_: &Store| {
            let mut lease = rings.lease();
            let _at = lease.append(&[7; 64]);
            lease.drain();
        };
        run(&store, vec![Box::new(append)], |store| store.put(0));
    });
}
