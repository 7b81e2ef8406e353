//! Media of a store that is looked at and not changed.
//!
//! Directories are seen through an [`Overlay`], and a mapped pool is copied into DRAM, so opening may recover as
//! it always does and what is on media stays as it is.
//!
//! Invariant: every directory that engines get here is of `overlay`, which makes none that is plain.

use crate::config::EngineKind;
use crate::identity::Mode;
use crate::setup::{POOL_NAME, VALUES_NAME, all_there, seed_of};
use crate::shape;
use crate::tiers::{Remain, Remains};
use std::io::ErrorKind;
use std::sync::Arc;
use tierdb_base::{ByteSize, Error, FailureLatch, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Dir, Meter, OpenMode, RealDir, Striped, read_blocks};
use tierdb_engine::{Damage, Media, TierDir};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_media::{Directory, Overlay, StoreDir, StoreMedia};
use tierdb_pmem::{MappedPool, Pool};

/// No limit that matters: what is written goes to DRAM.
const CAPACITY: u64 = 64 << 40;
/// A mapped pool is copied in pieces of so many bytes.
const PIECE: u64 = 1 << 20;

/// The media of the store in `remains`, and what was found wrong with its pool. With `salvage` whatever is damaged, otherwise the first damage of
/// the pool is an error.
pub(crate) fn media_of(remains: &Remains<RealDir>, salvage: bool) -> Result<(StoreMedia, Vec<Damage>)> {
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
                Ok((media(remains, pool, fast, flash).into(), damage))
            }
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::OutOfMemory => {
                Err(no_memory(remains.shape.pool_len))
            }
            // What another user, or with other limits, could read is not lost.
            Err(error) if salvage && !error.is_of_the_process() => {
                damage.push(damaged(error.to_string(), None));
                Ok((media(remains, lost(), fast, flash).into(), damage))
            }
            Err(error) => Err(error),
        }
    } else {
        if !salvage {
            all_there(&fast, &[POOL_NAME])?;
        }
        let pool = copy_pool(remains, &fast, salvage, &mut damage)?.unwrap_or_else(lost);
        Ok((media(remains, pool, fast, flash).into(), damage))
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

/// An empty pool, in the place of one that is lost.
fn lost() -> MappedPool {
    MappedPool::in_memory(BLOCK)
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
fn with_values(tier: &Remain<RealDir>, dir: &Directory, damage: &mut Vec<Damage>) -> Result<()> {
    if dir.list()?.iter().any(|name| name == VALUES_NAME) {
        return Ok(());
    }
    if tier.dir.is_some() {
        let place = Location::new(format!("{}/{VALUES_NAME}", dir.name()), 0);
        damage.push(damaged("the file of values is missing".into(), Some(place)));
    }
    dir.open(VALUES_NAME, OpenMode::CreateNew).map(drop)
}

fn media<P: Pool>(
    remains: &Remains<RealDir>,
    pool: P,
    fast: Vec<Directory>,
    flash: Vec<Directory>,
) -> Media<P, Directory> {
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
    use tierdb_sim::World;

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
        let (fast, mut damage) = (remains.fast.iter().map(overlay).collect::<Vec<_>>(), Vec::new());
        copy_pool(&remains, &fast, false, &mut damage).err().expect("a block is damaged");
        let pool = copy_pool(&remains, &fast, true, &mut damage).expect("what can be read").expect("a pool");
        let mut found = vec![0; pool.len() as usize];
        pool.read(0, &mut found).expect("memory");
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
        media_of(&remains(BLOCK), false).expect("a page is there");
        for salvage in [false, true] {
            let refused = media_of(&remains(1 << 60), salvage).err().expect("nobody has so much");
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains("memory"), "{refused}");
        }
    }
}
