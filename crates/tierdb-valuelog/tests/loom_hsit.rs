//! The protocol of HSIT words, under every interleaving of a few threads, with the state that a crash would
//! leave looked at on the way.
//!
//! 1. No reader answers with a word that a crash at that moment could lose (durable linearizability).
//! 2. No word is overwritten by that of an older write, and a dirty bit is cleared for durable words only.
//! 3. A reader that has seen one word of a batch sees all.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-valuelog --test loom_hsit`
#![cfg(loom)]

mod loom_kit;

use loom::thread;
use loom_kit::{Broken, LoomPool, Medium};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tierdb_pmem::{PersistenceDomain, Pool};
use tierdb_sync::switch::explore;
use tierdb_valuelog::modelled::{Hsit, Place, Word};
use tierdb_valuelog::pages::{PAGE, Pages};

const HSIT_PAGE: u64 = 2;
const A: u64 = 0;
const B: u64 = 1;

/// The word of a value that write `seqno` put in the write buffer.
fn put(seqno: u64) -> Word {
    Word::new(Place::Ring(seqno * 32), seqno, 32, false)
}

/// Where that value is moved to.
fn moved(seqno: u64) -> Word {
    put(seqno).moved_to(Place::Flash(0, seqno * 32))
}

/// A word of the pool, as the table gives it: without the check that one of a key that is not there carries.
fn in_dram(word: u64) -> Word {
    match Word(word).place() {
        Place::Ring(_) | Place::Flash(..) => Word(word),
        _ => Word(word & !Word::CHECK),
    }
}

/// The write that made `word`; 0 for none.
fn seqno_of(word: Word) -> u64 {
    let word = word.clean();
    let made = |seqno: &u64| [put(*seqno), moved(*seqno), Word::deleted(*seqno)].contains(&word);
    if word == Word::NONE { 0 } else { (1..10).find(made).expect("a word of the model") }
}

struct Store {
    pool: Arc<LoomPool>,
    hsit: Hsit<LoomPool>,
}

impl Store {
    /// Two entries, *none*.
    fn new(medium: Medium, broken: Broken) -> Arc<Store> {
        let words: Vec<u64> = (0..4).map(|word| HSIT_PAGE * PAGE + word * 8).collect();
        let pool = Arc::new(LoomPool::new(4 * PAGE, medium, broken, &words, 0..0));
        let pages = Arc::new(Pages::open(pool.clone(), PAGE, HSIT_PAGE, 2, 9));
        let hsit = Hsit::open(pool.clone(), pages, &[(0, HSIT_PAGE)]);
        for entry in [A, B] {
            hsit.mark(entry, Word::NONE);
        }
        Arc::new(Store { pool, hsit })
    }

    fn at(&self, entry: u64) -> u64 {
        self.hsit.at(entry).expect("an entry")
    }

    /// After a crash now, `entry` has the word of write `seqno` or of a later one.
    fn assert_durable(&self, entry: u64, seqno: u64, who: &str) {
        let after = self.pool.after_crash(self.at(entry));
        assert!(
            after.iter().all(|word| seqno_of(in_dram(*word)) >= seqno),
            "{who} answered with write {seqno}, and a crash could leave {after:x?}"
        );
    }

    /// Publishes `word` as a write does, and waits until it is durable.
    fn write(&self, entry: u64, word: Word) {
        let latched = self.hsit.latch(entry);
        self.hsit.publish(entry, word.dirty());
        drop(latched);
        self.pool.fence();
        self.pool.wait(self.pool.lsn()).expect("no faults");
        self.hsit.clear_dirty(entry, word);
        self.assert_durable(entry, seqno_of(word), "a writer");
    }

    /// Reads as `get` does.
    fn read(&self, entry: u64) -> Word {
        let word = self.hsit.settled(entry).expect("no faults");
        assert!(!word.is_dirty());
        self.assert_durable(entry, seqno_of(word), "a reader");
        word
    }

    /// Reads twice, and does not go back.
    fn read_twice(&self, entry: u64) {
        let first = seqno_of(self.read(entry));
        let second = seqno_of(self.read(entry));
        assert!(first <= second, "write {second} was read after write {first}");
    }

