//! Ways to damage a store, as values: what failed is printed, and can be done again.

use crate::base::{Base, Mode};
use fastrand::Rng;
use tierdb_sim::World;

const PAGE: u64 = 4096;

/// One way to damage a store.
#[derive(Clone, Debug)]
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
    /// A device as it was in the older copy of this number.
    Older { device: &'static str, copy: usize },
    /// Random bytes everywhere in a pool, but for its header.
    Noise { seed: u64 },
}

impl Harm {
    /// The store of `base`, damaged.
    pub fn apply(&self, base: &Base) -> World {
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
            Harm::Older { device, copy } => return base.world.copy_with(device, &base.older[*copy]),
            Harm::Noise { seed } => {
                let mut rng = Rng::with_seed(*seed);
                let len = base.sizes.pool as usize - 64;
                let noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
                world.overwrite("pool", 64, &noise);
            }
        }
        world
    }
}

/// The parts of a store that are damaged in turn.
pub struct Places {
    /// Name and length of every pool and file.
    pub areas: Vec<(String, u64)>,
    /// Bytes of the pool that are not write buffer.
    pub metadata: Vec<u64>,
    /// Where pages of the pool in use are.
    pub pages: Vec<u64>,
    /// The write buffer.
    pub ring: std::ops::Range<u64>,
    chunk: u64,
}

impl Places {
    pub fn of(base: &Base) -> Self {
        let areas = base.world.areas().into_iter().map(|area| (area.name, area.len)).collect();
        let ring = 2 * PAGE..2 * PAGE + u64::from(base.sizes.rings) * base.sizes.ring;
        let mut places = Places {
            areas,
            metadata: Vec::new(),
            pages: vec![0, PAGE],
            ring: ring.clone(),
            chunk: base.sizes.chunk,
        };
        if base.mode == Mode::Memory {
            let table = base.world.peek("pool", PAGE, PAGE as usize);
            let first = ring.end / PAGE;
            let used = |page: &u64| table[(page - first) as usize * 8] != 0;
            places.pages.extend((first..base.sizes.pool / PAGE).filter(used).map(|page| page * PAGE));
            places.metadata = places.pages.iter().flat_map(|page| *page..page + PAGE).collect();
        }
        places
    }

    fn area(&self, rng: &mut Rng) -> (String, u64) {
        self.areas[rng.usize(..self.areas.len())].clone()
    }

    /// The `n`-th byte of the metadata flipped.
    pub fn metadata_flip(&self, n: usize, rng: &mut Rng) -> Harm {
        Harm::Flip { area: "pool".into(), at: self.metadata[n], bit: rng.u32(..8) }
    }

    /// A bit of the write buffer, or of a file, flipped.
    pub fn data_flip(&self, rng: &mut Rng) -> Harm {
        let (area, len) = self.area(rng);
        let at = if area == "pool" { rng.u64(self.ring.clone()) } else { rng.u64(..len) };
        Harm::Flip { area, at, bit: rng.u32(..8) }
    }

    /// A word, a few bytes or a stretch of any place overwritten with random bytes or zeros.
    pub fn scribble(&self, rng: &mut Rng) -> Harm {
        let (area, len) = self.area(rng);
        let at = match &*area {
            "pool" => self.in_use(rng),
            _ => rng.u64(..len - PAGE),
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
            true => rng.u64(self.ring.clone()),
            false => self.pages[rng.usize(..self.pages.len())] + rng.u64(..PAGE - 1500),
        }
    }

    /// Words of the pool's header after its checksum: the index's head, the seqno limit, tails and commit slots.
    pub fn header_word(&self, rng: &mut Rng) -> Harm {
        let at = [64, 72, 128, 136][rng.usize(..4)];
        let word = match rng.u8(..5) {
            0 => 0,
            1 => u64::MAX - rng.u64(..64),
            2 => rng.u64(self.ring.clone()),
            3 => rng.u64(self.ring.clone()) / 32 * 32,
            _ => rng.u64(..),
        };
        Harm::Bytes { area: "pool".into(), at, bytes: word.to_le_bytes().to_vec() }
    }

    /// Every page zeroed, every file cut at every sector, and pairs of pages and chunks exchanged.
    pub fn coarse(&self, rng: &mut Rng) -> Vec<Harm> {
        let mut harms = Vec::new();
        for (area, len) in &self.areas {
            let pages = (0..len / PAGE).map(|page| page * PAGE);
            harms.extend(pages.map(|at| Harm::Zeros { area: area.clone(), at, len: PAGE }));
            if area != "pool" {
                harms.extend((0..*len).step_by(512).map(|len| Harm::Cut { area: area.clone(), len }));
            }
            let mut swap = |unit: u64, rng: &mut Rng| {
                let (one, other) = (rng.u64(..len / unit) * unit, rng.u64(..len / unit) * unit);
                harms.push(Harm::Swap { area: area.clone(), one, other, len: unit });
            };
            for _ in 0..200 {
                swap(PAGE, rng);
                swap(512, rng);
                if *len > self.chunk {
                    swap(self.chunk, rng);
                }
            }
        }
        harms
    }
}
