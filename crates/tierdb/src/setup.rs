//! From a configuration to a running engine: directories, tiers, pool, engine, in this order.

use crate::config::{Config, EngineKind, drain_latency_ns, exact};
use crate::identity::{self, Mode, Shape};
use crate::shape;
use crate::tiers::{Intent, Place, Remains, Tier, Tiers, is_indifferent, not_a_store};
use crate::{checkpoint, history, repair};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tierdb_base::{ByteSize, Error, FailureLatch, Location, Result, TierRole, Uuid};
use tierdb_device::{Dir, DirLock, Emulation, Meter, RealDir, Striped};
use tierdb_engine::{Durability, Engine, Media, TierDir};
use tierdb_log::LoggedPool;
use tierdb_media::{Directory, Options, StoreDir, StoreMedia};
use tierdb_pmem::{MappedPool, Pool};

/// The file of a mapped pool in each fast tier.
pub(crate) const POOL_NAME: &str = "pool";
/// The engine's file in each flash tier.
pub(crate) const VALUES_NAME: &str = "values";
/// The largest flash tier: an address in the one file that valuelog has there has 41 bits, in units of 32 bytes. Where
/// the file system has no files so long, the tier is full earlier.
const FLASH_MAX: u64 = 64 << 40;
/// What the engine needs beside a pool in DRAM.
const ENGINE_MEMORY: u64 = 8 << 20;

/// A store whose tiers are found, checked and locked, or begun to be created.
pub(crate) struct Prepared {
    tiers: Tiers<RealDir>,
    config: Config,
    memory: u64,
}

impl Prepared {
    /// Finds, checks and locks the tiers that `config` names, or begins to create them, with room for an index
    /// of `least_pool` bytes where that is asked for: see [`shape::decide`].
    ///
    /// # Errors
    /// As [`Tiers::open`]; `Invalid` if `memory` is set and too small for the index.
    pub(crate) fn begin(config: &Config, intent: Intent, least_pool: Option<u64>) -> Result<Self> {
        config.validate()?;
        Self::at(places(config, Access::Write)?, config, intent, least_pool)
    }

    /// Finds, checks and locks the tiers that `config` names, to be looked at and not changed. Their media may be ones that
    /// cannot be written.
    ///
    /// # Errors
    /// As [`Prepared::begin`]; `NotFound` if there is no store.
    pub(crate) fn look(config: &Config) -> Result<Remains<RealDir>> {
        config.validate()?;
        let found = Self::at(places(config, Access::Read)?, config, Intent::OpenExisting, None)?;
        Ok(found.tiers.into_remains())
    }

