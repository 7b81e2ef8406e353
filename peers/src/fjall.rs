//! fjall: an LSM tree in Rust.

use fjall::config::CompressionPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use tierdb_bench::store::{Counts, Durability, Fast, Setup, Store, StoreError, System};

/// fjall on one SSD.
pub struct Fjall;

impl System for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn about(&self) -> &'static str {
        "fjall 3, all on one SSD; block cache 3/4 of the memory, up to five write buffers of 1/20; no direct I/O: the page cache is \
         beyond the limit; durable: SyncData after each write"
    }

    fn fast(&self) -> Fast {
        Fast::None
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Store>, StoreError> {
        // One that is written to, and four that wait to be flushed, after which writers wait.
        let buffers = (setup.memory / 4).max(5 << 18);
        let database = Database::builder(setup.flash_dir.join("fjall"))
            .cache_size(setup.memory.saturating_sub(buffers))
            .open()?;
        let entries = database.keyspace("entries", || {
            KeyspaceCreateOptions::default()
                .data_block_compression_policy(CompressionPolicy::disabled())
                .max_memtable_size(buffers / 5)
        })?;
        Ok(Box::new(Open { database, entries }))
    }
}

struct Open {
    database: Database,
    entries: Keyspace,
}

impl Store for Open {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        see(self.entries.get(key)?.as_deref());
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), StoreError> {
        self.entries.insert(key, value)?;
        if durability == Durability::Durable {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        for entry in self.entries.range(from..).take(count) {
            let (key, value) = entry.into_inner()?;
            see(&key, &value);
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        Counts {
            mode: format!("fjall {}, page cache, no direct I/O", crate::version("fjall")),
            ..Counts::default()
        }
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}
