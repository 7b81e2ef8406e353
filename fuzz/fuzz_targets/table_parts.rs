//! The decoders of a table's parts, each over a part that was harmed or over any bytes.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tierdb_base::Location;
use tierdb_base::mutant::Site;
use tierdb_device::{Cause, Meter};
use tierdb_fuzz::{Harm, checksum_sites, harm_bytes, unchecked};
use tierdb_sim::World;
use tierdb_table::block::Block;
use tierdb_table::{EntryRef, Filter, Footer, Index, TableDir, TableId, WriterOptions, file_name};

const ID: TableId = TableId { store: 7, number: 1 };

struct Parts {
    block: Vec<u8>,
    index: Vec<u8>,
    filter: Vec<u8>,
    footer: Vec<u8>,
    sites: Vec<Site>,
}

static PARTS: LazyLock<Parts> = LazyLock::new(|| {
    let world = World::new();
    let tables = TableDir::new(world.add_dir("flash"), ID.store, Meter::new(), None);
    let options = WriterOptions { allocate: 64 << 10, filter: true };
    let mut writer = tables.create(ID.number, Cause::Gc, &options).expect("room");
    for number in 0..200u64 {
        let key = format!("row{number:04}");
        let value = vec![number as u8; number as usize];
        writer.add(&EntryRef { key: key.as_bytes(), seqno: number, value: Some(&value) }).expect("in order");
    }
    let table = writer.finish().expect("no faults");
    let place = table.index().place(0);
    let area = format!("flash/{}", file_name(ID.number));
    let mut parts = Parts {
        block: world.peek(&area, place.start, (place.end - place.start) as usize),
        index: table.index().bytes().to_vec(),
        filter: table.filter().expect("it has one").bytes().to_vec(),
        footer: table.footer().encode(&ID),
        sites: Vec::new(),
    };
    parts.sites = checksum_sites(|| {
        for part in [Part::Block, Part::Index, Part::Filter, Part::Footer] {
            decode(part, part.of(&parts), b"row0007", 9);
        }
    });
    parts
});

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Part {
    Block,
    Index,
    Filter,
    Footer,
}

impl Part {
    fn of(self, parts: &Parts) -> &[u8] {
        match self {
            Part::Block => &parts.block,
            Part::Index => &parts.index,
            Part::Filter => &parts.filter,
            Part::Footer => &parts.footer,
        }
    }
}

fn decode(part: Part, bytes: &[u8], key: &[u8], seqno: u64) {
    match part {
        Part::Block => {
            let Ok(block) = Block::decode(bytes, &ID, 0) else { return };
            let mut own = Vec::new();
            for entry in 0..block.count() {
                let _ = block.entry(entry, &mut own);
            }
            let _ = (block.lower_bound(key, seqno), block.get(key, seqno));
        }
        Part::Index => {
            let Ok(index) = Index::decode(bytes, &ID) else { return };
            for block in 0..index.blocks() {
                let _ = (index.place(block), index.separator(block));
            }
            let _ = (index.largest(), index.find(key, seqno));
        }
        Part::Filter => {
            let Ok(filter) = Filter::decode(bytes, &ID) else { return };
            let _ = (filter.may_contain(key), filter.keys());
        }
        Part::Footer => {
            let Ok(footer) = Footer::decode(bytes, &ID, &Location::new("footer", 0)) else { return };
            let _ = (footer.covers(key), footer.stored_len(), footer.at(), footer.encode(&ID));
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    part: Part,
    site: u8,
    harms: Vec<Harm>,
    key: &'a [u8],
    seqno: u64,
    /// In place of the part, where there are any.
    bytes: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let parts = &*PARTS;
    let bytes = match input.bytes {
        [] => harm_bytes(input.part.of(parts), &input.harms),
        bytes => bytes.to_vec(),
    };
    unchecked(&parts.sites, input.site, || decode(input.part, &bytes, input.key, input.seqno));
});