    fn at(
        (places, mut directories): (Vec<Place<RealDir>>, Directories),
        config: &Config,
        intent: Intent,
        least_pool: Option<u64>,
    ) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let budget = config.memory_budget().bytes();
        let tiers = Tiers::open(
            places,
            intent,
            now,
            |path| {
                let made = make(path)?;
                // Two names of one that was absent are seen only now.
                directories.add(path)?;
                Ok(made)
            },
            |places| {
                // The fast tiers come first; without any, the first flash tier has all that a pool needs.
                let room = places.iter().take(config.fast.len().max(1));
                let room = room.map(|place| Ok(place.capacity.min(available_bytes(&place.path)?)));
                let room = room.collect::<Result<Vec<_>>>()?;
                let shape = shape::decide(config, &room, budget, least_pool.unwrap_or(0))?;
                shape::write_buffer_fits(config, &shape)?;
                // Before anything is written.
                memory_of_new(config, &shape)?;
                Ok(shape)
            },
            own_file,
        )?;
        if tiers.fresh {
            // Who made the directories may not have made their names durable, or have been interrupted before.
            for tier in tiers.fast.iter().chain(&tiers.flash) {
                match sync_dir(&parent(&tier.path)) {
                    Err(Error::Io { source, .. })
                        if source.kind() == std::io::ErrorKind::PermissionDenied => {}
                    synced => synced?,
                }
            }
        }
        let mut fast: Vec<_> = tiers.fast.iter().collect();
        fast.sort_by_key(|tier| tier.configured);
        let capacities: Vec<u64> = fast.into_iter().map(|tier| tier.identity().capacity).collect();
        shape::agree(config, &tiers.shape, &capacities)?;
        let memory = memory(config, &tiers.shape)?;
        let mut config = config.clone();
        if intent == Intent::CreateNew {
            // What is copied is read back, from the medium.
            config.flash.iter_mut().for_each(|flash| flash.page_cache = false);
        }
        Ok(Prepared { tiers, config, memory })
    }

    /// Starts the engine: on new files the first time for a new store, on what is there otherwise.
    pub(crate) fn engine(&mut self) -> Result<Box<dyn Engine>> {
        let engine = if self.tiers.shape.mode.is_logged() {
            let (latch, meter) = (FailureLatch::new(), Meter::new());
            let pool = self.logged_pool(&latch, &meter)?;
            self.start(pool, latch, meter)?
        } else {
            let pool = self.mapped_pool()?;
            self.start(pool, FailureLatch::new(), Meter::new())?
        };
        self.tiers.fresh = false;
        Ok(engine)
    }

    fn start<P: Pool>(&self, pool: P, latch: FailureLatch, fast_meter: Meter) -> Result<Box<dyn Engine>>
    where
        StoreMedia: From<Media<P, Directory>>,
    {
        let pool_len = pool.len();
        let media = self.media(pool, latch, fast_meter)?;
        let options = match self.tiers.shape.engine {
            EngineKind::Valuelog => Options::Valuelog(self.valuelog_options(pool_len)),
            EngineKind::Slab => Options::Slab(self.slab_options(pool_len, &media.flash)),
        };
        let media = StoreMedia::from(media);
        if self.tiers.fresh { media.create(options) } else { media.open(options) }
    }

    fn logged_pool(&self, latch: &FailureLatch, meter: &Meter) -> Result<LoggedPool<Striped<Directory>>> {
        let tiers =
            if self.tiers.fast.is_empty() { self.tiers.flash.get(..1) } else { Some(&*self.tiers.fast) };
        let tiers = tiers.unwrap_or_default().iter();
        let dirs: Vec<_> = tiers.map(|tier| StoreDir::Plain(tier.dir.clone())).collect();
        let emulated = if self.tiers.fast.is_empty() {
            let first = self.tiers.flash.first().and_then(|tier| self.config.flash.get(tier.configured));
            first.and_then(|flash| flash.emulate.as_deref())
        } else {
            self.config.fast.first().and_then(|fast| fast.emulate.as_deref())
        };
        let mut options = shape::logged_options(&self.tiers.shape);
        options.paged = options.paged.map(|least| least.max(self.memory / shape::DIRTY_MEMORY_SHARE));
        if !self.tiers.fresh {
            all_there(&dirs, &options.file_names())?;
        }
        let emulation = emulated.and_then(Emulation::named);
        let (dir, seed, latch, meter) = (Striped::new(dirs)?, self.seed(), latch.clone(), meter.clone());
        if self.tiers.fresh {
            LoggedPool::create(dir, options, seed, latch, meter, emulation)
        } else {
            LoggedPool::open(dir, options, seed, latch, meter, emulation)
        }
    }

    fn mapped_pool(&self) -> Result<MappedPool> {
        let tiers = &self.tiers.fast;
        let capacities: Vec<_> = tiers.iter().map(|tier| Some(tier.identity().capacity)).collect();
        let Some(lens) = shape::mapped_parts(&self.tiers.shape, &capacities) else {
            let place = Location::new(self.path().display().to_string(), 0);
            return Err(Error::corrupt(TierRole::Fast, "the tiers' capacities do not fit the pool", place));
        };
        let paths: Vec<PathBuf> = tiers.iter().map(|tier| tier.path.join(POOL_NAME)).collect();
        if !self.tiers.fresh {
            all_there(tiers.iter().map(|tier| &tier.dir), &[POOL_NAME])?;
        }
        let files: Vec<(&Path, u64)> = paths.iter().map(PathBuf::as_path).zip(lens).collect();
        let pool = MappedPool::open_all(&files, self.tiers.shape.mode == Mode::Emulated)?;
        if self.tiers.fresh {
            tiers.iter().try_for_each(|tier| tier.dir.sync())?;
        }
        let device = self.config.fast.first().and_then(|fast| fast.emulate.as_deref());
        Ok(pool.with_drain_latency(device.and_then(drain_latency_ns).unwrap_or(0)))
    }

    fn media<P: Pool>(&self, pool: P, latch: FailureLatch, fast_meter: Meter) -> Result<Media<P, Directory>> {
        let mode = self.mode_in_words(&pool)?;
        let mut flash = Vec::with_capacity(self.tiers.flash.len());
        for (number, tier) in self.tiers.flash.iter().enumerate() {
            // Without a fast tier, the first one has log and pool, and counts together with these.
            let has_log = number == 0 && self.tiers.fast.is_empty();
            let logged = if has_log { shape::logged_bytes(&self.tiers.shape) } else { 0 };
            let configured = self.config.flash.get(tier.configured);
            flash.push(TierDir {
                dir: StoreDir::Plain(self.flash_dir(tier)?),
                capacity: data_capacity(&tier.path, configured.and_then(|flash| flash.capacity), logged)?,
                meter: if has_log { fast_meter.clone() } else { Meter::new() },
                emulation: configured.and_then(|flash| flash.emulate.as_deref()).and_then(Emulation::named),
            });
        }
        let fast_dirs = self.fast_dirs()?;
        // What the one directory's device does is counted once, as the flash tier's, where values and log wear the same flash.
        let fast_meter = if self.tiers.fast.is_empty() { Meter::new() } else { fast_meter };
        let seed = self.seed();
        Ok(Media { pool: Arc::new(pool), fast_meter, fast_dirs, flash, seed, latch, mode })
    }

    /// What fast block tiers have beside log and pool, for tables.
    fn fast_dirs(&self) -> Result<Vec<TierDir<Directory>>> {
        let (tiers, shape) = (&self.tiers.fast, &self.tiers.shape);
        if shape.mode != Mode::Block {
            return Ok(Vec::new());
        }
        let emulated = self.config.fast.first().and_then(|fast| fast.emulate.as_deref());
        let logged = shape::logged_bytes(shape).div_ceil(tiers.len().max(1) as u64);
        let dir = |tier: &Tier<RealDir>| {
            // What others have cannot be left to the image of the pool, which grows.
            let (data, rest) = own_bytes(&tier.path)?;
            let room = available_bytes(&tier.path)?.saturating_add(data + rest);
            let whole = tier.identity().capacity.min(room);
            // That of a store that an older build has made may be larger.
            let logged = logged.max(rest);
            Ok(TierDir {
                dir: StoreDir::Plain(tier.dir.clone()),
                capacity: data_capacity(&tier.path, Some(ByteSize(whole)), logged)?,
                meter: Meter::new(),
                emulation: emulated.and_then(Emulation::named),
            })
        };
        tiers.iter().map(dir).collect()
    }

    /// What may be written to each of these flash tiers in a day.
    fn flash_bytes_per_day(&self, flash: &[TierDir<Directory>]) -> Vec<Option<u64>> {
        let tiers = self.tiers.flash.iter().zip(flash);
        let budget = |(tier, media): (&Tier<RealDir>, &TierDir<Directory>)| {
            let configured = self.config.flash.get(tier.configured)?;
            let capacity = configured.capacity.map_or(media.capacity, ByteSize::bytes);
            Some(configured.write_budget?.bytes_per_day(capacity))
        };
        tiers.map(budget).collect()
    }

    fn slab_options(&self, pool_len: u64, flash: &[TierDir<Directory>]) -> tierdb_slab::Options {
        let mut options = tierdb_slab::Options::for_pool(self.memory, pool_len);
        options.open_tables = open_tables();
        self.config.slab.apply(&mut options);
        options.flash_bytes_per_day = self.flash_bytes_per_day(flash);
        options
    }

    fn valuelog_options(&self, pool_len: u64) -> tierdb_valuelog::Options {
        let defaults = tierdb_valuelog::Options::for_pool(self.memory, pool_len);
        let shape = &self.tiers.shape;
        let defaults = match shape.mode {
            _ if self.config.valuelog.write_buffer.is_some() => defaults,
            Mode::Byte | Mode::Emulated => defaults.beside_second_level(pool_len),
            Mode::OneDirectory => defaults.beside_values(shape.log_len),
            Mode::Block | Mode::Paged => defaults,
        };
        self.config.valuelog.apply(defaults)
    }

    /// The directory of a flash tier, for files of values or tables.
    fn flash_dir(&self, tier: &Tier<RealDir>) -> Result<RealDir> {
        match self.config.flash.get(tier.configured) {
            Some(configured) if configured.page_cache => tier.dir.through_page_cache(),
            _ => Ok(tier.dir.clone()),
        }
    }

    fn mode_in_words(&self, pool: &impl Pool) -> Result<String> {
        let count = self.tiers.flash.len();
        let flash = if count == 1 { "1 flash tier".into() } else { format!("{count} flash tiers") };
        let mut words = match self.tiers.shape.mode {
            Mode::OneDirectory => format!("one plain SSD, {}", pool.domain()),
            Mode::Block | Mode::Paged | Mode::Byte | Mode::Emulated if self.tiers.fast.len() > 1 => {
                format!("fast tiers {}, {}, {flash}", self.fast_places(), pool.domain())
            }
            Mode::Block => format!("fast tier on a {}, {flash}", pool.domain()),
            Mode::Paged => format!("fast tier on a {}, records read from there, {flash}", pool.domain()),
            Mode::Byte | Mode::Emulated => format!("{} fast tier, {flash}", pool.domain()),
        };
        let mut media = Vec::new();
        for tier in &self.tiers.flash {
            media.push(self.flash_dir(tier)?.medium());
        }
        media.dedup();
        words.push_str(&format!(", {}", media.join("; ")));
        let fast = self.config.fast.first().and_then(|tier| tier.emulate.as_deref().map(|d| ("fast", d)));
        let flash = self.config.flash.iter().filter_map(|tier| tier.emulate.as_deref().map(|d| ("flash", d)));
        for (role, device) in fast.into_iter().chain(flash) {
            words.push_str(&format!(", EMULATED: {role} at the pace of {device}"));
        }
        Ok(words)
    }

    /// Where the fast tiers are, with the capacity of each.
    fn fast_places(&self) -> String {
        let place = |tier: &Tier<RealDir>| {
            format!("{} ({})", tier.path.display(), ByteSize(tier.identity().capacity))
        };
        self.tiers.fast.iter().map(place).collect::<Vec<_>>().join(" + ")
    }

    fn seed(&self) -> u64 {
        seed_of(self.tiers.uuid)
    }

    /// Makes the store one that may be used: every tier says *ready*.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.tiers.finish()
    }

    /// Declares that nobody relies on the store: its directories may be used for a new one.
    pub(crate) fn abandon(mut self) -> Result<()> {
        self.tiers.abandon()
    }

    /// Removes the store and its directories, as [`Tiers::remove`] does: nobody relies on it.
    pub(crate) fn remove(&mut self) -> Result<()> {
        self.tiers.remove(own_file)?;
        let remove = |path: &Path| remove_emptied(path).map_err(|e| io("remove", path, e));
        self.tiers.fast.iter().chain(&self.tiers.flash).try_for_each(|tier| remove(&tier.path))
    }

    pub(crate) fn uuid(&self) -> Uuid {
        self.tiers.uuid
    }

    pub(crate) fn durability(&self) -> Durability {
        self.config.durability
    }

    /// Where it is: its first flash tier, where files about the whole store are.
    pub(crate) fn path(&self) -> &Path {
        self.tiers.flash.first().map_or(Path::new(""), |tier| &tier.path)
    }

    /// The directory of that tier.
    pub(crate) fn home(&self) -> Option<RealDir> {
        self.tiers.flash.first().map(|tier| tier.dir.clone())
    }

    pub(crate) fn into_locks(self) -> Vec<Box<dyn DirLock>> {
        self.tiers.locks
    }
}

