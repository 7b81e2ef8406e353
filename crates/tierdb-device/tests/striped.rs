//! A striped directory against a plain one, and what a crash leaves of it, on simulated devices.

use std::io::ErrorKind;
use tierdb_base::mutant;
use tierdb_base::{Error, Result};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Dir, FileRead, OpenMode, Piece, STRIPE, Striped};
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, Oracle, explore};
use tierdb_sim::{FaultKind, FaultPlan, Ops, SimDir, World};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// The first `count` directories of `world` as one.
fn striped(world: &World, count: usize, stripe: u64) -> Striped<SimDir> {
    let dirs = NAMES[..count].iter().map(|name| world.dir(name)).collect();
    Striped::with_stripe(dirs, stripe).expect("directories")
}

fn world(count: usize) -> World {
    let world = World::new();
    for name in &NAMES[..count] {
        world.add_dir(name);
    }
    world
}

fn filled(rng: &mut fastrand::Rng, blocks: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed((blocks * BLOCK) as usize).expect("memory");
    buf.fill_with(|| rng.u8(..));
    buf
}

fn contents(file: &impl BlockFile) -> Vec<u8> {
    let len = file.len().expect("length") as usize;
    if len == 0 {
        return Vec::new();
    }
    let mut buf = AlignedBuf::zeroed(len).expect("memory");
    file.read(0, &mut buf).expect("read");
    buf.to_vec()
}

/// One random operation on both; they must agree.
fn step(rng: &mut fastrand::Rng, own: &impl BlockFile, model: &impl BlockFile, most: u64) {
    let blocks = model.len().expect("length") / BLOCK;
    let at = rng.u64(0..blocks + 2);
    let count = rng.u64(1..most);
    let both =
        |own: Result<()>, model: Result<()>| assert_eq!(own.is_ok(), model.is_ok(), "{own:?}, {model:?}");
    match rng.u8(0..9) {
        0 => {
            let len = rng.u64(0..3 * most) * BLOCK;
            both(own.set_len(len), model.set_len(len));
        }
        // What is written lies inside the file, as the contract asks; reads beyond its end are refused.
        1..=4 if at < blocks => {
            let bytes = filled(rng, count.min(blocks - at));
            if rng.bool() {
                both(own.write(at * BLOCK, &bytes), model.write(at * BLOCK, &bytes));
            } else {
                both(own.write_durable(at * BLOCK, &bytes), model.write_durable(at * BLOCK, &bytes));
            }
        }
        5 => {
            let mut bufs = [filled(rng, count), filled(rng, count)];
            let [first, second] = &mut bufs;
            let (own, model) = (own.read(at * BLOCK, first), model.read(at * BLOCK, second));
            let read = own.is_ok();
            both(own, model);
            assert!(!read || **first == **second, "a read of {count} blocks at {at}");
        }
        6 => {
            let places = [(); 4].map(|()| rng.u64(0..blocks + 2) * BLOCK);
            let mut reads = places.map(|at| FileRead { file: own, at, buf: filled(rng, count) });
            let results = BlockFile::read_many(&mut reads);
            for (FileRead { at, buf, .. }, result) in reads.into_iter().zip(results) {
                let mut same = filled(rng, count);
                let read = result.is_ok();
                both(result, model.read(at, &mut same));
                assert_eq!(buf.len(), same.len(), "each has its buffer again");
                assert!(!read || *buf == *same, "one of the reads of {count} blocks, at {at}");
            }
        }
        7 => {
            // Up to four that follow each other, some blocks apart, written in any order.
            let mut places = Vec::new();
            let mut next = at;
            while places.len() < 4 && next < blocks {
                let len = rng.u64(1..most).min(blocks - next);
                places.push((next, len));
                next += len + rng.u64(0..3);
            }
            rng.shuffle(&mut places);
            let pieces: Vec<_> = places
                .into_iter()
                .map(|(at, len)| Piece { at: at * BLOCK, len: (len * BLOCK) as usize })
                .collect();
            let bytes = filled(rng, pieces.iter().map(|piece| piece.len as u64 / BLOCK).sum());
            both(own.write_pieces(&bytes, &pieces), model.write_pieces(&bytes, &pieces));
        }
        _ => both(own.sync(), model.sync()),
    }
}

