//! Crash points and the images that media may hold after a crash there.
//!
//! A [`CrashPoint`] is what is certain on every device at one moment, and what is on its way. An image
//! is a world of its own in which, for each device, some of the latter has arrived. Devices have
//! timelines of their own, so the images of a point are the product of the states of its devices: the
//! corners always, the rest as sampled by a [`Budget`].

mod dir;
mod pool;

use crate::dir::DirState;
use crate::pool::PoolState;
use crate::world::{State, World};
use dir::{DirPoint, DirUnits};
use pool::{PoolPoint, PoolUnits};
use std::fmt;

/// What a pool guarantees of stores that are not fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Within a 64-byte line, what persists is a prefix in program order; across lines, any choice.
    X86,
    /// Any choice for every 8-byte word, among the values it had.
    Weak,
}

/// What media may do in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashModel {
    /// Of pools.
    pub words: Words,
    /// Bytes of a file that are written whole: 512 or 4,096.
    pub sector: usize,
    /// Whether a sector that was being written may hold neither its old nor its new content.
    pub garbage: bool,
}

impl CrashModel {
    /// Lines persist in program order; sectors of 512 bytes are old or new.
    pub const X86: CrashModel = CrashModel { words: Words::X86, sector: 512, garbage: false };
    /// Words persist in any order; sectors of 512 bytes are old, new or garbage.
    pub const WEAK: CrashModel = CrashModel { words: Words::Weak, sector: 512, garbage: true };
    /// Both. What passes them relies on no order that a fence or a sync does not give.
    pub const BOTH: [CrashModel; 2] = [Self::X86, Self::WEAK];
}

/// How many images of each kind to make at a crash point. A unit is a line or word of a pool, or a
/// change of a file or of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The corner where nothing that was uncertain persists on any device.
    pub none: bool,
    /// The corner where everything does, as after the death of a process.
    pub all: bool,
    /// Per device: images with one uncertain unit alone, the newest first.
    pub one_in: usize,
    /// Per device: images with all uncertain units but one.
    pub one_out: usize,
    /// Per device: images with all uncertain units, one of them in part.
    pub torn: usize,
    /// Images with a random choice on every device.
    pub random: usize,
}

impl Default for Budget {
    /// Both corners and four of each other kind, or two of torn ones.
    fn default() -> Self {
        Budget { none: true, all: true, one_in: 4, one_out: 4, torn: 2, random: 4 }
    }
}

impl Budget {
    /// Everything survives, as when a process is killed: finds no missing flush, fence or sync.
    pub const KILL: Budget = Budget { none: false, all: true, one_in: 0, one_out: 0, torn: 0, random: 0 };
    /// The corners and one random state.
    pub const SMALL: Budget = Budget { none: true, all: true, one_in: 1, one_out: 1, torn: 0, random: 1 };
}

/// What becomes of a device's uncertain units. The number is that of a unit, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    None,
    All,
    OneIn(usize),
    OneOut(usize),
    Torn(usize),
    Random,
}

/// What becomes of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Kept,
    Part,
}

impl Choice {
    /// The fate of `unit`. In a random image a quarter of the units persist in part, and `density`
    /// eighths of the others whole.
    pub fn fate(self, unit: usize, density: u8, rng: &mut fastrand::Rng) -> Fate {
        let kept = |kept| if kept { Fate::Kept } else { Fate::Lost };
        match self {
            Choice::None => Fate::Lost,
            Choice::All => Fate::Kept,
            Choice::OneIn(one) => kept(one == unit),
            Choice::OneOut(one) => kept(one != unit),
            Choice::Torn(one) if one == unit => Fate::Part,
            Choice::Torn(_) => Fate::Kept,
            Choice::Random if rng.u8(0..4) == 0 => Fate::Part,
            Choice::Random => kept(rng.u8(0..8) < density),
        }
    }
}

/// Share of the units kept in a random image, in eighths: few, half or most.
pub(crate) fn density(rng: &mut fastrand::Rng) -> u8 {
    [1, 4, 7][rng.usize(0..3)]
}

/// Mixes numbers into a seed or a fingerprint.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Every device at one moment: what is on media for certain, and what is on its way. Stores and writes
/// made later do not reach it.
pub struct CrashPoint {
    event: u64,
    pools: Vec<PoolPoint>,
    dirs: Vec<DirPoint>,
}

