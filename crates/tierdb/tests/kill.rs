//! Goal: a process that is killed loses nothing that it had acknowledged.
//! Method: a child runs operations that follow from a seed, and says of each when it begins and when it
//! has returned; it is killed with signal 9 at a random moment, in three of four cycles not before it has acknowledged
//! some; the parent, which knows the operations, opens the store and compares. The next child goes on from there.
//!
//! This says nothing about the order in which media persist (the crash suite does): it is the check
//! that real files, real threads and real mappings behave like the simulated ones.

use fastrand::Rng;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb::{
    ByteSize, Config, Db, Durability, EngineKind, FastKind, FastTier, FlashTier, Records, Slab, WriteBatch,
};
use tierdb_engine::conformance::{Content, Oracle};

const DIR: &str = "TIERDB_KILL_DIR";
const SEED: &str = "TIERDB_KILL_SEED";

/// More writes than this are acknowledged before the last kill of a test.
const ACKNOWLEDGED: u64 = 1000;

/// An operation that follows from a seed and its number.
enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Batch(WriteBatch),
}

fn op(seed: u64, number: u64) -> (Op, Durability) {
    let mut rng = Rng::with_seed(seed << 32 ^ number);
    let key = |rng: &mut Rng| format!("key{:03}", rng.u32(..200)).into_bytes();
    let value = |rng: &mut Rng| {
        let longest = if rng.u8(..64) == 0 { 300_000 } else { 3_000 };
        let mut value = vec![number as u8; rng.usize(16..longest)];
        value[..8].copy_from_slice(&seed.to_le_bytes());
        value[8..16].copy_from_slice(&rng.u64(..).to_le_bytes());
        value
    };
    let durability = if rng.u8(..4) == 0 { Durability::Grouped } else { Durability::Durable };
    let op = match rng.u8(..10) {
        0..6 => Op::Put(key(&mut rng), value(&mut rng)),
        6..8 => Op::Delete(key(&mut rng)),
        _ => {
            let mut batch = WriteBatch::new();
            for _ in 0..rng.usize(1..8) {
                let key = key(&mut rng);
                if rng.bool() {
                    batch.delete(key).expect("a small batch");
                } else {
                    batch.put(key, value(&mut rng)).expect("a small batch");
                }
            }
            Op::Batch(batch)
        }
    };
    (op, durability)
}

fn config(dir: &Path) -> Config {
    let flash = FlashTier::new(dir.join("flash")).with_capacity(ByteSize::mib(96));
    let engine = if dir.join("slab").exists() { EngineKind::Slab } else { EngineKind::Valuelog };
    let config = Config::new().with_engine(engine).with_memory(ByteSize::mib(32)).with_flash(flash);
    if dir.join("device").exists() {
        let mut slab = Slab::default();
        slab.records = Some(Records::Device);
        let fast = FastTier::new(dir.join("fast"), ByteSize::mib(32)).with_kind(FastKind::Block);
        return config.with_memory(ByteSize::mib(16)).with_fast(fast).with_slab(slab);
    }
    if dir.join("block").exists() {
        let fast = FastTier::new(dir.join("fast"), ByteSize::mib(64)).with_kind(FastKind::Block);
        return config.with_memory(ByteSize::mib(16)).with_fast(fast);
    }
    match dir.join("emulated").exists() {
        true => {
            config.with_fast(FastTier::new(dir.join("fast"), ByteSize::mib(32)).with_kind(FastKind::Emulated))
        }
        false => config,
    }
}

/// The child: runs operations until it is killed.
#[test]
#[ignore = "run by the other test, as a process of its own"]
fn child() {
    let (Ok(dir), Ok(seed)) = (std::env::var(DIR), std::env::var(SEED)) else { return };
    let seed: u64 = seed.parse().expect("a seed");
    let is_slab = Path::new(&dir).join("slab").exists();
    let db = Db::open_config(&config(Path::new(&dir))).expect("the child opens the store");
    let mut out = std::io::stdout();
    for number in 0.. {
        // Or what is written would never come to tables.
        if is_slab && number % 16 == 15 {
            db.engine().flush().expect("room");
        }
        writeln!(out, "\n>{number}").and_then(|()| out.flush()).expect("the parent listens");
        let (op, durability) = op(seed, number);
        match (&op, durability) {
            // What is configured.
            (Op::Put(key, value), Durability::Durable) => db.put(key, value),
            (Op::Delete(key), Durability::Durable) => db.delete(key),
            (Op::Batch(batch), Durability::Durable) => db.write(batch),
            (Op::Put(key, value), _) => db.put_with(key, value, durability),
            (Op::Delete(key), _) => db.delete_with(key, durability),
            (Op::Batch(batch), _) => db.write_with(batch, durability),
        }
        .expect("no write fails");
        writeln!(out, "\n<{number}").and_then(|()| out.flush()).expect("the parent listens");
    }
}

