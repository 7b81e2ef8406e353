//! Media of a store that is looked at and not changed.
//!
//! Directories are seen through an [`Overlay`], and a mapped pool is copied into DRAM, so opening may recover as
//! it always does and what is on media stays as it is.
//!
//! Invariant: every directory that engines get here is of `overlay`, which makes none that is plain.

use crate::config::EngineKind;
use crate::directory::StoreDir;
use crate::identity::Mode;
use crate::overlay::Overlay;
use crate::setup::{POOL_NAME, VALUES_NAME, all_there, seed_of};
use crate::shape;
use crate::tiers::{Remain, Remains};
use std::io::ErrorKind;
use std::sync::Arc;
use tierdb_base::{ByteSize, Error, FailureLatch, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Dir, Meter, OpenMode, Striped, read_blocks};
use tierdb_engine::Damage;
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::{MappedPool, Pool};
use tierdb_valuelog::{Media, TierDir};

/// No limit that matters: what is written goes to DRAM.
const CAPACITY: u64 = 64 << 40;
/// A mapped pool is copied in pieces of so many bytes.
const PIECE: u64 = 1 << 20;

/// What is done with the media of a store, whatever their types are.
pub(crate) trait Work {
    /// What it gives.
    type Output;

    /// Does it. `damage` is what was found wrong with the pool.
    fn run<P: Pool, D: Dir>(self, media: Media<P, D>, damage: Vec<Damage>) -> Result<Self::Output>;
}

/// Does `work` with the media of the store in `remains`. With `salvage` it does so whatever is damaged, otherwise
/// it stops at the first damage of the pool.
pub(crate) fn with_media<D: Dir, W: Work>(remains: &Remains<D>, salvage: bool, work: W) -> Result<W::Output> {
    let flash: Vec<_> = remains.flash.iter().map(overlay).collect();
    let fast: Vec<_> = remains.fast.iter().map(overlay).collect();
    let mut damage = Vec::new();
    if salvage && remains.shape.engine == EngineKind::Valuelog {
        for (tier, dir) in remains.flash.iter().zip(&flash) {
            with_values(tier, dir, &mut damage)?;
        }
    }
    if remains.shape.mode.is_logged() {
        let dirs = if fast.is_empty() { flash[..1].to_vec() } else { fast.clone() };
        let options = LoggedOptions { salvage, ..shape::logged_options(&remains.shape) };
        if !salvage {
            all_there(&dirs, &options.file_names())?;
        }
        let dir = Striped::new(dirs)?;
        let (seed, latch) = (seed_of(remains.uuid), FailureLatch::new());
        match LoggedPool::open(dir, options, seed, latch, Meter::new(), None) {
            Ok(pool) => {
                let pages = pool.salvage().pages.iter();
                damage.extend(pages.map(|page| damaged(page.what.clone(), Some(page.place.clone()))));
                let errors = pool.salvage().log.iter().chain(&pool.salvage().unreadable);
                damage.extend(errors.map(|error| damaged(error.to_string(), None)));
                work.run(media(remains, pool, fast, flash), damage)
            }
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::OutOfMemory => {
                Err(no_memory(remains.shape.pool_len))
            }
            // What another user, or with other limits, could read is not lost.
            Err(error) if salvage && !error.is_of_the_process() => {
                damage.push(damaged(error.to_string(), None));
                lost(remains, fast, flash, damage, work)
            }
            Err(error) => Err(error),
        }
    } else {
        if !salvage {
            all_there(&fast, &[POOL_NAME])?;
        }
        match copy_pool(remains, &fast, salvage, &mut damage)? {
            Some(pool) => work.run(media(remains, pool, fast, flash), damage),
            None => lost(remains, fast, flash, damage, work),
        }
    }
}

fn no_memory(len: u64) -> Error {
    Error::Unsupported {
        what: format!(
            "verify and repair have the pool of {} of the fast tier in memory, and the system has not so much left: run them \
             where it has, with the directories of the store attached",
            ByteSize(len)
        ),
    }
}

/// Works with an empty pool in the place of one that is lost.
fn lost<D: Dir, W: Work>(
    remains: &Remains<D>,
    fast: Vec<StoreDir<D>>,
    flash: Vec<StoreDir<D>>,
    damage: Vec<Damage>,
    work: W,
) -> Result<W::Output> {
    work.run(media(remains, MappedPool::in_memory(BLOCK), fast, flash), damage)
}

