//! What the targets share: harms done to whole stores, and checksums that are not compared.
//!
//! A store that was damaged by chance is nearly always refused by the first checksum. So an input names, beside
//! the harms, one place of the program where checksums are compared, and there every one fits: what is
//! behind it meets bytes that nobody wrote.

#![forbid(unsafe_code)]

pub mod entries;
pub mod slab;
pub mod store;

use arbitrary::Arbitrary;
use tierdb_base::mutant::{self, Site};
use tierdb_sim::World;

const PAGE: usize = 4096;

/// Where harm is done.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Spot {
    area: u8,
    page: u16,
    byte: u16,
}

/// One thing that is done to stored bytes.
#[derive(Arbitrary, Debug)]
pub enum Harm {
    /// A bit is flipped.
    Flip { at: Spot, bit: u8 },
    /// An aligned word is replaced.
    Word { at: Spot, word: u64 },
    /// An aligned half of a word is replaced.
    Half { at: Spot, half: u32 },
    /// A small number is added to a byte.
    Add { at: Spot, what: i8 },
    /// Bytes are overwritten.
    Bytes { at: Spot, bytes: Vec<u8> },
    /// Bytes are copied from elsewhere.
    Copy { from: Spot, to: Spot, len: u16 },
    /// Bytes are zeroed.
    Zeros { at: Spot, len: u16 },
    /// A file is cut.
    Cut { at: Spot },
}

/// Most harms that are done to one store: enough to change what belongs together.
const MOST: usize = 12;

/// A store to harm copies of.
pub struct Base {
    world: World,
    /// Areas, and of each the pages that are not empty.
    areas: Vec<(String, u64, Vec<usize>)>,
}

impl Base {
    pub fn new(world: World) -> Self {
        let areas = world.areas().into_iter().filter(|area| area.len > 0).map(|area| {
            let bytes = world.peek(&area.name, 0, area.len as usize);
            let used = |(page, bytes): (usize, &[u8])| bytes.iter().any(|byte| *byte != 0).then_some(page);
            let mut pages: Vec<usize> = bytes.chunks(PAGE).enumerate().filter_map(used).collect();
            pages.push(0);
            (area.name, area.len, pages)
        });
        let areas = areas.collect();
        Base { world, areas }
    }

    /// The area of `spot`, and where in it.
    fn find(&self, spot: Spot) -> (&str, u64, u64) {
        let (name, len, pages) = &self.areas[usize::from(spot.area) % self.areas.len()];
        let page = pages[usize::from(spot.page) % pages.len()];
        (name, (page * PAGE + usize::from(spot.byte) % PAGE) as u64, *len)
    }

    /// A copy with these harms.
    pub fn harmed(&self, harms: &[Harm]) -> World {
        let world = self.world.copy();
        for harm in harms.iter().take(MOST) {
            self.harm(&world, harm);
        }
        world
    }

    fn harm(&self, world: &World, harm: &Harm) {
        let put = |spot: Spot, align: u64, bytes: &[u8]| {
            let (area, at, _) = self.find(spot);
            overwrite(world, area, at / align * align, bytes);
        };
        let byte_at = |spot: Spot| {
            let (area, at, _) = self.find(spot);
            if at < len_of(world, area) { world.peek(area, at, 1)[0] } else { 0 }
        };
        match harm {
            Harm::Flip { at, bit } => put(*at, 1, &[byte_at(*at) ^ (1 << (bit % 8))]),
            Harm::Word { at, word } => put(*at, 8, &word.to_le_bytes()),
            Harm::Half { at, half } => put(*at, 4, &half.to_le_bytes()),
            Harm::Add { at, what } => put(*at, 1, &[byte_at(*at).wrapping_add_signed(*what)]),
            Harm::Bytes { at, bytes } => put(*at, 1, bytes),
            Harm::Zeros { at, len } => put(*at, 1, &vec![0; usize::from(*len)]),
            Harm::Copy { from, to, len } => {
                let (area, at, _) = self.find(*from);
                let len = u64::from(*len).min(len_of(world, area).saturating_sub(at));
                if len > 0 {
                    put(*to, 1, &world.peek(area, at, len as usize));
                }
            }
            Harm::Cut { at } => {
                let (area, at, len) = self.find(*at);
                if area.contains('/') {
                    world.truncate(area, at.min(len));
                }
            }
        }
    }
}

fn len_of(world: &World, area: &str) -> u64 {
    world.areas().iter().find(|found| found.name == area).map_or(0, |found| found.len)
}

/// As much of `bytes` as lies inside the area.
fn overwrite(world: &World, area: &str, at: u64, bytes: &[u8]) {
    let room = len_of(world, area).saturating_sub(at).min(bytes.len() as u64);
    if room > 0 {
        world.overwrite(area, at, &bytes[..room as usize]);
    }
}

/// Does these harms to bytes that are no area of a world.
pub fn harm_bytes(bytes: &[u8], harms: &[Harm]) -> Vec<u8> {
    let world = World::new();
    let len = bytes.len().next_multiple_of(PAGE);
    world.add_pool("bytes", len as u64);
    world.overwrite("bytes", 0, bytes);
    let base = Base { world, areas: vec![("bytes".into(), len as u64, (0..len / PAGE).collect())] };
    base.harmed(harms).peek("bytes", 0, bytes.len())
}

/// One file, harmed, and the place where a checksum is not compared.
#[derive(Arbitrary, Debug)]
pub struct FileInput<'a> {
    pub site: u8,
    harms: Vec<Harm>,
    /// In place of the file, where there are any.
    bytes: &'a [u8],
}

impl FileInput<'_> {
    /// The file to read in place of `whole`; `of` makes one of any bytes.
    pub fn file(&self, whole: &[u8], of: impl FnOnce(&[u8]) -> Vec<u8>) -> Vec<u8> {
        if self.bytes.is_empty() { harm_bytes(whole, &self.harms) } else { of(self.bytes) }
    }
}

/// The places where `work` compares checksums.
pub fn checksum_sites(work: impl FnOnce()) -> Vec<Site> {
    let seen = mutant::record(work);
    seen.into_keys().filter(|site| site.what == "checksum").collect()
}

/// Runs `work` with every checksum compared at one of `sites` taken to fit; none where `which` is none of theirs.
pub fn unchecked(sites: &[Site], which: u8, work: impl FnOnce()) {
    match sites.get(usize::from(which) % (sites.len() + 1)) {
        Some(site) => mutant::without(*site, work),
        None => work(),
    }
}