/// Refuses directories of a pool in which one of the files `names` is missing: nothing gives it back, so trying again helps nobody.
pub(crate) fn all_there<'a, D: Dir>(
    dirs: impl IntoIterator<Item = &'a D>,
    names: &[impl AsRef<str>],
) -> Result<()> {
    for dir in dirs {
        let there = dir.list()?;
        if let Some(missing) =
            names.iter().map(AsRef::as_ref).find(|name| !there.iter().any(|one| one == name))
        {
            let place = Location::new(format!("{}/{missing}", dir.name()), 0);
            let what = "a file is missing (`repair` saves what is left without it)";
            return Err(Error::corrupt(TierRole::Fast, what, place));
        }
    }
    Ok(())
}

/// Tables that a store may keep open: half of the files that this process may have open. The other half is for its other files, and those
/// that are open for a moment.
pub(crate) fn open_tables() -> u32 {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    (files.unwrap_or(u64::MAX) / 2).clamp(16, 1 << 20) as u32
}

/// Bytes for values or tables in the tier at `path`, which has `logged` bytes of log and pool.
fn data_capacity(path: &Path, configured: Option<ByteSize>, logged: u64) -> Result<u64> {
    let whole = match configured {
        Some(capacity) => capacity.bytes(),
        None => file_system_bytes(path)?,
    };
    // What is there stays reachable, whatever is configured now: less capacity only stops growth.
    let names = std::fs::read_dir(path).map_err(|e| io("list", path, e))?;
    let files = names.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_data));
    let used = files.map(|file| file.metadata().map_or(0, |file| file.len())).sum();
    Ok(whole.saturating_sub(logged).max(used).min(FLASH_MAX))
}