fn damaged(what: String, place: Option<Location>) -> Damage {
    Damage { what, place, keys: None }
}

/// A tier as it is; a missing one as an empty directory.
fn overlay<D: Dir>(tier: &Remain<D>) -> StoreDir<D> {
    StoreDir::Overlaid(match &tier.dir {
        Some(dir) => Overlay::new(dir.clone()),
        None => Overlay::missing(tier.path.display().to_string()),
    })
}

/// Gives the flash tier `dir` an empty file of values where that is missing, so that the others' can be read. Of a tier of which
/// nothing is there, that is known already.
fn with_values<D: Dir>(tier: &Remain<D>, dir: &StoreDir<D>, damage: &mut Vec<Damage>) -> Result<()> {
    if dir.list()?.iter().any(|name| name == VALUES_NAME) {
        return Ok(());
    }
    if tier.dir.is_some() {
        let place = Location::new(format!("{}/{VALUES_NAME}", dir.name()), 0);
        damage.push(damaged("the file of values is missing".into(), Some(place)));
    }
    dir.open(VALUES_NAME, OpenMode::CreateNew).map(drop)
}

fn media<P: Pool, D: Dir>(
    remains: &Remains<D>,
    pool: P,
    fast: Vec<StoreDir<D>>,
    flash: Vec<StoreDir<D>>,
) -> Media<P, StoreDir<D>> {
    let tier = |dir| TierDir { dir, capacity: CAPACITY, meter: Meter::new(), emulation: None };
    Media {
        pool: Arc::new(pool),
        fast_meter: Meter::new(),
        // On block devices they may have tables.
        fast_dirs: fast.into_iter().filter(|_| remains.shape.mode == Mode::Block).map(tier).collect(),
        flash: flash.into_iter().map(tier).collect(),
        seed: seed_of(remains.uuid),
        latch: FailureLatch::new(),
        mode: "read only, changes in memory".into(),
    }
}

/// Copies the mapped pool in `dirs`. What cannot be read is zeros, and in `damage`, with `salvage`; if nothing can
/// be, there is no pool.
fn copy_pool<D: Dir>(
    remains: &Remains<D>,
    dirs: &[StoreDir<D>],
    salvage: bool,
    damage: &mut Vec<Damage>,
) -> Result<Option<MappedPool>> {
    let capacities: Vec<_> = remains.fast.iter().map(|tier| tier.capacity).collect();
    let Some(lens) = shape::mapped_parts(&remains.shape, &capacities) else {
        let path = remains.fast.first().map(|tier| tier.path.display().to_string()).unwrap_or_default();
        let what = "which tier holds which part of the pool is not known";
        let error = Error::corrupt(TierRole::Fast, what, Location::new(path, 0));
        if !salvage {
            return Err(error);
        }
        damage.push(damaged(error.to_string(), None));
        return Ok(None);
    };
    let len = remains.shape.pool_len;
    let pool = MappedPool::try_in_memory(len).map_err(|_| no_memory(len))?;
    let (mut start, mut found) = (0, false);
    for (dir, len) in dirs.iter().zip(lens) {
        match copy_part(dir, &pool, start, len, salvage, damage) {
            Ok(()) => found = true,
            Err(error) if salvage && !error.is_of_the_process() => {
                damage.push(damaged(error.to_string(), None))
            }
            Err(error) => return Err(error),
        }
        start += len;
    }
    Ok(found.then_some(pool))
}

