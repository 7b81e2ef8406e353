//! Small stores on simulated media, for damage that is made by hand. What is wrong is said in words, so that a test can
//! expect it.

use super::rig::{Rig, Sizes};
use crate::{Durability, Engine, WriteBatch};
use tierdb_base::{ErrorKind, hex};
use tierdb_sim::World;

/// What is wrong, if anything is.
pub type Outcome = Result<(), String>;

/// A small store, in use.
pub struct Store<S> {
    /// Its sizes and mode.
    pub rig: Rig<S>,
    /// What it lies on.
    pub world: World,
    /// It, open.
    pub engine: Box<dyn Engine>,
}

impl<S: Sizes> Store<S> {
    /// An empty one.
    pub fn new(rig: Rig<S>) -> Self {
        fastrand::seed(1);
        let world = rig.empty_world();
        let engine = rig.open(&world).expect("a whole store opens");
        Store { rig, world, engine }
    }

    /// The one that is in `world`.
    ///
    /// # Errors
    /// That it does not open.
    pub fn open(rig: Rig<S>, world: World) -> Result<Self, String> {
        let engine = rig.open(&world).map_err(|error| format!("open: {error}"))?;
        Ok(Store { rig, world, engine })
    }

    /// Writes, durably.
    pub fn put(&self, key: &str, value: &[u8]) {
        self.engine.put(key.as_bytes(), value, Durability::Durable).expect("room");
    }

    /// Writes a batch, durably.
    pub fn write(&self, batch: &WriteBatch) {
        self.engine.write(batch, Durability::Durable).expect("room");
    }

    /// Moves everything to flash.
    pub fn flush(&self) {
        self.engine.flush().expect("room on flash");
    }

    /// The same store, opened anew, as after a kill.
    #[must_use]
    pub fn reopened(self) -> Self {
        drop(self.engine);
        let engine = self.rig.open(&self.world).expect("it opens");
        Store { rig: self.rig, world: self.world, engine }
    }

    /// Its media, once it is closed.
    pub fn closed(self) -> World {
        self.engine.close().expect("it closes");
        self.world
    }

    /// One of its counters or gauges.
    pub fn figure(&self, name: &str) -> u64 {
        self.engine.stats().figure(name).expect("a figure")
    }

    /// The value of `key` is `value`.
    ///
    /// # Errors
    /// What it is instead.
    pub fn has(&self, key: &str, value: &[u8]) -> Outcome {
        match self.engine.get(key.as_bytes()) {
            Ok(Some(found)) if *found == *value => Ok(()),
            Ok(found) => Err(format!("{key} has {}", shown(found.as_deref()))),
            Err(error) => Err(format!("{key}: {error}")),
        }
    }

    /// `key` cannot be read, and the error says that it is damaged.
    ///
    /// # Errors
    /// What it gives instead.
    pub fn is_damaged(&self, key: &str) -> Outcome {
        match self.engine.get(key.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
            Err(error) => Err(format!("{key}: {error}")),
            Ok(found) => Err(format!("{key} has {}", shown(found.as_deref()))),
        }
    }
}

/// A store in `world` is refused as damaged.
///
/// # Errors
/// What `else_` says of it if it is not, or that it opens.
pub fn is_refused<S: Sizes>(rig: Rig<S>, world: World, else_: impl FnOnce(&Store<S>) -> Outcome) -> Outcome {
    match rig.open(&world) {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
        Err(error) => Err(format!("open: {error}")),
        Ok(engine) => else_(&Store { rig, world, engine }).and(Err("it opens".into())),
    }
}

/// A value in words, cut.
pub fn shown(value: Option<&[u8]>) -> String {
    value.map_or_else(
        || "no value".into(),
        |value| format!("the value {:?}", hex::printable(&value[..value.len().min(20)])),
    )
}

/// Bytes that tell `name`.
pub fn value(name: &str, len: usize) -> Vec<u8> {
    name.bytes().cycle().take(len).collect()
}

/// Where `bytes` stand in an area for the first time, from `from` on.
///
/// # Panics
/// If they do not.
pub fn find(world: &World, area: &str, from: u64, bytes: &[u8]) -> u64 {
    let len = world.areas().into_iter().find(|of| of.name == area).expect("an area").len;
    let all = world.peek(area, from, (len - from) as usize);
    let at = all.windows(bytes.len()).position(|window| window == bytes);
    from + at.unwrap_or_else(|| panic!("{area} does not hold {}", shown(Some(bytes)))) as u64
}

/// The word at byte `at` of the pool.
pub fn word(world: &World, at: u64) -> u64 {
    u64::from_le_bytes(world.peek("pool", at, 8).try_into().expect("eight bytes"))
}

/// Writes the word at byte `at` of the pool.
pub fn set_word(world: &World, at: u64, word: u64) {
    world.overwrite("pool", at, &word.to_le_bytes());
}
