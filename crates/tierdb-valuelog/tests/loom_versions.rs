//! Words that are kept for snapshots, under every interleaving of a write and the close of a snapshot.
//!
//! A word that a write has kept is given up by the close of the last snapshot that sees it, and nothing is left.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-valuelog --test loom_versions`
#![cfg(loom)]

use loom::thread;
use std::sync::Arc;
use tierdb_sync::switch::{Memory, explore, explore_in};
use tierdb_valuelog::modelled::{Place, Versions, Word};

const ENTRY: u64 = 1;

/// Write 9 replaces a word while the newest of the snapshots at `seqnos` is closed; then the others are closed, the newest
/// first.
fn keep_and_close(seqnos: &[u64]) {
    let versions = Arc::new(Versions::new());
    for seqno in seqnos {
        versions.open(|note| {
            note(*seqno);
            *seqno
        });
    }
    let old = Word::new(Place::Ring(32), 1, 32, false);
    let writer = versions.clone();
    let writer = thread::spawn(move || writer.keep(ENTRY, 9, old));
    let (newest, others) = seqnos.split_last().expect("a snapshot");
    let mut dropped = versions.close(*newest, || {});
    let is_kept = writer.join().expect("no panic");
    others.iter().rev().for_each(|seqno| dropped.extend(versions.close(*seqno, || {})));
    assert_eq!(dropped, if is_kept { vec![(ENTRY, old)] } else { Vec::new() }, "kept: {is_kept}");
    assert!(versions.is_empty(), "a word is left");
}

#[test]
fn the_only_snapshot_gives_up_what_is_kept_for_it() {
    explore(|| keep_and_close(&[5]));
}

#[test]
fn a_word_goes_from_one_snapshot_to_the_next() {
    explore(|| keep_and_close(&[5, 7]));
}

/// The count of a shard and the newest snapshot are stored by one side and looked at by the other.
#[test]
#[should_panic(expected = "kept: true")]
fn accesses_that_are_not_in_one_order_are_noticed() {
    explore_in(Memory::NoSeqCst, 3, || keep_and_close(&[5]));
}