#[test]
fn it_is_as_one_plain_file() {
    for (count, stripe) in [(1, BLOCK), (2, BLOCK), (2, STRIPE), (3, 2 * BLOCK), (4, 3 * BLOCK)] {
        for seed in 0..8 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (own, plain) = (world(count), world(1));
            let dir = striped(&own, count, stripe);
            let file = dir.open("file", OpenMode::CreateNew).expect("create");
            let model = plain.dir("a").open("file", OpenMode::CreateNew).expect("create");
            for _ in 0..150 {
                step(&mut rng, &file, &model, 5 * count as u64 * stripe / BLOCK);
                assert_eq!(file.len().expect("length"), model.len().expect("length"));
            }
            assert!(contents(&file) == contents(&model), "{count} directories, seed {seed}");
            dir.sync().expect("sync");
            file.sync().expect("sync");
            let after = striped(&own.capture().nothing(), count, stripe);
            let after = after.open("file", OpenMode::Existing).expect("open");
            assert!(contents(&after) == contents(&model), "{count} directories, seed {seed}, after a crash");
            assert_eq!(striped(&own, count, stripe).list().expect("list"), ["file"]);
            dir.remove("file").expect("remove");
            assert!(NAMES[..count].iter().all(|name| own.dir(name).list().expect("list").is_empty()));
        }
    }
}

#[test]
fn stripes_are_dealt_in_turn_and_every_device_gets_its_share() {
    let world = world(3);
    let file = striped(&world, 3, STRIPE).open("file", OpenMode::CreateNew).expect("create");
    file.set_len(7 * STRIPE + BLOCK).expect("length");
    let mut bytes = AlignedBuf::zeroed((7 * STRIPE) as usize).expect("memory");
    for (number, stripe) in (1..).zip(bytes.chunks_mut(STRIPE as usize)) {
        stripe.fill(number);
    }
    file.write(0, &bytes).expect("write");
    let stripes = |name| {
        let part = world.dir(name).open("file", OpenMode::Existing).expect("open");
        contents(&part).chunks(STRIPE as usize).map(|stripe| stripe[0]).collect::<Vec<_>>()
    };
    assert_eq!((stripes("a"), stripes("b"), stripes("c")), (vec![1, 4, 7], vec![2, 5, 0], vec![3, 6]));
}

#[test]
fn what_is_refused_is_named_and_leaves_nothing_behind() {
    assert!(Striped::<SimDir>::new(Vec::new()).is_err());
    let world = world(3);
    assert!(Striped::with_stripe(vec![world.dir("a")], BLOCK + 512).is_err());
    let dir = striped(&world, 3, BLOCK);
    // A file in one of them alone is no file, is not created over, and can be removed.
    world.dir("b").open("file", OpenMode::CreateNew).expect("create");
    let absent = dir.open("file", OpenMode::Existing).err().expect("not in all");
    assert!(absent.to_string().contains("a/file"), "{absent}");
    let there = dir.open("file", OpenMode::CreateNew).err().expect("in one");
    assert!(there.to_string().contains("b/file"), "{there}");
    assert!(world.dir("a").list().expect("list").is_empty(), "what was begun is gone");
    assert_eq!(dir.list().expect("list"), ["file"]);
    dir.remove("file").expect("remove");
    assert!(dir.remove("file").is_err() && dir.list().expect("list").is_empty());
    // No rename of several; one of one.
    dir.open("file", OpenMode::CreateNew).expect("create");
    let refused = dir.rename("file", "other").expect_err("not one step");
    assert!(matches!(&refused, Error::Unsupported { what } if what.contains("a + b + c")), "{refused}");
    striped(&world, 1, BLOCK).rename("file", "other").expect("one step");
    // Locks are of all.
    let lock = world.dir("c").lock().expect("lock");
    assert!(matches!(dir.lock(), Err(Error::Locked { .. })));
    drop(lock);
    let lock = dir.lock().expect("lock, and none was left behind");
    assert!(NAMES[..3].iter().all(|name| world.dir(name).lock().is_err()));
    drop(lock);
    assert!(world.dir("b").lock().is_ok());
}

