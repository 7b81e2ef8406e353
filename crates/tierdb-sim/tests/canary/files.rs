//! A log of blocks in a file, with snapshots in files of their own.
//!
//! Blocks 0 and 1 of the log hold its header in turn: the number of the snapshot, and the first block
//! that is not in it. A snapshot is made whole and durable, name included, before the header names it.

use super::{Explored, Known};
use tierdb_base::{checksum, matches};
use tierdb_device::{AlignedBuf, BlockFile, Dir, OpenMode};
use tierdb_sim::crashtest::{Options, Oracle, explore};
use tierdb_sim::{Budget, CrashModel, FaultKind, FaultPlan, SimDir, SimFile, World};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 32;

fn word(bytes: &[u8], i: usize) -> u64 {
    u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("8 bytes"))
}

/// A block of words under a checksum of all of its sectors.
fn block(words: &[u64]) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(BLOCK as usize).expect("memory");
    bytes[8..].fill(words[0] as u8);
    for (i, word) in words.iter().enumerate() {
        bytes[8 + i * 8..16 + i * 8].copy_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(0, &bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn read(file: &SimFile, number: u64) -> Result<Option<AlignedBuf>, String> {
    let mut bytes = AlignedBuf::zeroed(BLOCK as usize).expect("memory");
    file.read(number * BLOCK, &mut bytes).map_err(|e| e.to_string())?;
    let whole = word(&bytes, 0) != 0 && matches(word(&bytes, 0), checksum(0, &bytes[8..]));
    Ok(whole.then_some(bytes))
}

struct Store {
    dir: SimDir,
    log: SimFile,
    next: u64,
    snapshot: u64,
    values: [u64; 4],
}

impl Store {
    fn create(dir: SimDir) -> tierdb_base::Result<Self> {
        let log = dir.open("log.new", OpenMode::CreateNew)?;
        log.set_len(BLOCKS * BLOCK)?;
        log.sync()?;
        log.write_durable(0, &block(&[1, 0, 2]))?;
        dir.rename("log.new", "log")?;
        dir.sync()?;
        Ok(Store { dir, log, next: 2, snapshot: 0, values: [0; 4] })
    }

    fn open(dir: SimDir) -> Result<Option<Self>, String> {
        let said = |e: tierdb_base::Error| e.to_string();
        if !dir.list().map_err(said)?.contains(&"log".to_string()) {
            return Ok(None);
        }
        let log = dir.open("log", OpenMode::Existing).map_err(said)?;
        let mut header: Option<(u64, u64, u64)> = None;
        for number in 0..2 {
            if let Some(found) = read(&log, number)? {
                header = header.max(Some((word(&found, 1), word(&found, 2), word(&found, 3))));
            }
        }
        let (_, snapshot, mut next) = header.ok_or("the log has no header")?;
        let mut values = [0; 4];
        if snapshot > 0 {
            let file = dir.open(&format!("snap{snapshot}"), OpenMode::Existing).map_err(said)?;
            let bytes = read(&file, 0)?.ok_or("the snapshot is torn")?;
            (0..4).for_each(|slot| values[slot] = word(&bytes, 1 + slot));
        }
        while next < BLOCKS {
            let Some(bytes) = read(&log, next)? else { break };
            values[word(&bytes, 2) as usize] = word(&bytes, 3);
            next += 1;
        }
        Ok(Some(Store { dir, log, next, snapshot, values }))
    }

    fn put(&mut self, slot: usize, value: u64) -> tierdb_base::Result<()> {
        self.log.write(self.next * BLOCK, &block(&[value + 1, slot as u64, value]))?;
        self.log.sync()?;
        self.next += 1;
        self.values[slot] = value;
        Ok(())
    }

    fn checkpoint(&mut self) -> tierdb_base::Result<()> {
        let number = self.snapshot + 1;
        let file = self.dir.open(&format!("snap{number}"), OpenMode::CreateNew)?;
        file.set_len(BLOCK)?;
        file.write(0, &block(&self.values))?;
        file.sync()?;
        self.dir.sync()?;
        self.log.write_durable(number % 2 * BLOCK, &block(&[number + 1, number, self.next]))?;
        if self.snapshot > 0 {
            self.dir.remove(&format!("snap{}", self.snapshot))?;
        }
        self.snapshot = number;
        Ok(())
    }
}

/// Stops at the first error, as a store that latches does.
fn script(world: &World, oracle: &Oracle<Known>) -> tierdb_base::Result<()> {
    let mut store = Store::create(world.dir("flash"))?;
    oracle.update(|known| known.created = true);
    for value in 1..=9 {
        let slot = value as usize % 4;
        oracle.update(|known| known.in_flight = vec![(slot, value)]);
        store.put(slot, value)?;
        oracle.update(Known::acknowledge);
        if value % 3 == 0 {
            store.checkpoint()?;
        }
    }
    Ok(())
}

fn check(known: &Known, image: &World) -> Result<(), String> {
    match Store::open(image.dir("flash"))? {
        Some(store) => known.check(store.values),
        None if known.created => Err("the store is gone".into()),
        None => Ok(()),
    }
}

pub fn run(options: &Options) -> Explored {
    let world = World::new();
    world.add_dir("flash");
    let oracle = Oracle::new(Known::default());
    let recover = |image: &World| Store::open(image.dir("flash")).map(drop);
    explore(&world, options, &oracle, |world, oracle| script(world, oracle).expect("good"), recover, check)
}

/// Every operation fails in its turn, once or from then on; after it a crash. Returns the images checked.
pub fn run_with_faults() -> Result<u64, String> {
    let kinds =
        [FaultKind::Eio, FaultKind::Enospc, FaultKind::Short, FaultKind::Interrupted, FaultKind::SyncError];
    let mut images = 0;
    for (kind, persistent) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        for nth in 1.. {
            let world = World::new();
            world.add_dir("flash");
            world.inject(FaultPlan { persistent, ..FaultPlan::nth(nth, kind) });
            let oracle = Oracle::new(Known::default());
            let stopped = script(&world, &oracle);
            if world.heal().hit == 0 {
                break;
            }
            stopped.err().ok_or_else(|| format!("{kind:?} of operation {nth} went unnoticed"))?;
            for image in world.capture().images(&CrashModel::BOTH, nth, &Budget::default()) {
                images += 1;
                let wrong = check(&oracle.get(), &image.world);
                wrong.map_err(|e| format!("{kind:?} of operation {nth}, {image:?}: {e}"))?;
            }
        }
    }
    Ok(images)
}
