//! What a store is made of: memory, tiers and a few settings, from TOML or built in code.
//!
//! There are at most ten things to set, and a store on one plain SSD needs none of them. Sizes are
//! contracts: the store does not use more of a tier, nor of memory, than it was given. A key that is not
//! known is an error that names it, so a misspelt setting cannot be silently ignored.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tierdb_base::{ByteSize, Error, Result, TierRole};
use tierdb_device::Emulation;
use tierdb_engine::Durability;

/// The least memory a store works with.
pub const MIN_MEMORY: ByteSize = ByteSize::mib(16);
/// The smallest tier a store works with.
pub const MIN_TIER: ByteSize = ByteSize::mib(32);
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

/// What kind of storage a fast tier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FastKind {
    /// Found when the store is created: `Byte` where the path is on a DAX file system, otherwise `Block`.
    #[default]
    Auto,
    /// Byte-addressable NVM: a DAX file system (`mount -o dax`). Refused where stores to it would not be
    /// durable, rather than degraded.
    Byte,
    /// A block device faster than flash: an Optane or SLC SSD.
    Block,
    /// Byte-addressable NVM imitated in shared memory: put the path on tmpfs. What is written does not
    /// survive power loss. For tests and benchmarks, and named as emulated in every report.
    Emulated,
}

/// A fast tier: index and write buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FastTier {
    /// Its directory, for this store alone. Created if absent; its parent must be there. A relative path in
    /// a configuration file is relative to that file.
    ///
    /// May change between opens, and tiers may be listed in another order: a tier is known by what is
    /// written in it.
    pub path: PathBuf,
    /// Most bytes the store may use in it. At least 32 MiB; no default. Of several block tiers as much is used as of
    /// the smallest: give them the same.
    ///
    /// It bounds how many keys fit: a key takes about 32 bytes and its own length here, whatever its value's.
    /// *Fixed when the store is created.*
    #[serde(with = "size")]
    pub capacity: ByteSize,
    /// What kind of storage it is. Default `auto`.
    ///
    /// Set it where the choice must not depend on how the path happens to be mounted.
    /// *Fixed when the store is created.*
    #[serde(default)]
    pub kind: FastKind,
    /// A device to imitate the latency of: `optane-pmem` for the byte kinds; `optane-ssd`, `tlc` or `qlc` for
    /// block. Default none.
    ///
    /// For benchmarks on other hardware than the intended; slows the tier down, never up. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulate: Option<String>,
}

impl FastTier {
    /// A fast tier in the directory `path` of at most `capacity`, its kind found on creation.
    pub fn new(path: impl Into<PathBuf>, capacity: ByteSize) -> Self {
        FastTier { path: path.into(), capacity, kind: FastKind::Auto, emulate: None }
    }

    /// The same, of this kind.
    #[must_use]
    pub fn with_kind(mut self, kind: FastKind) -> Self {
        self.kind = kind;
        self
    }

    /// The same, at the pace of a named device.
    #[must_use]
    pub fn with_emulation(mut self, device: impl Into<String>) -> Self {
        self.emulate = Some(device.into());
        self
    }
}

/// A flash tier: values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FlashTier {
    /// Its directory, for this store alone. Created if absent; its parent must be there. A relative path in
    /// a configuration file is relative to that file.
    ///
    /// May change between opens, and tiers may be listed in another order: a tier is known by what is
    /// written in it.
    pub path: PathBuf,
    /// Most bytes the store may use in it. Default: as large as the file system it is on; at least 32 MiB.
    ///
    /// Set it where the file system is shared with something else. *Takes effect on open;* below what is
    /// already used, writes fail with `NoSpace` until enough is deleted.
    #[serde(default, with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteSize>,
    /// A device to imitate the latency of: `optane-ssd`, `tlc` or `qlc`. Default none.
    ///
    /// For benchmarks on other hardware than the intended; slows the tier down, never up. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulate: Option<String>,
}

impl FlashTier {
    /// A flash tier in the directory `path`, as large as its file system.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FlashTier { path: path.into(), capacity: None, emulate: None }
    }

    /// The same, of at most `capacity`.
    #[must_use]
    pub fn with_capacity(mut self, capacity: ByteSize) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// The same, at the pace of a named device.
    #[must_use]
    pub fn with_emulation(mut self, device: impl Into<String>) -> Self {
        self.emulate = Some(device.into());
        self
    }
}