impl World {
    /// This moment as a crash point. Costs a reference count for each uncertain line and change.
    pub fn capture(&self) -> CrashPoint {
        let event = self.events();
        let state = self.state();
        CrashPoint {
            event,
            pools: state.pools.iter().map(PoolPoint::new).collect(),
            dirs: state.dirs.iter().map(DirPoint::new).collect(),
        }
    }

    /// An independent world whose media hold all that this one's programs see, as on a copy of the disks.
    pub fn copy(&self) -> World {
        self.capture().everything()
    }

    /// An independent world as it is after the death of a process: programs see in it what they see in this one, and of
    /// that no more is certain than here.
    pub fn killed(&self) -> World {
        let state = self.state();
        World::from_state(State {
            pools: state.pools.iter().map(PoolState::killed).collect(),
            dirs: state.dirs.iter().map(DirState::killed).collect(),
        })
    }
}

impl CrashPoint {
    /// The number of the event that was about to happen.
    pub fn event(&self) -> u64 {
        self.event
    }

    /// Whether all that programs see is on media for certain, so that there is one image.
    pub fn is_settled(&self) -> bool {
        self.pools.iter().all(PoolPoint::is_settled) && self.dirs.iter().all(DirPoint::is_settled)
    }

    /// The image in which everything has reached media.
    pub fn everything(&self) -> World {
        self.corner(Choice::All)
    }

    /// The image in which nothing uncertain has reached media.
    pub fn nothing(&self) -> World {
        self.corner(Choice::None)
    }

    fn corner(&self, choice: Choice) -> World {
        let choices = vec![choice; self.pools.len() + self.dirs.len()];
        let units = Units::new(self, &[CrashModel::X86]);
        self.outcome(&units, &Plan { model: CrashModel::X86, choices }, 0).1()
    }

    /// The distinct images of this point that `budget` asks for, in each of `models`. The same seed gives
    /// the same images.
    pub fn images<'a>(&'a self, models: &[CrashModel], seed: u64, budget: &Budget) -> Images<'a> {
        let seed = mix(seed, self.event);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut plans = Vec::new();
        let units = Units::new(self, models);
        for model in models {
            plan(&units.counts(model.words), *model, budget, &mut rng, &mut plans);
        }
        Images { point: self, seed, plans, units, next: 0, seen: Vec::new() }
    }

    /// The fingerprint of the image that `plan` describes, and how to make it.
    fn outcome<'a>(
        &'a self,
        units: &'a Units,
        plan: &Plan,
        seed: u64,
    ) -> (u64, impl FnOnce() -> World + use<'a>) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut print = 0;
        let mut choices = plan.choices.iter();
        let mut next = || *choices.next().unwrap_or(&Choice::None);
        let mut pools = Vec::with_capacity(self.pools.len());
        for (pool, units) in self.pools.iter().zip(units.pools(plan.model.words)) {
            let words = pool.outcome(units, plan.model.words, next(), &mut rng);
            print = mix(print, words.iter().fold(0, |sum, (at, word)| mix(sum, at ^ word.rotate_left(32))));
            pools.push(words);
        }
        let mut dirs = Vec::with_capacity(self.dirs.len());
        for (dir, units) in self.dirs.iter().zip(&units.dirs) {
            let outcome = dir.outcome(units, &plan.model, next(), &mut rng);
            print = mix(print, dir.fingerprint(units, &outcome, seed));
            dirs.push(outcome);
        }
        let make = move || {
            World::from_state(State {
                pools: self.pools.iter().zip(pools).map(|(pool, words)| pool.image(&words)).collect(),
                dirs: self.dirs.iter().zip(dirs).map(|(dir, outcome)| dir.image(outcome, seed)).collect(),
            })
        };
        (print, make)
    }
}

/// The units of every device, and what is worked out once for all images of a point.
struct Units {
    pools: Vec<(Words, Vec<PoolUnits>)>,
    dirs: Vec<DirUnits>,
}

impl Units {
    fn new(point: &CrashPoint, models: &[CrashModel]) -> Self {
        let mut pools: Vec<(Words, Vec<PoolUnits>)> = Vec::new();
        for words in models.iter().map(|model| model.words) {
            if pools.iter().all(|(known, _)| *known != words) {
                pools.push((words, point.pools.iter().map(|pool| pool.units(words)).collect()));
            }
        }
        Units { pools, dirs: point.dirs.iter().map(DirPoint::units).collect() }
    }

