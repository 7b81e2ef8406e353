//! The tiers of a store: where they are, how large, and what kind of storage.

use super::budget::WriteBudget;
use super::text::size;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tierdb_base::{ByteSize, Error};
use tierdb_device::Emulation;

/// The smallest tier a store works with.
pub const MIN_TIER: ByteSize = ByteSize::mib(32);

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
    /// Of a byte-addressable tier the valuelog engine has four fifths for the index (all but 8 GiB, if that is more), which bounds how
    /// many keys fit: a key takes about 40 bytes and its own length there, whatever its value's; the slab engine has all of it for keys
    /// with their values. On a block tier both are in DRAM, in half of `memory` at the most; of the tier the valuelog engine uses as much as
    /// two copies of that and the log take, and the slab engine the rest, too, for tables, or for its records
    /// ([`Slab::records`](crate::Slab::records)).
    /// *Fixed when the store is created.*
    #[serde(with = "size")]
    pub capacity: ByteSize,
    /// What kind of storage it is. Default `auto`.
    ///
    /// Set it where the choice must not depend on how the path happens to be mounted.
    /// *Fixed when the store is created.*
    #[serde(default)]
    pub kind: FastKind,
    /// A device to imitate the latency of: `optane-pmem` for the byte kinds; `optane-ssd`, `pcie4-ssd`, `tlc` or
    /// `qlc` for block. Default none.
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
    /// A device to imitate the latency of: `optane-ssd`, `pcie4-ssd`, `tlc` or `qlc`. Default none.
    ///
    /// For benchmarks on other hardware than the intended; slows the tier down, never up. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulate: Option<String>,
    /// Whether its values or tables are read and written through the page cache, which takes of the machine's memory what it likes, beyond the
    /// store's `memory`. Default false: past it, where the file system allows that.
    ///
    /// What the store caches is chosen value by value, and worth more for each byte. Set it where the machine has memory to spare that is
    /// not to be promised to the store. Durability is the same; log and checkpoints are not concerned. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "is_false")]
    pub page_cache: bool,
    /// Most that is written to it in a day: drive writes of its `capacity` (`"0.3 DWPD"`), or a size (`"200 GiB/day"`).
    /// Default none: any. For the slab engine; counted are its tables, on through closing and opening, and an hour's worth may be written ahead.
    ///
    /// When it is spent, nothing is moved to flash until more of it has come in: the fast tier fills up, then writers
    /// are slowed down the more the less is free, by up to 100 ms for each 16 KiB of a write, but 2 s at the most. Only a writer
    /// that finds no room at all, an index that takes all of `memory`, and who calls `flush` or `compact`, makes it be exceeded.
    /// *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_budget: Option<WriteBudget>,
}

impl FlashTier {
    /// A flash tier in the directory `path`, as large as its file system.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FlashTier { path: path.into(), capacity: None, emulate: None, page_cache: false, write_budget: None }
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

    /// The same, read and written through the page cache.
    #[must_use]
    pub fn with_page_cache(mut self) -> Self {
        self.page_cache = true;
        self
    }

    /// The same, with at most this much written to it in a day.
    #[must_use]
    pub fn with_write_budget(mut self, budget: WriteBudget) -> Self {
        self.write_budget = Some(budget);
        self
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_false(set: &bool) -> bool {
    !set
}

/// Byte-addressable devices by name, with the latency of a drain in nanoseconds (PRISM section 2.1).
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
