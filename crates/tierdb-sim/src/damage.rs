//! Damage to media: flipped bits, lost pages, cut and exchanged files.
//!
//! Everything here changes the medium and what programs read from it, at once and for good. Areas are
//! named as a pool is (`fast`), or as a file in its directory (`flash/values`).

use crate::space::PAGE;
use crate::world::{State, World};
use std::sync::Arc;

/// A pool, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// The pool's name, or the directory's and the file's with a slash between.
    pub name: String,
    /// Bytes.
    pub len: u64,
}

impl World {
    /// All pools, then all files, in a fixed order.
    pub fn areas(&self) -> Vec<Area> {
        let mut state = self.state();
        let mut areas: Vec<Area> =
            state.pools.iter().map(|pool| Area { name: pool.name.to_string(), len: pool.len }).collect();
        for dir in &mut state.dirs {
            let names: Vec<_> = dir.names.iter().map(|(name, id)| (name.clone(), *id)).collect();
            for (name, id) in names {
                areas.push(Area { name: format!("{}/{name}", dir.name), len: dir.file(id).len });
            }
        }
        areas
    }

    /// `len` bytes of an area from `at`, as programs see them.
    ///
    /// # Panics
    /// Here and below, if there is no such area or the range lies outside it.
    pub fn peek(&self, area: &str, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut state = self.state();
        match state.find(area) {
            Found::Pool(pool) => pool.live.read(at, &mut bytes),
            Found::File(file) => {
                assert!(at + len as u64 <= file.len, "the range lies inside {area}");
                file.content.read(at, &mut bytes);
            }
        }
        bytes
    }

    /// Replaces bytes of an area.
    pub fn overwrite(&self, area: &str, at: u64, bytes: &[u8]) {
        match self.state().find(area) {
            Found::Pool(pool) => pool.overwrite(at, bytes),
            Found::File(file) => {
                assert!(at + bytes.len() as u64 <= file.len, "the range lies inside {area}");
                file.content.write(at, bytes);
                file.settle();
            }
        }
    }

    /// Flips bit `bit` (0 to 7) of the byte at `at`.
    pub fn flip_bit(&self, area: &str, at: u64, bit: u32) {
        let byte = self.peek(area, at, 1)[0];
        self.overwrite(area, at, &[byte ^ (1 << bit)]);
    }

    /// Zeroes the page of 4,096 bytes that holds the byte at `at`.
    pub fn zero_page(&self, area: &str, at: u64) {
        self.overwrite(area, at / PAGE as u64 * PAGE as u64, &[0; PAGE]);
    }

    /// Makes reads of the page of 4,096 bytes of a file that holds the byte at `at` fail with EIO, in this world, until it is written.
    ///
    /// # Panics
    /// If the area is a pool: those have [`SimPool::poison`](crate::SimPool::poison).
    pub fn lose_page(&self, area: &str, at: u64) {
        match self.state().find(area) {
            Found::Pool(_) => panic!("{area} is a pool"),
            Found::File(file) => drop(file.unreadable.insert(at as usize / PAGE)),
        }
    }

    /// Cuts a file to `len` bytes. A length that is not a multiple of 4,096 leaves a file that a
    /// correct program never makes.
    ///
    /// # Panics
    /// If the area is a pool: its length is the device's.
    pub fn truncate(&self, area: &str, len: u64) {
        match self.state().find(area) {
            Found::Pool(_) => panic!("{area} is a pool, whose length is fixed"),
            Found::File(file) => {
                let last = len as usize / PAGE;
                file.content.truncate((len as usize).div_ceil(PAGE));
                if !len.is_multiple_of(PAGE as u64) && file.content.page(last).is_some() {
                    file.content.page_mut(last)[len as usize % PAGE..].fill(0);
                }
                file.len = len;
                file.settle();
            }
        }
    }

    /// Exchanges the content and lengths of two files.
    ///
    /// # Panics
    /// If one of them is a pool.
    pub fn swap(&self, one: &str, other: &str) {
        let mut state = self.state();
        let first = state.content(one);
        let second = state.content(other);
        state.set_content(one, second);
        state.set_content(other, first);
    }

    /// Puts the content of an area of another world (an older copy, another store) in place of this
    /// one's, with its length.
    ///
    /// # Panics
    /// If one is a pool and the other a file, or both are pools of different lengths.
    pub fn replace(&self, area: &str, other: &World, other_area: &str) {
        let is_pool = |world: &World, area| matches!(world.state().find(area), Found::Pool(_));
        assert_eq!(is_pool(self, area), is_pool(other, other_area), "two pools or two files");
        if is_pool(self, area) {
            let len = other.pool_len(other_area);
            assert_eq!(self.pool_len(area), len, "pools of one length");
            self.overwrite(area, 0, &other.peek(other_area, 0, len as usize));
        } else {
            let content = other.state().content(other_area);
            self.state().set_content(area, content);
        }
    }

    /// An independent copy of this world, as [`World::copy`] makes it, in which the device `device` (a pool
    /// or a whole directory) is as it is in `other`: an older copy, an empty one, that of another store.
    ///
    /// # Panics
    /// If either world has no such device.
    pub fn copy_with(&self, device: &str, other: &World) -> World {
        let (world, other) = (self.copy(), other.copy());
        {
            let (mut state, mut other) = (world.state(), other.state());
            if let Some(pool) = state.pools.iter_mut().find(|pool| &*pool.name == device) {
                let at = other.pools.iter().position(|pool| &*pool.name == device);
                *pool = other.pools.swap_remove(at.unwrap_or_else(|| panic!("no pool {device} to copy")));
            } else {
                let dir = state.dirs.iter_mut().find(|dir| &*dir.name == device);
                let at = other.dirs.iter().position(|dir| &*dir.name == device);
                *dir.unwrap_or_else(|| panic!("the world has no device {device}")) =
                    other.dirs.swap_remove(at.unwrap_or_else(|| panic!("no directory {device} to copy")));
            }
        }
        world
    }

    fn pool_len(&self, area: &str) -> u64 {
        match self.state().find(area) {
            Found::Pool(pool) => pool.len,
            Found::File(file) => file.len,
        }
    }
}

enum Found<'a> {
    Pool(&'a mut crate::pool::PoolState),
    File(&'a mut crate::file::FileState),
}

impl State {
    fn find(&mut self, area: &str) -> Found<'_> {
        match area.split_once('/') {
            None => {
                let pool = self.pools.iter_mut().find(|pool| &*pool.name == area);
                Found::Pool(pool.unwrap_or_else(|| panic!("the world has no pool {area}")))
            }
            Some((dir, name)) => {
                let dir = self.dirs.iter_mut().find(|candidate| &*candidate.name == dir);
                let file = dir.and_then(|dir| dir.named(name));
                Found::File(file.unwrap_or_else(|| panic!("the world has no file {area}")))
            }
        }
    }

    fn content(&mut self, area: &str) -> (u64, crate::space::Space) {
        match self.find(area) {
            Found::Pool(_) => panic!("{area} is a pool"),
            Found::File(file) => (file.len, file.content.clone()),
        }
    }

    fn set_content(&mut self, area: &str, (len, content): (u64, crate::space::Space)) {
        match self.find(area) {
            Found::Pool(_) => panic!("{area} is a pool"),
            Found::File(file) => {
                let open = Arc::clone(&file.open);
                *file = crate::file::FileState { open, ..crate::file::FileState::with_content(len, content) };
            }
        }
    }
}