#[test]
fn a_device_that_is_full_leaves_the_length_and_one_that_fails_is_named() {
    let world = world(2);
    let dir = striped(&world, 2, BLOCK);
    let file = dir.open("file", OpenMode::CreateNew).expect("create");
    file.set_len(5 * BLOCK).expect("length");
    world.dir("b").set_capacity(Some(4 * BLOCK));
    let full = file.set_len(20 * BLOCK).expect_err("b is full");
    assert!(matches!(&full, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull), "{full}");
    assert_eq!(file.len().expect("length"), 5 * BLOCK);
    file.set_len(8 * BLOCK).expect("as much as fits");
    let mut rng = fastrand::Rng::with_seed(1);
    for ops in [Ops::READ, Ops::WRITE, Ops::SYNC] {
        world.inject(FaultPlan::from_nth(1, FaultKind::Eio).on(ops).in_dir("b"));
        let mut bytes = filled(&mut rng, 4);
        let failed = match ops {
            Ops::READ => file.read(BLOCK, &mut bytes),
            Ops::WRITE => file.write_durable(BLOCK, &bytes),
            _ => file.sync(),
        };
        world.heal();
        let failed = failed.expect_err("b fails").to_string();
        assert!(failed.contains("b/file"), "{failed}");
    }
}