/// What a store is made of.
///
/// ```
/// use tierdb::{ByteSize, Config, FastTier, FlashTier};
/// let config = Config::new()
///     .with_memory(ByteSize::gib(1))
///     .with_fast(FastTier::new("/mnt/slc/app", ByteSize::gib(64)))
///     .with_flash(FlashTier::new("/mnt/qlc/app").with_capacity(ByteSize::gib(2048)));
/// assert_eq!(Config::parse(&config.to_toml())?, config);
/// # Ok::<(), tierdb::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// Which engine lays the data out: `valuelog` or `slab`. Default `valuelog`.
    ///
    /// Choose `slab` where the fast tier is a tenth of the data or more and few keys are hot.
    /// *Fixed when the store is created:* an existing store is opened with its own.
    #[serde(default)]
    pub engine: EngineKind,
    /// Everything the store holds in DRAM, caches and indexes included. Default 1 GiB, or a quarter of the
    /// machine's memory if that is less; at least 16 MiB.
    ///
    /// Where no byte-addressable tier is there, half of it is kept for the index and the write buffer, and
    /// bounds how many keys fit; that half is *fixed when the store is created*. The rest is the value cache:
    /// raise it if `Stats::cache` shows many misses. *Takes effect on open.*
    #[serde(default, with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// What a write survives when its call returns, where the call does not say: `durable` (power loss) or
    /// `grouped` (power loss after at most 5 ms, or the next `sync`). Default `durable`.
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
}

/// Settings of the valuelog engine. The defaults suit most workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Valuelog {
    /// Bytes of the write buffer, where values stay until they go to flash. Default a third of the pool (the
    /// fast tier, or the half of memory that stands for it), at most 8 GiB; at least 1 MiB.
    ///
    /// Raise it where the same keys are written again and again, or written in bursts; lower it where more keys
    /// must fit. *Fixed when the store is created.*
    #[serde(default, with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub write_buffer: Option<ByteSize>,
    /// Write-buffer fill, in percent, at which values start to move to flash. Default 50, 10..=90.
    ///
    /// Raise it to let more overwrites die in the buffer; lower it if writers stall (`Stats::stall_ns`).
    /// *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_pct: Option<u8>,
    /// Free share of flash, in percent, below which garbage collection starts. Default 10, 1..=50.
    ///
    /// Raise it if writers stall on a nearly full store; lower it to use more of the capacity, at the cost of
    /// more writes to flash. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc_free_pct: Option<u8>,
}

impl Valuelog {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn validate(&self) -> Result<()> {
        if self.write_buffer.is_some_and(|buffer| buffer < ByteSize::mib(1)) {
            return Err(Error::invalid("valuelog.write_buffer: at least 1 MiB is needed"));
        }
        if self.reclaim_pct.is_some_and(|pct| !(10..=90).contains(&pct)) {
            return Err(Error::invalid("valuelog.reclaim_pct: must be 10 to 90"));
        }
        if self.gc_free_pct.is_some_and(|pct| !(1..=50).contains(&pct)) {
            return Err(Error::invalid("valuelog.gc_free_pct: must be 1 to 50"));
        }
        Ok(())
    }
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
            .map_err(|e| Error::invalid(format!("{}: {}", path.display(), e.to_string().trim_end())))?;
        let base = path.parent().unwrap_or(Path::new(""));
        for own in
            config.fast.iter_mut().map(|t| &mut t.path).chain(config.flash.iter_mut().map(|t| &mut t.path))
        {
            *own = base.join(&*own);
        }
        config.validate()?;
        Ok(config)
    }

    /// Reads a configuration from TOML text. Relative paths stay relative to the current directory.
    ///
    /// # Errors
    /// `Invalid`, with line and key.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Config =
            toml::from_str(text).map_err(|e| Error::invalid(e.to_string().trim_end().to_owned()))?;
        config.validate()?;
        Ok(config)
    }

    /// What a user names on a command line: a configuration file, or the directory of a store on one SSD.
    ///
    /// # Errors
    /// As [`Config::load`] where `path` is a file.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.is_file() { Self::load(path) } else { Ok(Self::one_directory(path)) }
    }

    /// This configuration as TOML, with only what was set.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
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

    /// The memory budget: what was set, or the default for this machine.
    pub fn memory_budget(&self) -> ByteSize {
        self.memory.unwrap_or_else(default_memory)
    }

    /// Checks every setting by itself and against the others. Looks at no directory.
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

