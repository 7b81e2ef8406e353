//! Random reads of 4 KiB in a directory, by the number of threads and the way reads are batched.
//!
//! `cargo run --release -p tierdb-device --example readbench -- DIRECTORY [SECONDS]` writes a file of
//! 1 GiB there, prints a line for each combination, and removes the file.

use std::time::{Duration, Instant};
use tierdb_base::Result;
use tierdb_device::{
    AlignedBuf, BLOCK, BlockFile, Dir, FileRead, OpenMode, ReadBatching, RealDir, RealOptions,
};

const FILE: &str = "readbench.data";
const FILE_BYTES: u64 = 1 << 30;

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!("usage: readbench DIRECTORY [SECONDS for each line]");
        std::process::exit(2);
    };
    let seconds = args.next().and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let result = fill(&path).and_then(|()| measure_all(&path, Duration::from_secs_f64(seconds)));
    let removed = RealDir::open(&path).and_then(|dir| dir.remove(FILE));
    if let Err(error) = result.and(removed) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn fill(path: &str) -> Result<()> {
    let dir = RealDir::create(path)?;
    println!("{}: {}", dir.name(), dir.medium());
    let file = dir.open(FILE, OpenMode::CreateNew)?;
    file.set_len(FILE_BYTES)?;
    let mut bytes = AlignedBuf::zeroed(1 << 20)?;
    let mut random = fastrand::Rng::with_seed(1);
    for at in (0..FILE_BYTES).step_by(bytes.len()) {
        random.fill(&mut bytes);
        file.write(at, &bytes)?;
    }
    file.sync()
}

fn measure_all(path: &str, time: Duration) -> Result<()> {
    let combining = |rings| RealOptions { rings, ..RealOptions::default() };
    let modes = [
        ("direct", RealOptions { batching: ReadBatching::Direct, ..RealOptions::default() }),
        ("combining, 2 rings", combining(2)),
        ("combining, 8 rings", combining(8)),
        (
            "timeout 100 us",
            RealOptions {
                batching: ReadBatching::Timeout(Duration::from_micros(100)),
                ..RealOptions::default()
            },
        ),
    ];
    println!(
        "{:20} {:>7} {:>9} {:>9} {:>9} {:>9} {:>11}",
        "mode", "threads", "reads/s", "p50 us", "p99 us", "cpu us", "batch mean"
    );
    for (name, options) in modes {
        for threads in [1, 2, 4, 16, 64] {
            let dir = RealDir::open_with(path, &options)?;
            let file = dir.open(FILE, OpenMode::Existing)?;
            let cpu_before = cpu_us();
            let (micros, took) = measure(&file, threads, time)?;
            let cpu = (cpu_us() - cpu_before) / micros.len() as f64;
            let combined = dir.combined();
            println!(
                "{name:20} {threads:7} {:9.0} {:9.1} {:9.1} {cpu:9.1} {:11.2}",
                micros.len() as f64 / took.as_secs_f64(),
                micros[micros.len() / 2],
                micros[micros.len() * 99 / 100],
                combined.requests as f64 / combined.batches.max(1) as f64,
            );
        }
    }
    let dir = RealDir::open(path)?;
    let file = dir.open(FILE, OpenMode::Existing)?;
    for count in [8, 64] {
        let start = Instant::now();
        let mut random = fastrand::Rng::with_seed(count as u64);
        let mut reads = 0;
        let read = |_| Ok(FileRead { file: &file, at: 0, buf: AlignedBuf::zeroed(BLOCK as usize)? });
        let mut wanted: Vec<_> = (0..count).map(read).collect::<Result<_>>()?;
        while start.elapsed() < time {
            wanted.iter_mut().for_each(|read| read.at = random.u64(..FILE_BYTES / BLOCK) * BLOCK);
            BlockFile::read_many(&mut wanted).into_iter().collect::<Result<Vec<()>>>()?;
            reads += count;
        }
        println!("read_many of {count:2}: {:.0} reads/s", reads as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Processor time of this process so far, in microseconds, as coarse as a tick of 10 ms.
fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // User and system time are fields 14 and 15 of all, 12 and 13 of these.
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        * 10_000.0
}

/// Latencies in microseconds, sorted, and the time it took.
fn measure(file: &impl BlockFile, threads: u64, time: Duration) -> Result<(Vec<f64>, Duration)> {
    let start = Instant::now();
    let reader = |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut buf = AlignedBuf::zeroed(BLOCK as usize)?;
        let mut micros = Vec::new();
        while start.elapsed() < time {
            let issued = Instant::now();
            file.read(random.u64(..FILE_BYTES / BLOCK) * BLOCK, &mut buf)?;
            micros.push(issued.elapsed().as_secs_f64() * 1e6);
        }
        Ok(micros)
    };
    let mut all = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|seed| scope.spawn(move || reader(seed))).collect();
        readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader panicked"))
            .collect::<Result<Vec<_>>>()
    })?
    .concat();
    all.sort_by(f64::total_cmp);
    Ok((all, start.elapsed()))
}