    /// Moves the value of write `seqno`, whose copy is durable, and gives up its place in the write buffer.
    fn relocate(&self, entry: u64, seqno: u64, swing: Swing) {
        let latched = self.hsit.latch(entry);
        let left = swing(&self.hsit, entry, put(seqno).place(), moved(seqno));
        drop(latched);
        self.pool.fence();
        if left && self.pool.domain() != PersistenceDomain::Logged {
            let after = self.pool.after_crash(self.at(entry));
            let back = after.iter().any(|word| in_dram(*word).place() == put(seqno).place());
            assert!(!back, "a crash could leave a word that points at the old place: {after:x?}");
        }
    }

    /// At rest: nothing was overwritten by an older write.
    fn assert_order(&self, entry: u64) -> Word {
        let history: Vec<u64> =
            self.pool.history(self.at(entry)).into_iter().map(|word| seqno_of(in_dram(word))).collect();
        assert!(history.is_sorted(), "a write was overwritten by an older one: {history:?}");
        self.hsit.word(entry)
    }
}

type Swing = fn(&Hsit<LoomPool>, u64, Place, Word) -> bool;

fn swing(hsit: &Hsit<LoomPool>, entry: u64, from: Place, to: Word) -> bool {
    hsit.swing(entry, from, to).is_some()
}

fn run(threads: Vec<Box<dyn FnOnce()>>, own: impl FnOnce()) {
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    own();
    for thread in threads {
        thread.join().expect("no thread fails");
    }
}

macro_rules! on {
    ($store:ident, $work:expr) => {{
        let $store = $store.clone();
        Box::new(move || $work) as Box<dyn FnOnce()>
    }};
}

/// Two readers and a writer.
fn readers_and_a_writer(medium: Medium, broken: Broken) {
    explore(move || {
        let store = Store::new(medium, broken);
        run(vec![on!(store, store.read_twice(A)), on!(store, store.write(A, put(1)))], || {
            store.read_twice(A);
        });
        assert!(!store.assert_order(A).is_dirty(), "somebody has cleared it");
    });
}

#[test]
fn readers_answer_with_what_a_crash_cannot_lose() {
    readers_and_a_writer(Medium::Memory, Broken::No);
}

#[test]
fn readers_over_a_log_do_so_too() {
    readers_and_a_writer(Medium::Log, Broken::No);
}

/// Two writers, who take turns by the latch, and a reader.
fn writers_and_a_reader(medium: Medium, broken: Broken) {
    explore(move || {
        let store = Store::new(medium, broken);
        let next = Arc::new(AtomicU64::new(1));
        let write = |store: &Store, next: &AtomicU64| {
            let latched = store.hsit.latch(A);
            let word = put(next.fetch_add(1, Ordering::Relaxed));
            store.hsit.publish(A, word.dirty());
            drop(latched);
            store.pool.fence();
            store.pool.wait(store.pool.lsn()).expect("no faults");
            store.hsit.clear_dirty(A, word);
            store.assert_durable(A, seqno_of(word), "a writer");
        };
        let other = next.clone();
        run(vec![on!(store, store.read_twice(A)), on!(store, write(&store, &other))], || {
            write(&store, &next)
        });
        assert_eq!(store.assert_order(A), put(2), "the last write, durable");
    });
}

#[test]
fn a_newer_write_stays_whoever_clears_the_dirty_bit() {
    writers_and_a_reader(Medium::Memory, Broken::No);
}

#[test]
fn a_newer_write_stays_over_a_log() {
    writers_and_a_reader(Medium::Log, Broken::No);
}

/// A reader, a writer, and a mover that swings the word the writer published.
fn a_mover(medium: Medium, how: Swing) {
    explore(move || {
        let store = Store::new(medium, Broken::No);
        run(vec![on!(store, store.read_twice(A)), on!(store, store.relocate(A, 1, how))], || {
            store.write(A, put(1));
            store.write(A, put(2));
        });
        assert_eq!(seqno_of(store.assert_order(A)), 2);
    });
}

#[test]
fn a_moved_word_is_as_durable_as_the_write() {
    a_mover(Medium::Memory, swing);
}

#[test]
fn a_moved_word_is_durable_over_a_log() {
    a_mover(Medium::Log, swing);
}