/// Copies the part of a mapped pool in `dir` to the `len` bytes of `pool` from `start`.
fn copy_part<D: Dir>(
    dir: &D,
    pool: &MappedPool,
    start: u64,
    len: u64,
    salvage: bool,
    damage: &mut Vec<Damage>,
) -> Result<()> {
    let file = dir.open(POOL_NAME, OpenMode::Existing)?;
    let have = file.len()?.min(len);
    let mut at = 0;
    while at < have {
        let mut piece = AlignedBuf::zeroed(PIECE.min(have - at) as usize)?;
        match file.read(at, &mut piece) {
            Err(error) if salvage => {
                let mut read = AlignedBuf::zeroed(BLOCK as usize)?;
                let blocks = read_blocks(at, &mut piece, |at, block| {
                    file.read(at, &mut read).map(|()| block.copy_from_slice(&read))
                });
                let what =
                    format!("{blocks} of {} blocks cannot be read: {error}", piece.len() as u64 / BLOCK);
                damage.push(damaged(what, Some(Location::new(file.name(), at))));
            }
            read => read?,
        }
        for (number, block) in piece.chunks(BLOCK as usize).enumerate() {
            // What is zero stays untouched, and costs no memory.
            if block.iter().any(|byte| *byte != 0) {
                pool.write(start + at + number as u64 * BLOCK, block);
            }
        }
        at += piece.len() as u64;
    }
    if have < len {
        damage.push(damaged(
            format!("the pool has {have} bytes, but was created with {len}"),
            Some(Location::new(file.name(), have)),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Mode, Shape};
    use tierdb_base::{ErrorKind, Uuid};
    use tierdb_device::RealDir;
    use tierdb_sim::World;

    struct Look;

    impl Work for Look {
        type Output = ();

        fn run<P: Pool, D: Dir>(self, _: Media<P, D>, _: Vec<Damage>) -> Result<()> {
            Ok(())
        }
    }

    /// What the store's pool holds, and what is wrong with it.
    struct Copy;

    impl Work for Copy {
        type Output = (Vec<u8>, Vec<Damage>);

        fn run<P: Pool, D: Dir>(self, media: Media<P, D>, damage: Vec<Damage>) -> Result<Self::Output> {
            let mut bytes = vec![0; media.pool.len() as usize];
            media.pool.read(0, &mut bytes)?;
            Ok((bytes, damage))
        }
    }

    #[test]
    fn a_block_of_a_mapped_pool_that_cannot_be_read_costs_itself() {
        let world = World::new();
        let dir = world.add_dir("fast");
        let file = dir.open(POOL_NAME, OpenMode::CreateNew).expect("create");
        let mut bytes = AlignedBuf::zeroed(2 * PIECE as usize).expect("memory");
        bytes.fill(7);
        file.set_len(2 * PIECE).and_then(|()| file.write_durable(0, &bytes)).expect("no faults");
        let lost = 5 * BLOCK..6 * BLOCK;
        world.lose_page(&format!("fast/{POOL_NAME}"), lost.start);
        let tier = |dir| Remain { dir, path: "fast".into(), capacity: None };
        let (engine, mode) = (EngineKind::Valuelog, Mode::Byte);
        let remains = Remains {
            uuid: Uuid::nil(),
            shape: Shape { engine, mode, pool_len: 2 * PIECE, log_len: 0 },
            fast: vec![tier(Some(dir))],
            flash: vec![tier(None)],
            notes: Vec::new(),
            is_unfinished: false,
            _locks: Vec::new(),
        };
        with_media(&remains, false, Look).expect_err("a block is damaged");
        let (found, damage) = with_media(&remains, true, Copy).expect("what can be read");
        let is_lost = |at: usize| lost.contains(&(at as u64));
        assert!(found.iter().enumerate().all(|(at, byte)| *byte == if is_lost(at) { 0 } else { 7 }));
        assert_eq!(damage.len(), 1);
        assert!(damage[0].what.starts_with("1 of 256 blocks"), "{}", damage[0].what);
    }

    #[test]
    fn a_pool_that_is_larger_than_memory_is_an_error_that_says_so() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let dir = RealDir::open(temp.path()).expect("directory");
        let file = dir.open(POOL_NAME, OpenMode::CreateNew).expect("create");
        file.set_len(BLOCK).expect("length");
        let tier = |dir| Remain { dir, path: temp.path().into(), capacity: None };
        let (engine, mode) = (EngineKind::Valuelog, Mode::Byte);
        let remains = |pool_len| Remains {
            uuid: Uuid::nil(),
            shape: Shape { engine, mode, pool_len, log_len: 0 },
            fast: vec![tier(Some(dir.clone()))],
            flash: vec![tier(None)],
            notes: Vec::new(),
            is_unfinished: false,
            _locks: Vec::new(),
        };
        with_media(&remains(BLOCK), false, Look).expect("a page is there");
        for salvage in [false, true] {
            let refused = with_media(&remains(1 << 60), salvage, Look).expect_err("nobody has so much");
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains("memory"), "{refused}");
        }
    }
}