/// Byte-addressable devices by name, with the latency of a drain in nanoseconds (PRISM Figure 1).
const BYTE_DEVICES: [(&str, u64); 1] = [("optane-pmem", 300)];

/// What a drain takes at least on the byte-addressable device `name`, if there is one.
pub(crate) fn drain_latency_ns(name: &str) -> Option<u64> {
    BYTE_DEVICES.iter().find(|(known, _)| *known == name).map(|(_, ns)| *ns)
}

pub(crate) fn unknown_device(role: &str, device: &str) -> Error {
    let block = Emulation::NAMED.map(|e| e.name).join(", ");
    let byte = BYTE_DEVICES.map(|(name, _)| name).join(", ");
    Error::invalid(format!(
        "{role}.emulate: {device:?} does not name a device that can be imitated here (byte-addressable: {byte}; \
         block: {block})"
    ))
}

/// 1 GiB, or a quarter of the machine's memory if that is less.
fn default_memory() -> ByteSize {
    let info = rustix::system::sysinfo();
    let total = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    ByteSize::gib(1).min(ByteSize(total / 4)).max(MIN_MEMORY)
}

/// Sizes as strings.
mod size {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
    use tierdb_base::ByteSize;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(i64),
    }

    fn parse<E: serde::de::Error>(written: Written) -> Result<ByteSize, E> {
        match written {
            Written::Text(text) => text.parse().map_err(E::custom),
            Written::Number(n) => {
                Err(E::custom(format!("{n} is not a size: write it with its unit, as in \"64 MiB\"")))
            }
        }
    }

    pub fn serialize<S: Serializer>(size: &ByteSize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::exact(*size))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ByteSize, D::Error> {
        let written = Written::deserialize(from)
            .map_err(|_| D::Error::custom("a size is a text with its unit, as in \"64 MiB\""))?;
        parse(written)
    }

    pub mod optional {
        use super::{ByteSize, Deserializer, Serializer};

        pub fn serialize<S: Serializer>(size: &Option<ByteSize>, to: S) -> Result<S::Ok, S::Error> {
            match size {
                Some(size) => super::serialize(size, to),
                None => to.serialize_none(),
            }
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
            super::deserialize(from).map(Some)
        }
    }
}

/// A size as text that parses back to the same number of bytes.
fn exact(size: ByteSize) -> String {
    let text = size.to_string();
    match text.parse::<ByteSize>() {
        Ok(parsed) if parsed == size => text,
        _ => format!("{} B", size.bytes()),
    }
}

mod durability {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tierdb_engine::Durability;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Written {
        Durable,
        Grouped,
    }

