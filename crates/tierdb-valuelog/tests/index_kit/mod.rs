//! What the tests of the key index share: a pool with pages and an index, and keys of all kinds.

#![allow(dead_code, reason = "each test uses some of it")]

use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::Result;
use tierdb_engine::Damage;
use tierdb_pmem::{Pool, Stage};
use tierdb_valuelog::index::{EntryId, Index};
use tierdb_valuelog::pages::{PAGE, PageNo, PageUse, Pages};

pub const HEAD: u64 = 64;
pub const TABLE: u64 = PAGE;
pub const SEED: u64 = 0x5eed;

/// Number of the first page in a pool of `len` bytes.
pub fn first_page(len: u64) -> u64 {
    1 + (len / PAGE * 8).div_ceil(PAGE)
}

/// All pages of `pool` but the first few, free.
pub fn format<P: Pool>(pool: Arc<P>) -> Arc<Pages<P>> {
    let first = first_page(pool.len());
    let mut stage = Stage::new(&*pool);
    let count = pool.len() / PAGE - first;
    let pages = Arc::new(Pages::format(pool.clone(), &mut stage, TABLE, first, count, SEED));
    let _drained = stage.drain();
    pages
}

/// A new index with the pages of `pool`.
pub fn create<P: Pool>(pool: Arc<P>) -> (Index<P>, Arc<Pages<P>>) {
    let pages = format(pool.clone());
    (Index::create(pool, pages.clone(), HEAD).expect("create"), pages)
}

/// An index, its pages, and what is damaged in it.
pub type Opened<P> = (Index<P>, Arc<Pages<P>>, Vec<Damage>);

/// The pages of what [`create`] made, of which none can be had yet.
pub fn pages_of<P: Pool>(pool: Arc<P>) -> Pages<P> {
    let (first, all) = (first_page(pool.len()), pool.len() / PAGE);
    Pages::open(pool, TABLE, first, all - first, SEED)
}

/// The pages that the table says are of `kind`.
pub fn pages_of_kind<P: Pool>(pages: &Pages<P>, kind: u8) -> Vec<PageNo> {
    let is_it = |of: &PageUse| matches!(of, PageUse::Used { kind: own, .. } if *own == kind);
    pages.kinds().filter(|(_, of)| is_it(of)).map(|(page, _)| page).collect()
}

/// Opens what [`create`] made.
pub fn open<P: Pool>(pool: Arc<P>, threads: usize) -> Result<Opened<P>> {
    let pages = Arc::new(pages_of(pool.clone()));
    let (index, damage) = Index::open(pool, pages.clone(), HEAD, threads)?;
    pages.settle();
    Ok((index, pages, damage))
}

/// Keys of all lengths, with long common prefixes, runs of 0x00 and 0xff, and long ones in blobs.
pub fn odd_key(rng: &mut fastrand::Rng, variety: u32) -> Vec<u8> {
    let n = rng.u32(..variety);
    match n % 11 {
        0 => vec![0xff; 1 + n as usize % 300],
        1 => vec![0; 1 + n as usize % 40],
        2 => [&[b'p'; 200][..], &n.to_be_bytes()].concat(),
        3 => [&[b'p'; 400][..], &n.to_be_bytes()].concat(),
        4 => [&n.to_be_bytes()[..], &vec![n as u8; 240 + n as usize % 20]].concat(),
        5 => [&n.to_le_bytes()[..], &vec![7; 300 + n as usize % 3700]].concat(),
        6 => format!("user{n:012}").into_bytes(),
        7 => n.to_be_bytes()[3 - n.to_be_bytes().iter().rev().take_while(|b| **b != 0).count().min(3)..]
            .to_vec(),
        8 => format!("k/{}", n / 11).into_bytes(),
        9 => [b"k/".as_slice(), &vec![b'/'; n as usize % 60]].concat(),
        _ => (n.wrapping_mul(0x9e37_79b9)).to_be_bytes().repeat(4),
    }
}

/// All entries, by scans of a few keys at a time.
pub fn all<P: Pool>(index: &Index<P>, reverse: bool, step: usize) -> Result<Vec<(Vec<u8>, EntryId)>> {
    let mut entries: Vec<(Vec<u8>, EntryId)> = Vec::new();
    loop {
        let before = entries.len();
        let last = entries.last().map(|(key, _)| key.clone());
        let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        index.scan(from, reverse, step, |key, id| entries.push((key.to_vec(), id)))?;
        if entries.len() < before + step {
            return Ok(entries);
        }
    }
}