/// Kills `child` after `delay`, and not before it has `acknowledged` so many operations, however long they take on this
/// machine. Returns how it ended.
fn kill(mut child: Child, delay: Duration, acknowledged: &AtomicU64, least: u64) -> ExitStatus {
    std::thread::sleep(delay);
    let given_up = Instant::now() + Duration::from_secs(60);
    while acknowledged.load(Ordering::Relaxed) < least
        && Instant::now() < given_up
        && child.try_wait().expect("the child can be asked").is_none()
    {
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().expect("the child is killed");
    child.wait().expect("the child has ended")
}

fn cycles(dir: &Path, first_seed: u64, cycles: u64) -> u64 {
    let mut rng = Rng::with_seed(first_seed);
    // Three of four cycles alone come to `ACKNOWLEDGED`, on a machine of any speed.
    let least_of_each = (ACKNOWLEDGED / (cycles * 3 / 4) + 1).max(20);
    let mut content: Option<Content> = None;
    let mut acknowledged = 0;
    for cycle in 0..cycles {
        let seed = first_seed + cycle;
        let mut oracle = Oracle::new();
        if let Some(content) = &content {
            oracle.adopt(content);
        }
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(DIR, dir)
            .env(SEED, seed.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the child starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let delay = Duration::from_millis(rng.u64(20..160));
        // Every fourth is killed when its time is over: on a slow machine it is still opening the store.
        let least = if cycle % 4 == 3 { 0 } else { rng.u64(least_of_each..least_of_each + 16) };
        let in_cycle = Arc::new(AtomicU64::new(0));
        let killer = {
            let in_cycle = in_cycle.clone();
            std::thread::spawn(move || kill(child, delay, &in_cycle, least))
        };
        let mut ticket = None;
        for line in lines.lines() {
            let Ok(line) = line else { break };
            if let Some(number) = line.strip_prefix('>').and_then(|n| n.parse().ok()) {
                ticket = Some(match op(seed, number) {
                    (Op::Put(key, value), durability) => oracle.put(&key, &value, durability),
                    (Op::Delete(key), durability) => oracle.delete(&key, durability),
                    (Op::Batch(batch), durability) => oracle.write(&batch, durability),
                });
            } else if line.starts_with('<')
                && let Some(ticket) = ticket.take()
            {
                oracle.returned(ticket);
                acknowledged += 1;
                in_cycle.fetch_add(1, Ordering::Relaxed);
            }
        }
        let status = killer.join().expect("the killer does not panic");
        assert_eq!(status.code(), None, "cycle {cycle}: the child ended by itself: {status}");
        let db = Db::open_config(&config(dir)).expect("the store opens after the kill");
        let found = oracle
            .check(db.engine())
            .unwrap_or_else(|failure| panic!("cycle {cycle}, seed {seed}: {failure}"));
        content = Some(found);
    }
    let db = Db::open_config(&config(dir)).expect("the store opens");
    assert!(db.verify().expect("it can be verified").is_clean());
    assert!(db.stats().figure("tables").is_none_or(|tables| tables > 0), "some of a slab store is in tables");
    acknowledged
}

/// Kills the store that `marks` describe so many times.
fn nothing_is_lost(marks: &[&str], first_seed: u64, kills: u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for mark in marks {
        std::fs::write(dir.path().join(mark), "").expect("a mark");
    }
    let acknowledged = cycles(dir.path(), first_seed, kills);
    assert!(acknowledged > ACKNOWLEDGED, "only {acknowledged} writes were acknowledged");
    println!("{kills} kills, {acknowledged} acknowledged writes");
}

#[test]
fn nothing_is_lost_by_120_kills_on_one_ssd() {
    nothing_is_lost(&[], 1000, 120);
}

#[test]
fn nothing_is_lost_by_80_kills_on_emulated_nvm() {
    // A mapped file outlives the process, as NVM does.
    nothing_is_lost(&["emulated"], 5000, 80);
}

#[test]
fn nothing_is_lost_by_120_kills_of_the_slab_engine_on_one_ssd() {
    nothing_is_lost(&["slab"], 7000, 120);
}

#[test]
fn nothing_is_lost_by_80_kills_of_the_slab_engine_on_emulated_nvm() {
    nothing_is_lost(&["slab", "emulated"], 9000, 80);
}

#[test]
fn nothing_is_lost_by_40_kills_with_a_log_on_a_block_device() {
    nothing_is_lost(&["block"], 13_000, 40);
}

#[test]
fn nothing_is_lost_by_40_kills_of_the_slab_engine_with_tables_on_a_block_device() {
    nothing_is_lost(&["slab", "block"], 15_000, 40);
}

#[test]
fn nothing_is_lost_by_60_kills_of_the_slab_engine_with_records_on_a_block_device() {
    nothing_is_lost(&["slab", "device"], 11_000, 60);
}
