//! Random entries, tables made of them, and what a model says of them.

#![allow(dead_code)] // each test crate uses its part

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{Result, Seqno};
use tierdb_device::{Cause, Meter};
use tierdb_sim::{SimDir, SimFile, World};
use tierdb_table::{
    Direction, Entry, EntryRef, ReadAhead, Source, Table, TableDir, TableId, WriterOptions, file_name,
};

pub const STORE: u64 = 0x5eed;

/// Versions in the order of a table: by key, and of one key the newest first.
pub type Model = BTreeMap<At, Option<Vec<u8>>>;
pub type At = (Vec<u8>, Reverse<Seqno>);

pub fn tables(world: &World) -> TableDir<SimDir> {
    TableDir::new(world.dir("flash"), STORE, Meter::new(), None)
}

pub fn new_world() -> World {
    let world = World::new();
    world.add_dir("flash");
    world
}

/// The file of table `number`, as damage is done to it.
pub fn area(number: u64) -> String {
    format!("flash/{}", file_name(number))
}

pub fn id(number: u64) -> TableId {
    TableId { store: STORE, number }
}

/// What entries are like.
#[derive(Clone, Copy)]
pub struct Kind {
    pub keys: usize,
    /// Longest key made of random bytes; others are short and have common beginnings.
    pub key_len: usize,
    pub value_len: usize,
    /// Most versions of one key.
    pub versions: u64,
}

pub fn key_of(rng: &mut fastrand::Rng, kind: &Kind) -> Vec<u8> {
    match rng.u8(..8) {
        0 => (0..rng.usize(1..=kind.key_len)).map(|_| rng.u8(..3) * 127).collect(),
        1 => vec![rng.u8(..4); rng.usize(1..=kind.key_len)],
        _ => format!("user{:06}", rng.usize(..kind.keys * 4)).into_bytes(),
    }
}

pub fn random_model(rng: &mut fastrand::Rng, kind: &Kind) -> Model {
    let mut model = Model::new();
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..kind.keys {
        keys.insert(key_of(rng, kind));
    }
    for key in keys {
        let versions = if rng.u8(..4) == 0 { rng.u64(1..=kind.versions) } else { 1 };
        let mut seqno = rng.u64(1..1000);
        for _ in 0..versions {
            let value = (rng.u8(..6) > 0).then(|| {
                let len = if rng.u8(..10) == 0 { kind.value_len } else { kind.value_len.min(200) };
                let byte = rng.u8(..);
                vec![byte; rng.usize(..=len)]
            });
            model.insert((key.clone(), Reverse(seqno)), value);
            let apart = rng.u32(1..40);
            seqno += rng.u64(1..1 << apart);
        }
    }
    model
}

pub fn entry_of<'m>(at: (&'m At, &'m Option<Vec<u8>>)) -> EntryRef<'m> {
    EntryRef { key: &at.0.0, seqno: at.0.1.0, value: at.1.as_deref() }
}

pub fn write(tables: &TableDir<SimDir>, number: u64, model: &Model) -> Result<Table<SimFile>> {
    let mut writer = tables.create(number, Cause::Gc, &WriterOptions { allocate: 64 << 10, filter: true })?;
    for entry in model.iter().map(entry_of) {
        writer.add(&entry)?;
    }
    writer.finish()
}

pub fn open(world: &World, number: u64) -> Result<Arc<Table<SimFile>>> {
    tables(world).open(number, Cause::Recovery).map(Arc::new)
}

/// What the model says a lookup finds.
pub fn expected(model: &Model, key: &[u8], seqno: Seqno) -> Option<(Seqno, Option<Vec<u8>>)> {
    let from = (key.to_vec(), Reverse(seqno));
    let (found, value) = model.range(from..).next()?;
    (found.0 == key).then(|| (found.1.0, value.clone()))
}

/// Up to `most` entries of a source that was not advanced yet, and the error that ended them.
pub fn drain(source: &mut impl Source, most: usize) -> (Vec<Entry>, Option<tierdb_base::Error>) {
    let mut out = Vec::new();
    while out.len() < most {
        if let Err(error) = source.advance() {
            assert!(source.entry().is_none(), "no entry after an error");
            assert_eq!(source.advance().expect_err("it stays").to_string(), error.to_string());
            return (out, Some(error));
        }
        let Some(entry) = source.entry() else {
            source.advance().expect("the end stays the end");
            assert!(source.entry().is_none());
            break;
        };
        out.push(entry.to_owned());
    }
    (out, None)
}

pub fn all(table: &Arc<Table<SimFile>>, direction: Direction) -> (Vec<Entry>, Option<tierdb_base::Error>) {
    let ahead = ReadAhead { first: 4096, most: 32 << 10 };
    let range = (Bound::Unbounded, Bound::Unbounded);
    drain(&mut table.iter(range, direction, ahead, Cause::Foreground), usize::MAX)
}

pub fn entries(model: &Model) -> Vec<Entry> {
    model.iter().map(|at| entry_of(at).to_owned()).collect()
}