/// What seeds the checksums of everything in the store `uuid`.
pub(crate) fn seed_of(uuid: Uuid) -> u64 {
    let (high, low) = uuid.as_u64_pair();
    high ^ low.rotate_left(32)
}

/// The memory of the engine of a new store. Where records are on fast tiers, these decide what is needed: more than the default is not taken
/// unasked.
fn memory_of_new(config: &Config, shape: &Shape) -> Result<u64> {
    let (budget, needed) = (config.memory_budget(), ByteSize(memory(config, shape)?));
    if shape.mode == Mode::Paged && needed > budget {
        return Err(Error::invalid(format!(
            "memory: it is not set, and the default here, {budget}, is too little for records on fast tiers of this size \
             (`slab.records = \"device\"`), which take {} at the least: set as much or more, or less fast.capacity",
            exact(needed)
        )));
    }
    Ok(needed.bytes())
}

/// The memory of the engine. A logged pool is held in DRAM whatever is configured now.
fn memory(config: &Config, shape: &Shape) -> Result<u64> {
    let budget = config.memory_budget().bytes();
    if !shape.mode.is_logged() {
        return Ok(budget);
    }
    let pool = shape::dram_bytes(shape);
    match config.memory {
        Some(set) if set.bytes() < pool + ENGINE_MEMORY => Err(Error::invalid(format!(
            "memory: {set} cannot hold the index, for which {} are set aside when a store is created; at least {} is \
             needed",
            exact(ByteSize(pool)),
            exact(ByteSize(pool + ENGINE_MEMORY))
        ))),
        Some(_) => Ok(budget),
        // What it has of the pool grows with the pool, and not with memory.
        None if shape.mode == Mode::Paged => Ok(budget.max(pool + ENGINE_MEMORY)),
        None => Ok(budget.max(pool * 2)),
    }
}