    pub fn serialize<S: Serializer>(durability: &Durability, to: S) -> Result<S::Ok, S::Error> {
        match durability {
            Durability::Durable => Written::Durable,
            Durability::Grouped => Written::Grouped,
        }
        .serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Durability, D::Error> {
        Written::deserialize(from).map(|written| match written {
            Written::Durable => Durability::Durable,
            Written::Grouped => Durability::Grouped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
        engine = "valuelog"
        memory = "1 GiB"
        durability = "grouped"
        [[fast]]
        path = "/mnt/slc/app"
        capacity = "64 GiB"
        kind = "block"
        emulate = "optane-ssd"
        [[flash]]
        path = "/mnt/qlc/app"
        capacity = "2 TiB"
        [[flash]]
        path = "/mnt/qlc2/app"
        emulate = "qlc"
        [valuelog]
        write_buffer = "2 GiB"
        gc_free_pct = 5
    "#;

    fn refused(text: &str) -> String {
        let error = Config::parse(text).expect_err(text);
        assert_eq!(error.kind(), tierdb_base::ErrorKind::Invalid, "{error}");
        error.to_string()
    }

    #[test]
    fn toml_and_builder_say_the_same() {
        let built = Config::new()
            .with_memory(ByteSize::gib(1))
            .with_durability(Durability::Grouped)
            .with_fast(
                FastTier::new("/mnt/slc/app", ByteSize::gib(64))
                    .with_kind(FastKind::Block)
                    .with_emulation("optane-ssd"),
            )
            .with_flash(FlashTier::new("/mnt/qlc/app").with_capacity(ByteSize::gib(2048)))
            .with_flash(FlashTier::new("/mnt/qlc2/app").with_emulation("qlc"))
            .with_valuelog(Valuelog {
                write_buffer: Some(ByteSize::gib(2)),
                gc_free_pct: Some(5),
                ..Valuelog::default()
            });
        let parsed = Config::parse(FULL).expect("full");
        assert_eq!(parsed, built);
        assert_eq!(Config::parse(&built.to_toml()).expect("own text"), built);
    }

    #[test]
    fn odd_sizes_survive_being_written() {
        let config = Config::one_directory("x").with_memory(ByteSize((1 << 30) + 1));
        assert_eq!(Config::parse(&config.to_toml()).expect("own text"), config);
    }

    #[test]
    fn unknown_keys_are_named() {
        for (text, key) in [
            ("memroy = \"1 GiB\"\n[[flash]]\npath = \"a\"", "memroy"),
            ("[[flash]]\npath = \"a\"\ncapcity = \"1 GiB\"", "capcity"),
            ("[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\nsize = 1\n[[flash]]\npath = \"b\"", "size"),
            ("engine = \"btree\"\n[[flash]]\npath = \"a\"", "btree"),
            ("durability = \"maybe\"\n[[flash]]\npath = \"a\"", "maybe"),
        ] {
            assert!(refused(text).contains(key), "{text}");
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (text, word) in [
            ("memory = \"1 GiB\"", "flash"),
            ("memory = 1073741824\n[[flash]]\npath = \"a\"", "unit"),
            ("memory = \"1 MiB\"\n[[flash]]\npath = \"a\"", "16 MiB"),
            ("[[flash]]\npath = \"a\"\ncapacity = \"1 MiB\"", "flash.capacity"),
            ("[[flash]]\npath = \"\"", "flash.path"),
            ("[[flash]]\npath = \"a\"\n[[flash]]\npath = \"a\"", "twice"),
            ("[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\n[[flash]]\npath = \"a\"", "twice"),
            ("[[flash]]\npath = \"a\"\nemulate = \"tape\"", "tape"),
            ("[[flash]]\npath = \"a\"\n[valuelog]\nreclaim_pct = 95", "reclaim_pct"),
            ("[[flash]]\npath = \"a\"\n[valuelog]\ngc_free_pct = 0", "gc_free_pct"),
            ("[[flash]]\npath = \"a\"\n[valuelog]\nwrite_buffer = \"1 KiB\"", "write_buffer"),
            (
                "[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\nkind = \"byte\"\nemulate = \"qlc\"\n[[flash]]\npath = \"b\"",
                "qlc",
            ),
            (
                "[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\n[[fast]]\npath = \"b\"\ncapacity = \"1 GiB\"\nkind = \
                 \"block\"\n[[flash]]\npath = \"c\"",
                "b of kind Block",
            ),
            (
                "[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\n[[fast]]\npath = \"b\"\ncapacity = \"1 GiB\"\nemulate = \
                 \"tlc\"\n[[flash]]\npath = \"c\"",
                "pace of tlc",
            ),
        ] {
            let said = refused(text);
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn there_may_be_sixteen_fast_tiers() {
        let config = |count| {
            (0..count).fold(Config::one_directory("x"), |config, number| {
                config.with_fast(FastTier::new(format!("fast{number}"), ByteSize::mib(64)))
            })
        };
        assert!(config(MAX_FAST_TIERS).validate().is_ok());
        let refused = config(MAX_FAST_TIERS + 1).validate().expect_err("too many").to_string();
        assert!(refused.contains("16"), "{refused}");
    }

    #[test]
    fn relative_paths_are_relative_to_the_file() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("store.toml");
        std::fs::write(&file, "[[flash]]\npath = \"data\"").expect("write");
        assert_eq!(Config::load(&file).expect("load").flash[0].path, dir.path().join("data"));
        assert_eq!(Config::at(&file).expect("a file"), Config::load(&file).expect("load"));
        assert_eq!(Config::at(dir.path()).expect("a directory"), Config::one_directory(dir.path()));
        let missing = Config::load(dir.path().join("none.toml")).expect_err("missing");
        assert_eq!(missing.kind(), tierdb_base::ErrorKind::NotFound);
    }
}
