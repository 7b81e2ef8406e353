//! Scripts of random operations, run against an engine and the oracle of what a crash may leave.

use crate::conformance::{Oracle, Ticket};
use crate::{Durability, Engine, KeyRange, WriteBatch};
use fastrand::Rng;
use tierdb_base::ErrorKind;
use tierdb_sim::crashtest;

/// What the checker knows at a crash.
pub type Known = crashtest::Oracle<Oracle>;

/// Steps of a turn, about.
pub(super) const TURNS: [u8; 3] = [2, 5, 10];

/// What a script does.
#[derive(Clone, Debug)]
pub struct Script {
    /// What failures call it.
    pub name: &'static str,
    /// Steps of each thread.
    pub ops: usize,
    /// Different keys.
    pub keys: usize,
    /// Of eight keys that are written, how many are one of two.
    pub hot: u8,
    /// Bytes of the longest value.
    pub longest: usize,
    /// Of eight writes, how many are grouped.
    pub grouped: u8,
    /// Of 32 steps, how many move what is stored, besides the few in every script.
    pub moves: u8,
    /// Of 32 steps, how many read one of a few keys, besides the few in every script.
    pub reads: u8,
    /// One: two take turns on one thread. More: so many at once, each with keys of its own.
    pub threads: u32,
}

impl Script {
    /// Few keys, written again and again.
    pub const OVERWRITE: Script = Script {
        name: "overwrite",
        ops: 60,
        keys: 6,
        hot: 0,
        longest: 900,
        grouped: 0,
        moves: 0,
        reads: 0,
        threads: 1,
    };
    /// Many small keys come and go.
    pub const CHURN: Script = Script {
        name: "churn",
        ops: 90,
        keys: 400,
        hot: 0,
        longest: 40,
        grouped: 0,
        moves: 0,
        reads: 0,
        threads: 1,
    };
    /// Values so long that they are kept in parts.
    pub const LONG: Script = Script {
        name: "long",
        ops: 24,
        keys: 4,
        hot: 0,
        longest: 40_000,
        grouped: 0,
        moves: 0,
        reads: 0,
        threads: 1,
    };
    /// What is stored moves between the tiers all the time, and values take at once the space that this frees.
    pub const MOVES: Script = Script {
        name: "moves",
        ops: 40,
        keys: 6,
        hot: 0,
        longest: 9_000,
        grouped: 0,
        moves: 12,
        reads: 0,
        threads: 1,
    };
    /// Values of many lengths, and some keys that are read often.
    pub const SPREAD: Script = Script {
        name: "spread",
        ops: 80,
        keys: 30,
        hot: 0,
        longest: 3_000,
        grouped: 0,
        moves: 2,
        reads: 8,
        threads: 1,
    };
    /// Two keys are written again and again, behind others that stay as they are.
    pub const UNEVEN: Script = Script {
        name: "uneven",
        ops: 80,
        keys: 16,
        hot: 7,
        longest: 900,
        grouped: 0,
        moves: 0,
        reads: 0,
        threads: 1,
    };
    /// Those of one thread.
    pub const ALL: [Script; 7] =
        [Self::OVERWRITE, Self::CHURN, Self::LONG, Self::GROUPED, Self::MOVES, Self::SPREAD, Self::UNEVEN];
    /// Grouped and durable writes mixed.
    pub const GROUPED: Script = Script {
        name: "grouped",
        ops: 60,
        keys: 8,
        hot: 0,
        longest: 600,
        grouped: 5,
        moves: 0,
        reads: 0,
        threads: 1,
    };
    /// Two threads at once. What they do is given by the seed, not how it interleaves.
    pub const TOGETHER: Script = Script {
        name: "together",
        ops: 12,
        keys: 40,
        hot: 0,
        longest: 300,
        grouped: 0,
        moves: 0,
        reads: 0,
        threads: 2,
    };
}

/// Keys of threads at once lie scattered, so that one does not wait for another's leaf.
fn scattered(number: usize) -> Vec<u8> {
    [&[b'a' + (number * 11 % 26) as u8], &key(number)[..]].concat()
}