/// A key is deleted, put and deleted again, and the first delete is late to clear its dirty bit.
fn deletes(word_of: fn(u64) -> Word) {
    explore(move || {
        let store = Store::new(Medium::Memory, Broken::No);
        store.write(A, put(1));
        let third = Arc::new(AtomicBool::new(false));
        let third_done = third.clone();
        let later = on!(store, {
            store.write(A, put(3));
            third_done.store(true, Ordering::Relaxed);
            let latched = store.hsit.latch(A);
            store.hsit.publish(A, word_of(4).dirty());
            drop(latched);
            store.pool.fence();
        });
        run(vec![later], || {
            let latched = store.hsit.latch(A);
            if store.hsit.word(A).clean() != put(1) {
                return;
            }
            store.hsit.publish(A, word_of(2).dirty());
            drop(latched);
            store.pool.fence();
            store.hsit.clear_dirty(A, word_of(2));
            // The put was answered before this read, so if it finds nothing, delete 4 is why.
            let third = third.load(Ordering::Relaxed);
            let word = store.hsit.settled(A).expect("no faults");
            if third && word.place() == Place::None {
                let after = store.pool.after_crash(store.at(A));
                let gone = after.iter().all(|word| in_dram(*word).place() == Place::None);
                assert!(gone, "delete 4 was answered, and a crash could leave {after:x?}");
            }
        });
    });
}

#[test]
fn a_delete_is_not_taken_for_another() {
    deletes(Word::deleted);
}

type Together = fn(&Store, &mut dyn FnMut());

fn together(store: &Store, publish: &mut dyn FnMut()) {
    store.hsit.together(&[A, B], publish);
}

/// A batch of two words, and a reader of both in each order.
fn a_batch(medium: Medium, how: Together) {
    for order in [[A, B], [B, A]] {
        explore(move || a_batch_and_a_reader(medium, how, order));
    }
}

fn a_batch_and_a_reader(medium: Medium, how: Together, order: [u64; 2]) {
    let store = Store::new(medium, Broken::No);
    let read_both = move |store: &Store| {
        let [first, second] = order.map(|entry| seqno_of(store.read(entry)));
        assert!(first <= second, "one word of a batch was seen without the other");
    };
    run(vec![on!(store, read_both(&store))], || {
        let latched = store.hsit.latch_all(&[A, B]);
        how(&store, &mut || {
            store.hsit.publish(A, put(1).dirty());
            store.hsit.publish(B, put(1).dirty());
            store.pool.fence();
        });
        drop(latched);
        store.pool.wait(store.pool.lsn()).expect("no faults");
        for entry in [A, B] {
            store.hsit.clear_dirty(entry, put(1));
            store.assert_durable(entry, 1, "a batch");
        }
    });
    for entry in [A, B] {
        assert_eq!(store.assert_order(entry), put(1));
        assert!(!store.hsit.aux(entry).is_pending());
    }
}

#[test]
fn a_batch_is_seen_whole() {
    a_batch(Medium::Memory, together);
}

#[test]
fn a_batch_is_seen_whole_over_a_log() {
    a_batch(Medium::Log, together);
}

// Canaries: the same models fail when the protocol is broken.

#[test]
#[should_panic(expected = "a crash could leave")]
fn a_word_that_is_not_flushed_is_noticed() {
    readers_and_a_writer(Medium::Memory, Broken::Flush);
}

#[test]
#[should_panic(expected = "a crash could leave")]
fn a_word_that_is_not_drained_is_noticed() {
    readers_and_a_writer(Medium::Memory, Broken::Fence);
}

#[test]
#[should_panic(expected = "a crash could leave")]
fn a_write_that_is_not_waited_for_is_noticed() {
    readers_and_a_writer(Medium::Log, Broken::Fence);
}

#[test]
#[should_panic(expected = "overwritten by an older one")]
fn a_dirty_bit_that_is_cleared_without_comparing_is_noticed() {
    writers_and_a_reader(Medium::Memory, Broken::Compare);
}

#[test]
#[should_panic(expected = "a crash could leave")]
fn a_mover_that_drops_the_dirty_bit_is_noticed() {
    a_mover(Medium::Memory, |hsit, entry, from, to| {
        let stands = hsit.word(entry).place() == from;
        if stands {
            hsit.publish(entry, to);
        }
        stands
    });
}

#[test]
#[should_panic(expected = "overwritten by an older one")]
fn a_mover_that_does_not_look_is_noticed() {
    a_mover(Medium::Memory, |hsit, entry, _, to| {
        hsit.publish(entry, to);
        true
    });
}

#[test]
#[should_panic(expected = "delete 4 was answered")]
fn deletes_whose_words_are_equal_are_noticed() {
    deletes(|_| Word::NONE);
}

#[test]
#[should_panic(expected = "seen without the other")]
fn a_batch_that_is_not_marked_is_noticed() {
    a_batch(Medium::Memory, |_, publish| publish());
}
