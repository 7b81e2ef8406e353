//! What the key index costs: time per operation, bytes per key, time to open.
//!
//! `cargo run --release -p tierdb-valuelog --example index_cost [million keys]`

use crossbeam_epoch as epoch;
use std::sync::Arc;
use std::time::Instant;
use tierdb_pmem::{MappedPool, Pool, Stage};
use tierdb_valuelog::index::Index;
use tierdb_valuelog::pages::{PAGE, Pages};

/// A random-looking key of 16 bytes; each `n` has its own.
fn key(n: u64) -> [u8; 16] {
    let mixed = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(mixed ^ mixed >> 31).to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Nanoseconds for which this thread has had a processor; waiting for one on a busy machine is left out.
fn on_processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0)
}

/// Runs `work` on the numbers below `keys`, spread over `threads`, and prints nanoseconds per call.
fn time(what: &str, keys: u64, threads: u64, work: impl Fn(u64) + Sync) {
    let start = Instant::now();
    let busy: f64 = std::thread::scope(|scope| {
        let work = &work;
        let run = move |thread| {
            let before = on_processor();
            (thread..keys).step_by(threads as usize).for_each(work);
            on_processor() - before
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("work")).sum()
    });
    let wall = start.elapsed().as_nanos() as f64 * threads as f64;
    println!("{what:28} {:6.0} ns of processor, {:6.0} ns of time", busy / keys as f64, wall / keys as f64);
}

fn main() {
    let millions: f64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1.0);
    let keys = (millions * 1e6) as u64;
    for threads in [1, 2] {
        println!("{keys} random keys of 16 bytes, {threads} thread(s)");
        let pool = Arc::new(MappedPool::in_memory(keys * 48 / PAGE * PAGE + (64 << 20)));
        let first = 1 + (pool.len() / PAGE * 8).div_ceil(PAGE);
        let count = pool.len() / PAGE - first;
        let mut stage = Stage::new(&*pool);
        let pages = Arc::new(Pages::format(pool.clone(), &mut stage, PAGE, first, count, 1));
        let _drained = stage.drain();
        let index = Index::create(pool.clone(), pages.clone(), 64).expect("create");
        time("insert", keys, threads, |n| {
            index.get_or_insert(&key(n), || Ok(n)).expect("insert");
        });
        index.run_structure_updates();
        let stride = (0x9e37_79b9_7f4a_7c15 % keys) | 1;
        time("get", keys, threads, |n| {
            assert!(index.get(&key(n * stride % keys)).expect("get").is_some());
        });
        time("get, pinned by the caller", keys, threads, |n| {
            let _guard = epoch::pin();
            assert!(index.get(&key(n * stride % keys)).expect("get").is_some());
        });
        time("get of a missing key", keys, threads, |n| {
            assert!(index.get(&key(keys + n)).expect("get").is_none());
        });
        time("get_or_insert of a known key", keys, threads, |n| {
            assert!(!index.get_or_insert(&key(n * stride % keys), || Ok(0)).expect("get").1);
        });
        let start = Instant::now();
        let mut bytes = 0;
        for n in 0..10_000 {
            let from = key(n * 7);
            let each = |key: &[u8], _| bytes += key.len();
            index.scan(std::ops::Bound::Included(&from), false, 50, each).expect("scan");
        }
        assert!(bytes > 0);
        println!("scan of 50 keys: {:.1} µs", start.elapsed().as_secs_f64() * 100.0);
        println!(
            "pool {:.1} bytes a key, DRAM {:.2} bytes a key, {:.1} keys a leaf",
            index.pool_bytes() as f64 / keys as f64,
            index.memory_bytes() as f64 / keys as f64,
            keys as f64 / index.leaves() as f64
        );
        drop(index);
        let (start, before) = (Instant::now(), on_processor());
        let pages = Arc::new(Pages::open(pool.clone(), PAGE, first, count, 1));
        let (index, damage) = Index::open(pool, pages.clone(), 64, threads as usize).expect("open");
        pages.settle();
        let opened = start.elapsed();
        let found = index.visit(threads as usize, &|_, _| Ok(())).expect("visit");
        println!("open {opened:.1?}, visit of all keys {:.1?} more", start.elapsed() - opened);
        println!("  of which on the first thread's processor: {:.1} ms", (on_processor() - before) / 1e6);
        assert!(damage.is_empty() && found.is_empty() && index.keys() == keys);
        time("remove", keys, threads, |n| {
            assert!(index.remove(&key(n), n).expect("remove"));
        });
        index.run_structure_updates();
        println!("{} leaves after all keys were removed\n", index.leaves());
    }
}