    fn pools(&self, words: Words) -> &[PoolUnits] {
        self.pools.iter().find(|(known, _)| *known == words).map_or(&[], |(_, units)| units)
    }

    /// How many units each device has, pools first.
    fn counts(&self, words: Words) -> Vec<usize> {
        self.pools(words).iter().map(PoolUnits::len).chain(self.dirs.iter().map(DirUnits::len)).collect()
    }
}

/// An image to be made: what becomes of each device, pools first.
struct Plan {
    model: CrashModel,
    choices: Vec<Choice>,
}

fn plan(
    counts: &[usize],
    model: CrashModel,
    budget: &Budget,
    rng: &mut fastrand::Rng,
    plans: &mut Vec<Plan>,
) {
    let mut add = |choices| plans.push(Plan { model, choices });
    let everywhere = |choice| vec![choice; counts.len()];
    if budget.none {
        add(everywhere(Choice::None));
    }
    if budget.all {
        add(everywhere(Choice::All));
    }
    let busy: Vec<usize> = (0..counts.len()).filter(|device| counts[*device] > 0).collect();
    let on = |device: usize, choice, rest: Choice| {
        let mut choices = vec![rest; counts.len()];
        choices[device] = choice;
        choices
    };
    for &device in &busy {
        if budget.none && budget.all && busy.len() > 1 {
            add(on(device, Choice::None, Choice::All));
            add(on(device, Choice::All, Choice::None));
        }
        let mut ones = Vec::new();
        ones.extend(sample(counts[device], budget.one_in, rng).map(Choice::OneIn));
        ones.extend(sample(counts[device], budget.one_out, rng).map(Choice::OneOut));
        ones.extend(sample(counts[device], budget.torn, rng).map(Choice::Torn));
        for one in ones {
            let rest = [Choice::None, Choice::All, Choice::Random][rng.usize(0..3)];
            add(on(device, one, rest));
        }
    }
    if !busy.is_empty() {
        for _ in 0..budget.random {
            let choices = counts.iter().map(|&count| match rng.u8(0..8) {
                _ if busy.len() == 1 || count == 0 => Choice::Random,
                0 => Choice::None,
                1 => Choice::All,
                2 => Choice::OneIn(rng.usize(0..count)),
                3 => Choice::OneOut(rng.usize(0..count)),
                _ => Choice::Random,
            });
            let choices = choices.collect();
            add(choices);
        }
    }
}

/// Up to `want` of `count` units: the newest, which a missing flush concerns most often, then any.
fn sample(count: usize, want: usize, rng: &mut fastrand::Rng) -> impl Iterator<Item = usize> {
    let newest = if count <= want { count } else { want.div_ceil(2) };
    (0..want.min(count)).map(move |i| if i < newest { i } else { rng.usize(newest..count) })
}

/// The images of a crash point, made one by one.
pub struct Images<'a> {
    point: &'a CrashPoint,
    seed: u64,
    plans: Vec<Plan>,
    units: Units,
    next: usize,
    seen: Vec<u64>,
}

/// What media hold after a crash, as a world of its own that has just been switched on.
pub struct Image {
    /// The world, ready to be opened, and to crash again.
    pub world: World,
    /// Its number at its point, for replay.
    pub index: usize,
    model: CrashModel,
    choices: Vec<Choice>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image {} ({:?}", self.index, self.model.words)?;
        let state = self.world.state();
        let names = state.pools.iter().map(|pool| &pool.name).chain(state.dirs.iter().map(|dir| &dir.name));
        for (name, choice) in names.zip(&self.choices) {
            write!(f, ", {name}: {choice:?}")?;
        }
        f.write_str(")")
    }
}

impl Iterator for Images<'_> {
    type Item = Image;

    fn next(&mut self) -> Option<Image> {
        loop {
            let index = self.next;
            let plan = self.plans.get(index)?;
            self.next += 1;
            let (print, make) = self.point.outcome(&self.units, plan, mix(self.seed, index as u64 + 1));
            if !self.seen.contains(&print) {
                self.seen.push(print);
                return Some(Image {
                    world: make(),
                    index,
                    model: plan.model,
                    choices: plan.choices.clone(),
                });
            }
        }
    }
}
