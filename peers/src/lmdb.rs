//! LMDB: a memory-mapped copy-on-write B+tree.

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};
use std::ops::Bound;
use tierdb_bench::ledger::MAX_WRITERS;
use tierdb_bench::store::{Counts, Durability, Fast, Setup, Store, StoreError, System};

/// LMDB on one SSD.
pub struct Lmdb;

impl System for Lmdb {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn about(&self) -> &'static str {
        "LMDB (heed), all on one SSD; one transaction for each write; without read-ahead; it has no cache of its own: the page \
         cache is all it uses, beyond any limit but that of a control group; grouped: no sync (set for a whole store, so the load is as durable as the rest)"
    }

    fn fast(&self) -> Fast {
        Fast::None
    }

    fn open(&self, setup: &Setup) -> Result<Box<dyn Store>, StoreError> {
        let mut options = EnvOpenOptions::new();
        // The file grows as it is used; the map only bounds it.
        options
            .map_size(usize::try_from((setup.data_bytes * 4 + (1 << 30)).next_multiple_of(1 << 20))?)
            .max_readers(2 * MAX_WRITERS as u32);
        let env = open_env(&mut options, setup)?;
        let entries = env
            .create_databases_and_commit(env.write_txn()?, |opener, transaction| {
                opener.create_database(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
            })?
            .unwrap_commit();
        Ok(Box::new(Open { env, entries }))
    }
}

#[expect(unsafe_code, reason = "a memory map is only sound while nobody else changes the file")]
fn open_env(options: &mut EnvOpenOptions, setup: &Setup) -> Result<Env, StoreError> {
    // What a fault reads ahead pushes out what is needed, as soon as there is less memory than data.
    let mut flags = EnvFlags::NO_READ_AHEAD;
    if setup.durability == Durability::Grouped {
        flags |= EnvFlags::NO_SYNC;
    }
    // SAFETY: the directory is of this store alone, made by the benchmark on a local file system, and opened once
    // in this process and by no other at the same time, so nothing changes the mapped file but LMDB itself.
    // Without NO_SYNC LMDB's defaults hold; with it, only the order of writes to the medium after a power loss is
    // given up, and no store is opened after one.
    Ok(unsafe { options.flags(flags).open(&setup.flash_dir)? })
}

struct Open {
    env: Env,
    entries: Database<'static, Bytes, Bytes>,
}

impl Store for Open {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        let transaction = self.env.read_txn()?;
        see(self.entries.get(&transaction, key)?);
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8], _: Durability) -> Result<(), StoreError> {
        let mut transaction = self.env.write_txn()?;
        self.entries.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let transaction = self.env.read_txn()?;
        let range = (Bound::Included(from), Bound::Unbounded);
        for entry in self.entries.range(&transaction, &range)?.take(count) {
            let (key, value) = entry?;
            see(key, value);
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        let lmdb = heed::lmdb_version();
        let mode = format!("LMDB {}.{}.{}, memory-mapped, page cache", lmdb.major, lmdb.minor, lmdb.patch);
        Counts { mode, ..Counts::default() }
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        self.env.force_sync()?;
        let closing = self.env.prepare_for_closing();
        closing.wait();
        Ok(())
    }
}