fn io(op: &'static str, path: &Path, error: std::io::Error) -> Error {
    Error::io(op, path.display().to_string(), 0, error)
}

/// What is to be done with directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// A store is opened or created in them.
    Write,
    /// They are looked at.
    Read,
}

/// What is at the configured paths, the fast ones first. Nothing is changed.
///
/// # Errors
/// `NotAStore`; `Invalid` if two of them are one directory; `Unsupported` if one cannot be written and is to be; the
/// failures of the directories.
fn places(config: &Config, access: Access) -> Result<(Vec<Place<RealDir>>, Directories)> {
    let places: Vec<_> = config.tiers().map(|tier| place(tier, access)).collect::<Result<_>>()?;
    let mut directories = Directories::default();
    let mut there = places.iter().filter(|place| place.dir.is_some());
    there.try_for_each(|place| directories.add(&place.path))?;
    Ok((places, directories))
}

/// Directories of tiers that are there, each another one.
#[derive(Default)]
struct Directories(Vec<((u64, u64), PathBuf)>);

impl Directories {
    /// One more that is there.
    fn add(&mut self, path: &Path) -> Result<()> {
        let found = std::fs::metadata(path).map_err(|e| io("open", path, e))?;
        let directory = (found.dev(), found.ino());
        if let Some((_, other)) = self.0.iter().find(|(other, _)| *other == directory) {
            return Err(Error::invalid(format!(
                "{} and {} are one directory; each tier needs one of its own",
                other.display(),
                path.display()
            )));
        }
        self.0.push((directory, path.to_owned()));
        Ok(())
    }
}