fn key(number: usize) -> Vec<u8> {
    // Some keys are so long that an index may hold them elsewhere.
    match number % 7 {
        3 => format!("{number:04}-{}", "k".repeat(300)).into_bytes(),
        _ => format!("key{number:04}").into_bytes(),
    }
}

struct Run<'s> {
    script: &'s Script,
    thread: u32,
    engine: &'s dyn Engine,
    known: &'s Known,
    rng: Rng,
    written: u64,
    /// Puts and batches, and how many of them found no room.
    asked: u32,
    refused: u32,
}

/// Steps of a turn, about: 2, 5 or 10, as `seed` draws.
pub(super) fn turns(seed: u64) -> u8 {
    TURNS[Rng::with_seed(seed).fork().usize(..TURNS.len())]
}

/// Runs `script` on `engine`.
pub fn run_on(script: &Script, seed: u64, engine: &dyn Engine, known: &Known) {
    let run_of = |thread: u32| {
        let rng = Rng::with_seed(seed ^ u64::from(thread) << 32);
        let written = u64::from(thread) << 32 | (seed & 0xffff) << 16;
        Run { script, thread, engine, known, rng, written, asked: 0, refused: 0 }
    };
    let mut run = run_of(0);
    if script.threads > 1 {
        run.fill();
        let together = std::sync::Barrier::new(script.threads as usize);
        let work = |thread: u32| {
            let (mut run, together) = (run_of(thread), &together);
            tierdb_base::mutant::carry(move || {
                together.wait();
                (0..script.ops).for_each(|_| run.step());
                run.check_refused();
            })
        };
        std::thread::scope(|scope| (0..script.threads).for_each(|thread| drop(scope.spawn(work(thread)))));
    } else {
        let mut turn = 0;
        let short = turns(seed);
        for _ in 0..script.ops {
            if run.rng.u8(..short) == 0 {
                turn = 1 - turn;
            }
            tierdb_sim::as_thread(turn, || run.step());
        }
        run.check_refused();
    }
}

/// Makes all that was written durable.
pub fn sync(engine: &dyn Engine, known: &Known) {
    let ticket = known.update(Oracle::sync);
    settle_certain(known, ticket, engine.sync());
}

/// Closes `engine`.
pub fn close(engine: &dyn Engine, known: &Known) {
    let ticket = known.update(Oracle::sync);
    let _answer = settle(known, ticket, engine.close());
}

/// What adds to a store may find it full.
fn settle(known: &Known, ticket: Ticket, result: tierdb_base::Result<()>) -> Answer {
    match result {
        Ok(()) => {
            known.update(|oracle| oracle.returned(ticket));
            Answer::Done
        }
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            known.update(|oracle| oracle.refused(ticket));
            Answer::Refused
        }
        Err(error) => panic!("no fault was injected, but: {error}"),
    }
}

/// What does not add to it never does.
fn settle_certain(known: &Known, ticket: Ticket, result: tierdb_base::Result<()>) {
    assert!(settle(known, ticket, result) == Answer::Done, "a full store refuses what adds nothing to it");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Done,
    Refused,
}

