//! What a store is made of: memory, tiers and a few settings, from TOML or built in code.
//!
//! A store on one plain SSD needs nothing of it set but its path. The store does not use more of a tier than it was given. Of memory caches
//! give way to what else it counts, as long as there are any; what is not counted, `docs/configuration.md` says. A key that is not known is an error that names it, so a misspelt setting cannot be silently ignored.

mod budget;
mod machine;
mod slab;
mod text;
mod tier;
mod valuelog;

pub use budget::WriteBudget;
pub use slab::{PinningThreshold, Promotion, Records, Slab};
pub(crate) use text::exact;
pub use tier::{FastKind, FastTier, FlashTier, MIN_TIER};
pub(crate) use tier::{drain_latency_ns, unknown_device};
pub use valuelog::Valuelog;

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use text::{durability, size};
use tierdb_base::{ByteSize, Error, Result, TierRole};
use tierdb_device::Emulation;
use tierdb_engine::Durability;

/// The least memory a store works with.
pub const MIN_MEMORY: ByteSize = ByteSize::mib(16);
/// The most fast tiers: as many as flash tiers.
pub const MAX_FAST_TIERS: usize = 16;
/// The most flash tiers: a value's address has four bits for its device.
pub const MAX_FLASH_TIERS: usize = 16;

/// Which engine lays the data out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineKind {
    /// Index and write buffer on the fast tier, values in a log on flash (PRISM, ASPLOS '23).
    #[default]
    Valuelog,
    /// All writes to slabs on the fast tier, what is unpopular in sorted tables on flash (PrismDB, ASPLOS '23).
    Slab,
}

/// What a store is made of.
///
/// ```
/// use tierdb::{ByteSize, Config, FastTier, FlashTier};
/// let config = Config::new()
///     .with_memory(ByteSize::gib(1))
///     .with_fast(FastTier::new("/mnt/slc/app", ByteSize::gib(64)))
///     .with_flash(FlashTier::new("/mnt/qlc/app").with_capacity(ByteSize::gib(2048)));
/// assert_eq!(Config::parse(&config.to_toml()?)?, config);
/// # Ok::<(), tierdb::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// Which engine lays the data out: `valuelog` or `slab`. Default `valuelog`.
    ///
    /// Choose `slab` where the fast tier is a tenth of the data or more and few keys are hot.
    /// *Fixed when the store is created:* an existing store is opened with its own, and `slab` for one of `valuelog` is refused.
    #[serde(default)]
    pub engine: EngineKind,
    /// What the store's caches, its index and, where it is in DRAM, its pool take together; a process takes somewhat more. Default 1 GiB, or a quarter of the
    /// memory of the machine, or of this process' control groups, if that is less; at least 16 MiB.
    ///
    /// Where no tier is byte-addressable, up to half of it, *fixed when the store is created*, is set aside (on one SSD an eighth of the
    /// capacity at the most, with the slab engine a sixth of the fast tier; with its records on the device a 24th of the fast tier, whatever `memory` is). The valuelog engine has its write buffer (a third, or less on one SSD) and its index there, and the index bounds how many keys fit; the slab engine has the keys that are
    /// kept fast there. The rest is cache: raise it if `Stats::cache` shows many misses. *Takes effect on open.*
    #[serde(default, with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// What a write survives when its call returns, where the call does not say: `durable` (power loss) or
    /// `grouped` (power loss after about 5 ms, or the next `sync`). Default `durable`.
    ///
    /// Choose `grouped` where losing the last milliseconds of writes is acceptable. *Takes effect on open.*
    #[serde(default, with = "durability")]
    pub durability: Durability,
    /// The fast tiers, up to 16, one for each device, all of the same `kind` and `emulate`. Default none: the store
    /// is then on one plain SSD.
    ///
    /// Byte-addressable ones are used one after another, as one; over block ones the log and the checkpoints are
    /// striped. *How many there are is fixed when the store is created.*
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fast: Vec<FastTier>,
    /// The flash tiers, 1 to 16, one for each device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flash: Vec<FlashTier>,
    /// Settings of the valuelog engine.
    #[serde(default, skip_serializing_if = "Valuelog::is_default")]
    pub valuelog: Valuelog,
    /// Settings of the slab engine.
    #[serde(default, skip_serializing_if = "Slab::is_default")]
    pub slab: Slab,
}

