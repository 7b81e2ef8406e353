//! Ways to damage a store, as values: what failed is printed, and can be done again.

use super::damage::Base;
use super::rig::{Rig, Sizes};
use fastrand::Rng;
use std::ops::Range;
use tierdb_sim::World;

const PAGE: u64 = 4096;
const SECTOR: u64 = 512;
const LOG: &str = "fast/pool.log";

/// One way to damage a store.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are what the variants say")]
pub enum Harm {
    /// One bit of one byte.
    Flip { area: String, at: u64, bit: u32 },
    /// Bytes written over others.
    Bytes { area: String, at: u64, bytes: Vec<u8> },
    /// `len` zeros, from `at` on.
    Zeros { area: String, at: u64, len: u64 },
    /// Two ranges of the same length exchanged.
    Swap { area: String, one: u64, other: u64, len: u64 },
    /// The end of a file cut off.
    Cut { area: String, len: u64 },
    /// The contents of two files exchanged.
    Files { one: String, other: String },
    /// A pool or a file of another store in place of this one's.
    Foreign { area: String },
    /// A device as it was in the older copy of this number.
    Older { device: &'static str, copy: usize },
    /// A device with nothing on it.
    Emptied { device: &'static str },
    /// Random bytes everywhere in a pool, but for its header.
    Noise { seed: u64 },
}

impl Harm {
    /// The store of `base`, damaged.
    pub fn apply<S: Sizes>(&self, base: &Base<S>) -> World {
        match self {
            Harm::Older { device, copy } => return base.world.copy_with(device, &base.older[*copy]),
            Harm::Emptied { device } => {
                let empty = Rig::new(base.rig.sizes.clone(), None).bare_world();
                empty.add_dir("fast");
                return base.world.copy_with(device, &empty);
            }
            _ => {}
        }
        let world = base.world.copy();
        match self {
            Harm::Flip { area, at, bit } => world.flip_bit(area, *at, *bit),
            Harm::Bytes { area, at, bytes } => world.overwrite(area, *at, bytes),
            Harm::Zeros { area, at, len } => world.overwrite(area, *at, &vec![0; *len as usize]),
            Harm::Swap { area, one, other, len } => {
                let (first, second) =
                    (world.peek(area, *one, *len as usize), world.peek(area, *other, *len as usize));
                world.overwrite(area, *one, &second);
                world.overwrite(area, *other, &first);
            }
            Harm::Cut { area, len } => world.truncate(area, *len),
            Harm::Files { one, other } => world.swap(one, other),
            Harm::Foreign { area } => world.replace(area, &base.foreign, area),
            Harm::Older { .. } | Harm::Emptied { .. } => {}
            Harm::Noise { seed } => {
                let mut rng = Rng::with_seed(*seed);
                let len = base.rig.sizes.media().pool as usize - 64;
                let noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
                world.overwrite("pool", 64, &noise);
            }
        }
        world
    }

    /// Whether it changes a byte of `range` of `area`. Only of harm to parts of one file.
    fn touches(&self, name: &str, range: &Range<u64>) -> bool {
        let overlaps =
            |area: &str, at: u64, len: u64| area == name && at < range.end && range.start < at + len;
        match self {
            Harm::Flip { area, at, .. } => overlaps(area, *at, 1),
            Harm::Bytes { area, at, bytes } => overlaps(area, *at, bytes.len() as u64),
            Harm::Zeros { area, at, len } => overlaps(area, *at, *len),
            Harm::Swap { area, one, other, len } => {
                overlaps(area, *one, *len) || overlaps(area, *other, *len)
            }
            _ => false,
        }
    }
}

/// What an engine has in its pool, for damage.
pub struct PoolParts {
    /// Bytes that are not values.
    pub metadata: Vec<u64>,
    /// Pages with metadata.
    pub pages: Vec<u64>,
    /// Where values are.
    pub data: Range<u64>,
    /// Words that are changed one by one, and are not covered by the checksum of a whole.
    pub words: Vec<u64>,
    /// Bytes of the unit in which flash is filled.
    pub unit: u64,
}

/// An engine that knows where it keeps things.
pub trait Harmed: Sizes {
    /// What the pool of the store in `world` is made of.
    fn parts(&self, world: &World) -> PoolParts;
}

/// The parts of a store that are damaged in turn.
pub struct Places {
    /// Name and length of every pool and file.
    pub areas: Vec<(String, u64)>,
    /// Bytes of a byte-addressable pool that are not values.
    pub metadata: Vec<u64>,
    parts: PoolParts,
    /// Where there is something in each file, by sector.
    sectors: Vec<(String, Vec<u64>)>,
    /// The last block of the log. Damage to it cannot be told from a block that was being written.
    last_block: Range<u64>,
}

impl Places {
    /// The parts of the store of `base`.
    pub fn of<S: Harmed>(base: &Base<S>) -> Self {
        let areas: Vec<(String, u64)> =
            base.world.areas().into_iter().map(|area| (area.name, area.len)).collect();
        let files = areas.iter().filter(|(area, _)| area != "pool");
        let mut places = Places {
            sectors: files
                .map(|(area, len)| (area.clone(), sectors_in_use(&base.world, area, *len)))
                .collect(),
            areas,
            metadata: Vec::new(),
            parts: base.rig.sizes.parts(&base.world),
            last_block: 0..0,
        };
        match base.rig.log {
            None => places.metadata = places.parts.metadata.clone(),
            Some(_) => places.last_block = last_block(&base.world, places.len_of(LOG)),
        }
        places
    }

    fn len_of(&self, name: &str) -> u64 {
        self.areas.iter().find(|(area, _)| area == name).map_or(0, |(_, len)| *len)
    }

    /// Whether a store can tell that something has happened to it: not, if the last block of the log is gone.
    pub fn can_be_told(&self, harm: &Harm) -> bool {
        let another_log = matches!(harm, Harm::Foreign { area } if area == LOG);
        !another_log && !harm.touches(LOG, &self.last_block)
    }

    /// The `n`-th byte of the metadata flipped.
    pub fn metadata_flip(&self, n: usize, rng: &mut Rng) -> Harm {
        Harm::Flip { area: "pool".into(), at: self.metadata[n], bit: rng.u32(..8) }
    }

    /// A bit in every `stride`-th byte in use of the fast tier's files flipped.
    pub fn fast_flips(&self, stride: usize, mut rng: Rng) -> impl Iterator<Item = Harm> {
        let files = self.sectors.iter().filter(|(area, _)| area.starts_with("fast/"));
        let bytes = files.flat_map(|(area, sectors)| {
            sectors.iter().flat_map(move |sector| (*sector..sector + SECTOR).map(move |at| (area, at)))
        });
        bytes.step_by(stride).map(move |(area, at)| Harm::Flip { area: area.clone(), at, bit: rng.u32(..8) })
    }

    /// A bit of where values are, flipped.
    pub fn data_flip(&self, rng: &mut Rng) -> Harm {
        let (area, at) = match self.areas[rng.usize(..self.areas.len())].0.as_str() {
            "pool" => ("pool".into(), rng.u64(self.parts.data.clone())),
            _ => self.in_file(rng),
        };
        Harm::Flip { area, at, bit: rng.u32(..8) }
    }

    /// A byte of a file where there is something, or sometimes anywhere.
    fn in_file(&self, rng: &mut Rng) -> (String, u64) {
        let (area, sectors) = &self.sectors[rng.usize(..self.sectors.len())];
        if rng.u8(..8) == 0 || sectors.is_empty() {
            return (area.clone(), rng.u64(..self.len_of(area).max(1)));
        }
        (area.clone(), sectors[rng.usize(..sectors.len())] + rng.u64(..SECTOR))
    }

    /// A word, a few bytes or a stretch of any place overwritten with random bytes or zeros.
    pub fn scribble(&self, rng: &mut Rng) -> Harm {
        let (area, at) = match self.areas[rng.usize(..self.areas.len())].0.as_str() {
            "pool" => ("pool".into(), self.in_use(rng)),
            _ => {
                let (area, at) = self.in_file(rng);
                let last = self.len_of(&area).saturating_sub(PAGE);
                (area, at.min(last))
            }
        };
        let random = |rng: &mut Rng, len| std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        match rng.u8(..6) {
            0 | 1 => Harm::Bytes { area, at: at & !7, bytes: random(rng, 8) },
            2 => {
                let len = rng.usize(1..64);
                Harm::Bytes { area, at, bytes: random(rng, len) }
            }
            3 => {
                let len = rng.usize(64..1500);
                Harm::Bytes { area, at, bytes: random(rng, len) }
            }
            4 => Harm::Zeros { area, at: at & !63, len: 64 },
            _ => Harm::Zeros { area, at: at & !511, len: 512 },
        }
    }

    fn in_use(&self, rng: &mut Rng) -> u64 {
        match rng.bool() {
            true => rng.u64(self.parts.data.clone()),
            false => self.parts.pages[rng.usize(..self.parts.pages.len())] + rng.u64(..PAGE - 1500),
        }
    }

    /// One of the pool's single words overwritten.
    pub fn word(&self, rng: &mut Rng) -> Harm {
        let at = self.parts.words[rng.usize(..self.parts.words.len())];
        let word = match rng.u8(..5) {
            0 => 0,
            1 => u64::MAX - rng.u64(..64),
            2 => rng.u64(self.parts.data.clone()),
            3 => rng.u64(self.parts.data.clone()) / 32 * 32,
            _ => rng.u64(..),
        };
        Harm::Bytes { area: "pool".into(), at, bytes: word.to_le_bytes().to_vec() }
    }

    /// Every page zeroed, every file cut at every sector, pairs of sectors, pages, chunks and files exchanged, and
    /// files of another store.
    pub fn coarse(&self, rng: &mut Rng) -> Vec<Harm> {
        let mut harms = Vec::new();
        for (area, len) in &self.areas {
            let pages = (0..len / PAGE).map(|page| page * PAGE);
            harms.extend(pages.map(|at| Harm::Zeros { area: area.clone(), at, len: PAGE }));
            harms.push(Harm::Foreign { area: area.clone() });
            if area != "pool" {
                harms.extend((0..*len).step_by(512).map(|len| Harm::Cut { area: area.clone(), len }));
            }
            let mut swap = |unit: u64, rng: &mut Rng| {
                if *len < 2 * unit {
                    return;
                }
                let (one, other) = (rng.u64(..len / unit) * unit, rng.u64(..len / unit) * unit);
                harms.push(Harm::Swap { area: area.clone(), one, other, len: unit });
            };
            for _ in 0..200 {
                swap(PAGE, rng);
                swap(SECTOR, rng);
                swap(self.parts.unit, rng);
            }
        }
        for (number, (one, _)) in self.sectors.iter().enumerate() {
            let others = self.sectors[number + 1..].iter();
            harms.extend(others.map(|(other, _)| Harm::Files { one: one.clone(), other: other.clone() }));
        }
        harms
    }
}

/// The sectors of a file that are not all zeros.
fn sectors_in_use(world: &World, area: &str, len: u64) -> Vec<u64> {
    let bytes = world.peek(area, 0, len as usize);
    let used = bytes.chunks(SECTOR as usize).map(|sector| sector.iter().any(|byte| *byte != 0));
    (0..).step_by(SECTOR as usize).zip(used).filter(|(_, used)| *used).map(|(at, _)| at).collect()
}

/// Where the block with the highest number is.
fn last_block(world: &World, len: u64) -> Range<u64> {
    let log = world.peek(LOG, 0, len as usize);
    let word = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().expect("eight bytes"));
    let starts = (0..log.len()).step_by(PAGE as usize).filter(|at| log[*at..].starts_with(b"TierLogB"));
    let last = starts.max_by_key(|at| word(at + 16)).expect("blocks");
    let payload = word(last + 40) & 0xffff_ffff;
    last as u64..(last as u64 + 64 + payload).next_multiple_of(PAGE)
}