/// The same for salvage: a directory that is none of a store's counts as absent.
pub(crate) fn places_left(config: &Config) -> Result<Vec<Place<RealDir>>> {
    let left = |tier: (TierRole, &Path, Option<ByteSize>)| match place(tier, Access::Read) {
        Err(Error::NotAStore { path, .. }) if path.is_dir() => {
            Ok(Place { dir: None, path, role: tier.0, capacity: u64::MAX })
        }
        found => found,
    };
    config.tiers().map(left).collect()
}

/// What is at a configured path.
fn place(
    (role, path, capacity): (TierRole, &Path, Option<ByteSize>),
    access: Access,
) -> Result<Place<RealDir>> {
    // What is written into `TIER` must mean the same from everywhere.
    let path = std::path::absolute(path).map_err(|e| io("resolve", path, e))?;
    let capacity = capacity.map_or(u64::MAX, ByteSize::bytes);
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => {
            refuse_foreign(&path)?;
            let dir = match access {
                Access::Write => RealDir::open(&path).map_err(|error| writable(&path, error))?,
                Access::Read => RealDir::open_to_read(&path)?,
            };
            Ok(Place { dir: Some(dir), path, role, capacity })
        }
        Ok(_) => Err(Error::NotAStore { path, why: "it is not a directory".into() }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Place { dir: None, path, role, capacity }),
        Err(e) => Err(io("open", &path, e)),
    }
}

/// The failure to open the directory `path` of a store, in words that say what can be done where it cannot be written.
fn writable(path: &Path, error: Error) -> Error {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match &error {
        Error::Io { source, .. } if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) => {
            Error::Unsupported {
                what: format!(
                    "{} cannot be written ({source}), and an open store writes: what is there can be verified, a \
                     checkpoint restored, and any other store repaired into a directory that can be written",
                    path.display()
                ),
            }
        }
        _ => error,
    }
}

/// Refuses a directory that is no tier and holds anything of others, before a probe is made in it: files, and what
/// [`Dir::list`] does not show.
fn refuse_foreign(path: &Path) -> Result<()> {
    if path.join(identity::NAME).exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(|e| io("list", path, e))? {
        let entry = entry.map_err(|e| io("list", path, e))?;
        let kind = entry.file_type().map_err(|e| io("list", path, e))?;
        let name = entry.file_name();
        let indifferent = match name.to_str() {
            Some(name) => name == "lost+found" || kind.is_file() && is_indifferent(name),
            None => false,
        };
        if !indifferent {
            return Err(not_a_store(path, &name));
        }
    }
    Ok(())
}

/// Creates the directory `path`, durable on return; its parent must be there, so that a store meant for a directory of a
/// file system that is not mounted is not created below the mount point.
fn make(path: &Path) -> Result<RealDir> {
    let parent = parent(path);
    if !parent.is_dir() {
        return Err(Error::NotFound {
            path: path.into(),
            hint: "its parent directory is not there either; mount or create that first",
        });
    }
    RealDir::create(path)
}

/// The directory that `path` is in.
pub(crate) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.into(),
        _ => ".".into(),
    }
}

/// Makes the names in the directory `path` durable.
pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    let dir = std::fs::File::open(path).map_err(|e| io("open", path, e))?;
    dir.sync_all().map_err(|e| io("sync", path, e))
}