/// What may be in a file: what is certain, and what is on its way.
#[derive(Clone, Default)]
struct Known {
    created: bool,
    certain: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

impl Known {
    /// Sectors that nothing on its way covers are as they were made certain.
    fn check(&self, found: &[u8]) -> Result<(), String> {
        if found.len() < self.certain.len() {
            return Err(format!("{} bytes found, not {}", found.len(), self.certain.len()));
        }
        for (number, sector) in self.certain.chunks(512).enumerate() {
            let at = number * 512;
            let covered = self.pending.iter().any(|(from, bytes)| (*from..from + bytes.len()).contains(&at));
            if !covered && found[at..at + 512] != *sector {
                return Err(format!("the sector at {at} was durable, and is another now"));
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.pending) {
            self.certain[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

const LEN: u64 = 24 * BLOCK;

/// Writes that cross stripes: durable ones by themselves, others until a sync.
fn script(world: &World, known: &Oracle<Known>) {
    let mut rng = fastrand::Rng::with_seed(7);
    let dir = striped(world, 3, 2 * BLOCK);
    let file = dir.open("file", OpenMode::CreateNew).expect("create");
    file.set_len(LEN).expect("length");
    file.sync().expect("sync");
    dir.sync().expect("sync");
    known.update(|known| *known = Known { created: true, certain: vec![0; LEN as usize], pending: vec![] });
    for number in 0..12 {
        let bytes = filled(&mut rng, 1 + number % 7);
        // Not where another write is on its way: their order would be nobody's.
        let at = number * 5 * BLOCK % (LEN - 7 * BLOCK);
        known.update(|known| known.pending.push((at as usize, bytes.to_vec())));
        if number % 3 == 0 {
            file.write_durable(at, &bytes).expect("write");
            known.update(|known| {
                let (at, bytes) = known.pending.pop().expect("its own");
                known.certain[at..at + bytes.len()].copy_from_slice(&bytes);
            });
        } else {
            file.write(at, &bytes).expect("write");
        }
        if number % 3 == 2 {
            file.sync().expect("sync");
            known.update(Known::settle);
        }
    }
}

fn run() -> Result<CrashRun, Box<CrashFailure>> {
    explore(
        &world(3),
        &Options::default(),
        &Oracle::new(Known::default()),
        script,
        |_| Ok(()),
        |known, image| {
            let dir = striped(image, 3, 2 * BLOCK);
            if known.created {
                let file = dir.open("file", OpenMode::Existing).map_err(|e| e.to_string())?;
                return known.check(&contents(&file));
            }
            // A creation that was cut short: some of the names, and any of the lengths.
            if let Ok(file) = dir.open("file", OpenMode::Existing) {
                let len = file.len().map_err(|e| e.to_string())?;
                if len > LEN || contents(&file).iter().any(|byte| *byte != 0) {
                    return Err(format!("a new file of {len} bytes, or not of zeros"));
                }
                file.set_len(LEN).map_err(|e| e.to_string())?;
                if contents(&file) != vec![0; LEN as usize] {
                    return Err("what was added is not zeros".into());
                }
            }
            for name in dir.list().map_err(|e| e.to_string())? {
                dir.remove(&name).map_err(|e| e.to_string())?;
            }
            dir.open("file", OpenMode::CreateNew).map(drop).map_err(|e| e.to_string())
        },
    )
}

#[test]
fn what_was_durable_survives_and_the_rest_is_any_subset() {
    let run = run().unwrap_or_else(|failure| panic!("{failure}"));
    println!("{run}");
    assert!(run.images > 300, "{run}");
}

#[test]
fn a_missing_write_or_sync_of_any_is_noticed() {
    let seen = mutant::record(|| script(&world(3), &Oracle::new(Known::default())));
    let sites: Vec<_> = seen.keys().collect();
    let count = |what| sites.iter().filter(|site| site.what == what).count();
    assert_eq!((count("sync"), count("dir_sync"), count("write_durable")), (2, 1, 1), "{sites:?}");
    for site in sites {
        assert!(site.file.ends_with("tests/striped.rs"), "{site} is named by who asked for it");
        assert!(mutant::without(*site, run).is_err(), "{site} can be left out unnoticed");
    }
}

/// Lengths of which a crash has left a part on each device, in any combination.
#[test]
fn a_length_that_was_cut_short_is_a_length() {
    let lens = [0, 1, 2, 3, 5, 6, 7, 12];
    for (before, after) in lens.iter().flat_map(|before| lens.iter().map(move |after| (*before, *after))) {
        for through in 0..8_u32 {
            let world = world(3);
            let dir = striped(&world, 3, BLOCK);
            let file = dir.open("file", OpenMode::CreateNew).expect("create");
            file.set_len(before * BLOCK).expect("length");
            if before > 0 {
                let ones = AlignedBuf::from_bytes(&vec![1; (before * BLOCK) as usize]).expect("memory");
                file.write(0, &ones).expect("write");
            }
            // A crash lets it through on some of the devices.
            for (number, name) in (0..).zip(&NAMES[..3]) {
                let own = world.dir(name).open("file", OpenMode::Existing).expect("open");
                let part = (after + 2 - number) / 3 * BLOCK;
                if through >> number & 1 == 1 {
                    own.set_len(part).expect("length");
                }
            }
            let len = file.len().expect("length") / BLOCK;
            assert!(
                len >= before.min(after) && len <= before.max(after),
                "{len}: {before} to {after}, {through:b}"
            );
            let kept: Vec<u8> = contents(&file).chunks(BLOCK as usize).map(|block| block[0]).collect();
            let expected: Vec<u8> = (0..len).map(|at| u8::from(at < before)).collect();
            assert_eq!(kept, expected, "{before} to {after}, {through:b}");
            file.set_len(20 * BLOCK).expect("length");
            let grown = contents(&file);
            assert!(grown[(len * BLOCK) as usize..].iter().all(|byte| *byte == 0), "what was added is zeros");
        }
    }
}
