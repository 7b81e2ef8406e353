//! How fast tables are written, read and merged, on one thread.
//!
//! `cargo run --release -p tierdb-table --example bench -- DIRECTORY [VALUE_BYTES] [ENTRIES]`
//!
//! On a directory in memory it measures the processor's part, on a real one the device's as well.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;
use tierdb_base::{Result, Seqno};
use tierdb_device::{Cause, Meter, RealDir, RealFile};
use tierdb_table::{
    Direction, EntryRef, Merge, ReadAhead, Retain, Retention, Source, Table, TableDir, TableIter, Visible,
    WriterOptions,
};

const PARTS: u64 = 4;

fn key(n: u64) -> [u8; 24] {
    let mut key = *b"user00000000000000000000";
    let mut left = n.wrapping_mul(1_000_003);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

/// Nanoseconds that this thread has had a processor; 0 where the system does not say.
fn on_cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Times `work`, which does `count` operations on `bytes` bytes in all.
fn timed<T>(what: &str, count: u64, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (start, cpu) = (Instant::now(), on_cpu());
    let done = work()?;
    let (spent, cpu) = (start.elapsed(), on_cpu() - cpu);
    println!(
        "{what:<34} {:>9.0} ns each {:>8.0} on cpu {:>10.0} /s {:>8.0} MB/s",
        spent.as_nanos() as f64 / count as f64,
        cpu as f64 / count as f64,
        count as f64 / spent.as_secs_f64(),
        bytes as f64 / 1e6 / spent.as_secs_f64()
    );
    Ok(done)
}

fn count(mut source: impl Source) -> Result<u64> {
    let mut entries = 0;
    source.advance()?;
    while let Some(entry) = source.entry() {
        entries += u64::from(!std::hint::black_box(entry).key.is_empty());
        source.advance()?;
    }
    Ok(entries)
}

fn iter(table: &Arc<Table<RealFile>>, direction: Direction) -> TableIter<RealFile> {
    table.iter((Bound::Unbounded, Bound::Unbounded), direction, ReadAhead::default(), Cause::Foreground)
}

fn write(tables: &TableDir<RealDir>, number: u64, mut source: impl Source) -> Result<Table<RealFile>> {
    let mut writer = tables.create(number, Cause::Gc, &WriterOptions { allocate: 64 << 20, filter: true })?;
    source.advance()?;
    while let Some(entry) = source.entry() {
        writer.add(&entry)?;
        source.advance()?;
    }
    writer.finish()
}

/// Entries that are computed.
struct Numbers<'v> {
    numbers: std::iter::StepBy<std::ops::Range<u64>>,
    at: Option<[u8; 24]>,
    seqno: Seqno,
    value: &'v [u8],
}

impl Source for Numbers<'_> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.at.as_ref().map(|key| EntryRef { key, seqno: self.seqno, value: Some(self.value) })
    }

    fn advance(&mut self) -> Result<()> {
        self.at = self.numbers.next().map(key);
        self.seqno += 1;
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| {
        eprintln!("name a directory to work in");
        std::process::exit(2)
    });
    let mut number = |default| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let value = vec![0x61; number(1000) as usize];
    let entries: u64 = number(200_000);
    let path = std::path::Path::new(&path).join(format!("tierdb-table-bench-{}", std::process::id()));
    std::fs::create_dir(&path).expect("the directory can be made");
    let done = run(&path, &value, entries);
    std::fs::remove_dir_all(&path).expect("the directory can be removed");
    done
}

fn run(path: &std::path::Path, value: &[u8], entries: u64) -> Result<()> {
    let dir = RealDir::create(path)?;
    println!(
        "{}, direct I/O {}, {entries} entries, values of {} bytes",
        dir.medium(),
        dir.direct_io(),
        value.len()
    );
    let tables = TableDir::new(dir, 7, Meter::new(), None);
    let bytes = entries * (24 + value.len() as u64);
    let numbers =
        |start, step| Numbers { numbers: (start..entries).step_by(step), at: None, seqno: 1 << 20, value };
    let table = timed("write", entries, bytes, || write(&tables, 1, numbers(0, 1)))?;
    let table = Arc::new(table);
    let footer = table.footer();
    println!(
        "{:.1} % of the file are keys and values, index {:.1} and filter {:.2} bytes a key",
        bytes as f64 / footer.file_len as f64 * 100.0,
        footer.index_len as f64 / entries as f64,
        footer.filter_len as f64 / entries as f64
    );
    timed("open", 1, footer.index_len + footer.filter_len, || tables.open(1, Cause::Recovery))?;
    let mut rng = fastrand::Rng::with_seed(1);
    let gets = entries.min(200_000);
    timed("get", gets, gets * value.len() as u64, || {
        (0..gets).try_for_each(|_| {
            let found = table.get(&key(rng.u64(..entries)), Seqno::MAX, Cause::Foreground)?;
            assert!(found.is_some());
            Ok(())
        })
    })?;
    timed("get of an absent key", entries, 0, || {
        (0..entries).try_for_each(|_| {
            let mut key = key(rng.u64(..entries));
            key[23] ^= 1;
            table.get(&key, Seqno::MAX, Cause::Foreground).map(|found| assert!(found.is_none()))
        })
    })?;
    timed("get, 16 at once", gets, gets * value.len() as u64, || {
        (0..gets / 16).try_for_each(|_| {
            let keys: Vec<_> = (0..16).map(|_| key(rng.u64(..entries))).collect();
            let asked: Vec<_> = keys.iter().map(|key| (&*table, &key[..], Seqno::MAX)).collect();
            Table::get_many(&asked, Cause::Foreground).into_iter().try_for_each(|found| found.map(drop))
        })
    })?;
    for direction in [Direction::Forward, Direction::Backward] {
        let what = format!("scan {direction:?}");
        let found = timed(&what, entries, bytes, || count(iter(&table, direction)))?;
        assert_eq!(found, entries);
    }
    let scans = 2000;
    timed("scans of 50", scans, scans * 50 * value.len() as u64, || {
        (0..scans).try_for_each(|_| {
            let from = key(rng.u64(..entries));
            let range = (Bound::Included(&from[..]), Bound::Unbounded);
            let mut iter = table.iter(range, Direction::Forward, ReadAhead::default(), Cause::Foreground);
            (0..50).try_for_each(|_| iter.advance())
        })
    })?;
    let parts: Vec<_> = (0..PARTS)
        .map(|part| write(&tables, 10 + part, numbers(part, PARTS as usize)).map(Arc::new))
        .collect::<Result<_>>()?;
    let merge =
        || Merge::new(parts.iter().map(|t| iter(t, Direction::Forward)).collect(), Direction::Forward);
    timed("merge of 4", entries, bytes, || count(merge()))?;
    timed("merge of 4 as a snapshot sees it", entries, bytes, || {
        count(Visible::new(merge(), Direction::Forward, Seqno::MAX))
    })?;
    timed("merge of 4 into a new table", entries, bytes, || {
        write(&tables, 20, Retain::new(merge(), Retention::new(vec![Seqno::MAX]), |_: &[u8]| true))
    })?;
    timed("verify", entries, footer.file_len, || table.verify(Cause::Verify))?;
    Ok(())
}