/// The size of the file system that `path` is on.
fn file_system_bytes(path: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(path).map_err(|e| io("stat", path, e.into()))?;
    Ok(found.f_blocks.saturating_mul(found.f_frsize))
}

/// What is left of the file system that `path` is on.
fn available_bytes(path: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(path).map_err(|e| io("stat", path, e.into()))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// What an engine's files in the directory at `path` take, and what the others there do.
fn own_bytes(path: &Path) -> Result<(u64, u64)> {
    let stat = |error| io("stat", path, error);
    let (mut data, mut rest) = (0, 0);
    for file in std::fs::read_dir(path).map_err(stat)? {
        let file = file.map_err(stat)?;
        let bytes = file.metadata().map_err(stat)?.blocks() * 512;
        *if is_data(&file.file_name().to_string_lossy()) { &mut data } else { &mut rest } += bytes;
    }
    Ok((data, rest))
}

/// Whether `name` is a file that an engine keeps values in.
fn is_data(name: &str) -> bool {
    name == VALUES_NAME || tierdb_table::file_number(name).is_some()
}

/// Removes what was made of a store that could not be begun, which says nothing of itself yet.
pub(crate) fn remove_begun(path: &Path) {
    if !path.join(identity::NAME).exists() {
        let _ = remove_emptied(path);
    }
}

/// Removes a directory in which nothing is left but what counts as nothing.
fn remove_emptied(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name().to_str().is_some_and(is_indifferent) {
            std::fs::remove_file(entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

/// Whether `name` is a file that may be there of a store on which nobody relies.
fn own_file(name: &str) -> bool {
    let logged = tierdb_log::LoggedOptions::new(0).file_names();
    is_data(name)
        || [POOL_NAME, checkpoint::RECORD_NAME, repair::REPORT_NAME, history::NAME, history::NEW_NAME]
            .contains(&name)
        || logged.iter().any(|own| own == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a fast tier is not to decide that a store takes more memory than who creates it was told.
    #[test]
    fn records_on_a_large_fast_tier_take_no_memory_unasked() {
        let shape = |mode, pool_len| Shape { engine: EngineKind::Slab, mode, pool_len, log_len: 64 << 20 };
        let config = Config::new().with_engine(EngineKind::Slab);
        let budget = config.memory_budget().bytes();
        assert_eq!(memory_of_new(&config, &shape(Mode::Paged, 24 << 20)).expect("little"), budget);
        let large = shape(Mode::Paged, 1 << 40);
        let refused = memory_of_new(&config, &large).expect_err("43 GiB").to_string();
        assert!(refused.contains("slab.records") && refused.contains("fast.capacity"), "{refused}");
        let set = config.clone().with_memory(ByteSize::gib(64));
        assert_eq!(memory_of_new(&set, &large).expect("set"), 64 << 30);
        assert_eq!(
            memory(&config, &large).expect("it is there"),
            (1 << 40) / 24 + (9 << 20),
            "an old one opens"
        );
        // Room for the index of a copy is asked for by the copy.
        let copy = shape(Mode::OneDirectory, budget);
        assert_eq!(memory_of_new(&config, &copy).expect("as much as it needs"), 2 * budget);
    }

    #[test]
    fn a_directory_with_files_of_others_is_refused_before_anything_is_tried_there() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = Config::one_directory(dir.path());
        for name in ["LOCK", "TIER.new", "PROBE.17", "probe.tmp"] {
            std::fs::write(dir.path().join(name), "").expect("write");
        }
        let places = |config| places(config, Access::Write).map(|(places, _)| places);
        assert!(places(&config).expect("nothing of others")[0].dir.is_some());
        std::fs::write(dir.path().join("changelog.gz"), "").expect("write");
        let refused = places(&config).err().expect("refused");
        let Error::NotAStore { path, why } = &refused else { panic!("{refused}") };
        assert!(path == dir.path() && why.contains("changelog.gz"), "{refused}");
        std::fs::write(dir.path().join(identity::NAME), "").expect("write");
        assert!(places(&config).expect("it says that it is a tier")[0].dir.is_some());
    }
}