impl Config {
    /// A configuration without tiers, to add them to.
    pub fn new() -> Self {
        Self::default()
    }

    /// A store on one plain SSD, all of it in the directory `path`: what [`Db::open`](crate::Db::open) uses.
    ///
    /// It may grow as large as the file system; set `flash[0].capacity` to bound it.
    pub fn one_directory(path: impl Into<PathBuf>) -> Self {
        Config::new().with_flash(FlashTier::new(path))
    }

    /// Reads the configuration file at `path`. Relative paths in it are relative to its directory.
    ///
    /// # Errors
    /// `NotFound` if it is not there; `Invalid` with line and key for anything that is not a configuration.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::NotFound { path: path.into(), hint: "there is no configuration file" }
            }
            std::io::ErrorKind::InvalidData => {
                Error::invalid(format!("{} is not a configuration file: it is not text", path.display()))
            }
            _ => Error::io("read", path.display().to_string(), 0, e),
        })?;
        let mut config: Config = toml::from_str(&text)
            .map_err(|e| Error::invalid(format!("{}: {}", path.display(), in_words(&e))))?;
        let base = path.parent().unwrap_or(Path::new(""));
        for own in
            config.fast.iter_mut().map(|t| &mut t.path).chain(config.flash.iter_mut().map(|t| &mut t.path))
        {
            // One that is empty is refused below.
            if !own.as_os_str().is_empty() {
                *own = base.join(&*own);
            }
        }
        config.validate()?;
        Ok(config)
    }

    /// Reads a configuration from TOML text. Relative paths stay relative to the current directory.
    ///
    /// # Errors
    /// `Invalid`, with line and key.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Config = toml::from_str(text).map_err(|e| Error::invalid(in_words(&e)))?;
        config.validate()?;
        Ok(config)
    }

    /// What a user names on a command line: a configuration file, or the directory of a store on one SSD. What is not
    /// there, and whose name ends in `.toml`, is a configuration file that was misspelt, not a directory to be made.
    ///
    /// # Errors
    /// As [`Config::load`] where `path` is a file, or would be one.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let is_named_so = path.extension().is_some_and(|extension| extension == "toml");
        if path.is_file() || is_named_so && !path.exists() {
            return Self::load(path);
        }
        Ok(Self::one_directory(path))
    }

    /// This configuration as TOML: engine, durability and the kind of fast tiers, and what else was set.
    ///
    /// # Errors
    /// `Invalid` if a path is not UTF-8: TOML is.
    pub fn to_toml(&self) -> Result<String> {
        if let Some((_, path, _)) = self.tiers().find(|(_, path, _)| path.to_str().is_none()) {
            return Err(Error::invalid(format!("{}: the path is not UTF-8, as TOML is", path.display())));
        }
        toml::to_string(self).map_err(|e| Error::invalid(e.to_string()))
    }

    /// The same, with this engine.
    #[must_use]
    pub fn with_engine(mut self, engine: EngineKind) -> Self {
        self.engine = engine;
        self
    }

    /// The same, with this much memory.
    #[must_use]
    pub fn with_memory(mut self, memory: ByteSize) -> Self {
        self.memory = Some(memory);
        self
    }

    /// The same, with this durability for writes that do not name one.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The same, with one more fast tier.
    #[must_use]
    pub fn with_fast(mut self, tier: FastTier) -> Self {
        self.fast.push(tier);
        self
    }

    /// The same, with one more flash tier.
    #[must_use]
    pub fn with_flash(mut self, tier: FlashTier) -> Self {
        self.flash.push(tier);
        self
    }

    /// The same, with these settings of the valuelog engine.
    #[must_use]
    pub fn with_valuelog(mut self, valuelog: Valuelog) -> Self {
        self.valuelog = valuelog;
        self
    }

    /// The same, with these settings of the slab engine.
    #[must_use]
    pub fn with_slab(mut self, slab: Slab) -> Self {
        self.slab = slab;
        self
    }

    /// The memory budget: what was set, or the default for this machine.
    pub fn memory_budget(&self) -> ByteSize {
        self.memory.unwrap_or_else(default_memory)
    }

    /// Checks every setting by itself, and tiers against each other; that settings are of the store's engine is seen when it is opened.
    /// Looks at no directory.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and its range.
    pub fn validate(&self) -> Result<()> {
        if self.memory.is_some_and(|memory| memory < MIN_MEMORY) {
            return Err(Error::invalid(format!("memory: at least {MIN_MEMORY} is needed")));
        }
        if self.flash.is_empty() {
            return Err(Error::invalid(
                "flash: at least one flash tier is needed, as in [[flash]] path = \"./data\"",
            ));
        }
        if self.flash.len() > MAX_FLASH_TIERS {
            return Err(Error::invalid(format!("flash: at most {MAX_FLASH_TIERS} flash tiers are possible")));
        }
        if self.fast.len() > MAX_FAST_TIERS {
            return Err(Error::invalid(format!("fast: at most {MAX_FAST_TIERS} fast tiers are possible")));
        }
        if let Some(tier) =
            self.flash.iter().find(|tier| tier.write_budget.is_some_and(WriteBudget::is_nothing))
        {
            let place = tier.path.display();
            return Err(Error::invalid(format!("flash.write_budget of {place}: must be more than nothing")));
        }
        let mut seen: Vec<&Path> = Vec::new();
        for (role, path, capacity) in self.tiers() {
            let name = if role == TierRole::Fast { "fast" } else { "flash" };
            if path.as_os_str().is_empty() {
                return Err(Error::invalid(format!("{name}.path: must not be empty")));
            }
            if capacity.is_some_and(|capacity| capacity < MIN_TIER) {
                return Err(Error::invalid(format!(
                    "{name}.capacity of {}: at least {MIN_TIER} is needed",
                    path.display()
                )));
            }
            if seen.contains(&path) {
                return Err(Error::invalid(format!(
                    "{name}.path: {} is named twice; each tier needs a directory of its own (for one device, leave \
                     out [[fast]])",
                    path.display()
                )));
            }
            seen.push(path);
        }
        for tier in &self.fast {
            if let Some(first) = self.fast.first()
                && (tier.kind != first.kind || tier.emulate != first.emulate)
            {
                let of = |tier: &FastTier| match &tier.emulate {
                    Some(device) => format!("{:?} at the pace of {device}", tier.kind),
                    None => format!("{:?}", tier.kind),
                };
                return Err(Error::invalid(format!(
                    "fast: {} is of kind {}, and {} of kind {}; all fast tiers must have the same `kind` and `emulate`",
                    first.path.display(),
                    of(first),
                    tier.path.display(),
                    of(tier)
                )));
            }
            let Some(device) = &tier.emulate else { continue };
            let known = match tier.kind {
                FastKind::Block => Emulation::named(device).is_some(),
                FastKind::Byte | FastKind::Emulated => drain_latency_ns(device).is_some(),
                FastKind::Auto => Emulation::named(device).is_some() || drain_latency_ns(device).is_some(),
            };
            if !known {
                return Err(unknown_device("fast", device));
            }
        }
        self.valuelog.validate()?;
        self.slab.validate()?;
        for tier in &self.flash {
            if let Some(device) = &tier.emulate
                && Emulation::named(device).is_none()
            {
                return Err(unknown_device("flash", device));
            }
        }
        Ok(())
    }

    /// Role, path and capacity of every tier, the fast ones first.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (TierRole, &Path, Option<ByteSize>)> {
        let fast = self.fast.iter().map(|t| (TierRole::Fast, t.path.as_path(), Some(t.capacity)));
        fast.chain(self.flash.iter().map(|t| (TierRole::Flash, t.path.as_path(), t.capacity)))
    }
}

/// What is wrong with a text, where, and what was probably meant.
fn in_words(error: &toml::de::Error) -> String {
    let what = error.to_string().trim_end().to_owned();
    if what.contains("expected a sequence") {
        return format!("{what}\n(there may be several tiers of a kind: write [[fast]] and [[flash]])");
    }
    what
}

/// 1 GiB, or a quarter of what this process may have, if that is less.
fn default_memory() -> ByteSize {
    ByteSize::gib(1).min(ByteSize(machine::memory() / 4)).max(MIN_MEMORY)
}

#[cfg(test)]
mod tests;
