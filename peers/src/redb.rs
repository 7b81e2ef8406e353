//! redb: a copy-on-write B-tree in Rust.

use redb::{
    AccessGuard, Builder, Database, Durability as Commit, ReadableDatabase, TableDefinition, TableError,
};
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_bench::store::{Counts, Durability, Fast, Setup, Store, StoreError, System};

const ENTRIES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");
/// Of grouped writes one in so many makes those before it durable.
const GROUP: u64 = 1000;

/// redb on one SSD.
pub struct Redb;

impl System for Redb {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn about(&self) -> &'static str {
        "redb 4, all on one SSD; one transaction for each write; cache as large as the memory; no direct I/O: the page \
         cache is beyond the limit; grouped: every 1,000th commit is durable"
    }

    fn fast(&self) -> Fast {
        Fast::None
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Store>, StoreError> {
        let mut builder = Builder::new();
        builder.set_cache_size(usize::try_from(setup.memory)?);
        let database = builder.create(setup.flash_dir.join("redb"))?;
        Ok(Box::new(Open { database, writes: AtomicU64::new(0) }))
    }
}

struct Open {
    database: Database,
    writes: AtomicU64,
}

impl Store for Open {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        let found = match self.database.begin_read()?.open_table(ENTRIES) {
            Err(TableError::TableDoesNotExist(_)) => None,
            table => table?.get(key)?,
        };
        see(found.as_ref().map(AccessGuard::value));
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), StoreError> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let mut transaction = self.database.begin_write()?;
        let at_once = durability == Durability::Durable || number.is_multiple_of(GROUP);
        transaction.set_durability(if at_once { Commit::Immediate } else { Commit::None })?;
        transaction.open_table(ENTRIES)?.insert(key, value)?;
        Ok(transaction.commit()?)
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let table = self.database.begin_read()?.open_table(ENTRIES)?;
        for entry in table.range(from..)?.take(count) {
            let (key, value) = entry?;
            see(key.value(), value.value());
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        Counts {
            mode: format!("redb {}, page cache, no direct I/O", crate::version("redb")),
            ..Counts::default()
        }
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        let transaction = self.database.begin_write()?;
        Ok(transaction.commit()?)
    }
}