impl Run<'_> {
    /// Keys of nobody else, so many that soon the next one needs more of everything.
    fn fill(&mut self) {
        for round in 0..5 {
            let mut batch = WriteBatch::new();
            for n in 0..50 {
                batch.put(scattered(10_000 + round * 50 + n), *b"filling").expect("a small batch");
            }
            let ticket = self.known.update(|oracle| oracle.write(&batch, Durability::Durable));
            let result = self.engine.write(&batch, Durability::Durable);
            assert!(settle(self.known, ticket, result) == Answer::Done, "there is room to begin with");
        }
    }

    fn count(&mut self, answer: Answer) {
        self.asked += 1;
        self.refused += u32::from(answer == Answer::Refused);
    }

    /// A store that refuses nearly all has little to lose. Of a few writes all may find it full, and of some nearly all.
    fn check_refused(&self) {
        let Run { script, refused, asked, .. } = self;
        let most = match asked {
            0..16 => *asked,
            16..32 => asked - 1,
            _ => asked * 9 / 10,
        };
        assert!(*refused <= most, "{}: {refused} of {asked} writes found no room", script.name);
    }

    fn durability(&mut self) -> Durability {
        if self.rng.u8(..8) < self.script.grouped { Durability::Grouped } else { Durability::Durable }
    }

    fn key(&mut self) -> Vec<u8> {
        let is_hot = self.script.hot > 0 && self.rng.u8(..8) < self.script.hot;
        let number = self.rng.usize(..if is_hot { 2 } else { self.script.keys });
        match self.script.threads {
            1 => key(number),
            threads => scattered(number * threads as usize + self.thread as usize),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        self.written += 1;
        let len = match self.rng.u8(..4) {
            0 => 8,
            1 => self.script.longest,
            _ => self.rng.usize(8..=self.script.longest),
        };
        let mut value = vec![self.written as u8; len];
        value[..8].copy_from_slice(&self.written.to_le_bytes());
        value
    }

    fn step(&mut self) {
        let durability = self.durability();
        if self.rng.u8(..32) < self.script.moves {
            return match self.rng.bool() {
                true => self.allow_full(|engine| engine.flush()),
                false => self.allow_full(|engine| engine.compact()),
            };
        }
        if self.script.reads > 0 && self.rng.u8(..32) < self.script.reads {
            let key = key(self.rng.usize(..self.script.keys.div_ceil(8)));
            drop(self.engine.get(&key).expect("a whole store is read"));
            return;
        }
        match self.rng.u8(..32) {
            0..16 => self.put(durability),
            16..21 => self.delete(durability),
            21..26 => {
                let mut batch = WriteBatch::new();
                for _ in 0..self.rng.usize(1..6) {
                    let key = self.key();
                    if self.rng.u8(..4) == 0 {
                        batch.delete(key).expect("a small batch");
                    } else {
                        batch.put(key, self.value()).expect("a small batch");
                    }
                }
                let ticket = self.known.update(|oracle| oracle.write(&batch, durability));
                let result = self.engine.write(&batch, durability);
                self.count(settle(self.known, ticket, result));
            }
            26 if self.script.threads == 1 => {
                let from = self.rng.usize(..self.script.keys);
                let range = KeyRange::half_open(key(from), key(from + 3));
                let ticket = self.known.update(|oracle| oracle.delete_range(&range, durability));
                let result = self.engine.delete_range(&range, durability).map(|_| ());
                settle_certain(self.known, ticket, result);
            }
            26 | 27 => sync(self.engine, self.known),
            28 => {
                // A reader, so that values come into the cache and are moved with it.
                let key = self.key();
                self.engine.get(&key).expect("a whole store is read");
            }
            29 => {
                // Writes while a snapshot keeps what they replace.
                let snapshot = self.engine.snapshot().expect("a snapshot");
                if self.rng.bool() {
                    self.put(durability);
                } else {
                    self.delete(durability);
                }
                self.allow_full(|engine| engine.flush());
                drop(snapshot);
            }
            30 => self.allow_full(|engine| engine.flush()),
            _ => self.allow_full(|engine| engine.compact()),
        }
    }

    fn put(&mut self, durability: Durability) {
        let (key, value) = (self.key(), self.value());
        let ticket = self.known.update(|oracle| oracle.put(&key, &value, durability));
        let result = self.engine.put(&key, &value, durability);
        self.count(settle(self.known, ticket, result));
    }

    fn delete(&mut self, durability: Durability) {
        let key = self.key();
        let ticket = self.known.update(|oracle| oracle.delete(&key, durability));
        let result = self.engine.delete(&key, durability);
        settle_certain(self.known, ticket, result);
    }

    fn allow_full(&self, work: impl Fn(&dyn Engine) -> tierdb_base::Result<()>) {
        // Both make earlier writes durable at some moment before they return, never less than was promised.
        match work(self.engine) {
            Err(error) if error.kind() != ErrorKind::NoSpace => panic!("no fault was injected, but: {error}"),
            _ => {}
        }
    }
}
