//! What flash does by itself, measured in the same run, and what that allows a store: the ceiling of a workload on single keys.

use crate::phase::Measured;
use crate::report::{Repeated, Report, Spread};
use crate::table::{grouped, micros};
use crate::tally::Latency;
use crate::workload::Op;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tierdb::Result;
use tierdb_device::{AlignedBuf, BlockFile, Dir, Emulation, OpenMode, RealDir, random_reads};

/// Bytes of a read: a block, which is what a small value takes.
const READ: usize = 4096;
/// Bytes of the file that is read. A virtual disk may serve less than this from a cache of its host.
const FILE: u64 = 512 << 20;
const STEP: usize = 1 << 20;
/// Reads in flight, one measurement each.
pub const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// How many times as long it is read behind a phase as at each depth before a round.
pub const BESIDE: f64 = 4.0;
const NAME: &str = "reference";

/// Random reads of blocks with a number of them in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Depth {
    /// Reads in flight.
    pub depth: usize,
    /// Reads a second.
    pub per_second: f64,
    /// Median latency in microseconds.
    pub median_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

/// What flash does by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// By reads in flight.
    pub depths: Vec<Depth>,
    /// Microseconds that each read of a store takes at least, where another device is imitated.
    pub emulated_us: Option<f64>,
    /// Why there are none, if there are none.
    pub refused: Option<String>,
}

/// A file on flash to be read, in a directory of its own; both go with this.
pub struct Medium(PathBuf);

impl Medium {
    /// Makes `dir` and writes the file.
    fn new(dir: &Path) -> Result<Self> {
        let medium = Medium(dir.to_owned());
        let file = RealDir::create(dir)?.open(NAME, OpenMode::CreateNew)?;
        let mut rng = fastrand::Rng::with_seed(7);
        let mut bytes = AlignedBuf::zeroed(STEP)?;
        for at in (0..FILE).step_by(STEP) {
            rng.fill(&mut bytes);
            file.write(at, &bytes)?;
        }
        file.sync()?;
        Ok(medium)
    }

    /// What a case whose flash is `flash` reads of it, where it was read for `each` at each depth: nothing, if that is elsewhere.
    pub fn beside(&self, flash: &Path, each: Duration) -> Option<Beside> {
        let seconds = BESIDE * each.as_secs_f64();
        (self.0.parent() == flash.parent()).then(|| Beside { dir: self.0.clone(), seconds })
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        // What cannot be removed is named after the process, and in the way of nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes `dir` on flash and reads a file in it at every depth for `each`; `emulated` is the device that stores imitate there. With
/// the file, where it can be read.
pub fn measure(dir: &Path, each: Duration, emulated: Option<&str>) -> (Reference, Option<Medium>) {
    let device = emulated.and_then(Emulation::named);
    let emulated_us = device.map(|device| device.read_latency.as_secs_f64() * 1e6);
    let measured = Medium::new(dir).and_then(|medium| Ok((depths(dir, &DEPTHS, each)?, medium)));
    match measured {
        Ok((depths, medium)) => (Reference { depths, emulated_us, refused: None }, Some(medium)),
        Err(error) => (Reference { depths: Vec::new(), emulated_us, refused: Some(error.to_string()) }, None),
    }
}

/// Where a case finds the file of a [`Medium`], to read it behind each phase that reads single keys: what a device gives changes with
/// the hour, so only what it gave in the same minute says what it allowed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// The directory of the file.
    pub dir: PathBuf,
    /// Seconds at each depth.
    pub seconds: f64,
}

impl Beside {
    /// One read at a time, and as many in flight as `threads`. Empty where that fails: then what was measured before the round counts.
    pub fn measure(&self, threads: usize) -> Vec<Depth> {
        let mut wanted = vec![1, threads];
        wanted.dedup();
        depths(&self.dir, &wanted, Duration::from_secs_f64(self.seconds)).unwrap_or_default()
    }
}

fn depths(dir: &Path, wanted: &[usize], each: Duration) -> Result<Vec<Depth>> {
    let file = RealDir::open(dir)?.open(NAME, OpenMode::Existing)?;
    // Other blocks each time: what was read a minute ago may be in a cache of the host's.
    let seed = fastrand::u64(..);
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let measured = wanted.iter().map(|&depth| {
        let found = random_reads(&file, READ, depth, each, seed.wrapping_add(depth as u64))?;
        Ok(Depth { depth, per_second: found.per_second, median_us: us(found.median), p99_us: us(found.p99) })
    });
    measured.collect()
}

/// What hit ratio, device and processor allow a phase of reads, or of reads and writes, of single keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// The share of operations that read.
    pub reading: f64,
    /// The share of reads that go to flash.
    pub misses: f64,
    /// What one of these takes on an idle device on average, in microseconds.
    pub device_us: f64,
    /// What a read takes that does not go to flash, in microseconds.
    pub hit_us: f64,
    /// What the writes take that are operations of their own, for each operation of any kind, if each takes their median, in
    /// microseconds.
    pub write_us: f64,
    /// Operations a second if each thread did nothing but this, one after another.
    pub by_latency: f64,
    /// Operations a second whose misses the device can take with as many in flight as there are threads.
    pub by_device: f64,
}

impl Ceiling {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.by_latency.min(self.by_device)
    }
}

/// The latencies of the reads of a closed loop on single keys, and the share of its reads that did not go to flash.
fn single_reads(phase: &Measured) -> Option<(&Latency, f64)> {
    let single = |latency: &Latency| !matches!(latency.op, Op::Scan | Op::MultiRead);
    if phase.offered_rate.is_some() || !phase.latencies.iter().all(single) {
        return None;
    }
    Some((phase.latencies.iter().find(|latency| latency.op == Op::Read)?, phase.hit_ratio?))
}

/// The median latency of the reads of `phase` that did not go to flash, in microseconds: they are the fastest, so the
/// middle one of them stands at half their share of all. `None` if there were none, or other than reads and writes of single keys.
pub fn hit_median(phase: &Measured) -> Option<f64> {
    let (reads, hits) = single_reads(phase)?;
    (hits > 0.0).then(|| at_share(reads, hits / 2.0))
}

/// The same of those that went to flash: the slowest.
pub fn miss_median(phase: &Measured) -> Option<f64> {
    let (reads, hits) = single_reads(phase)?;
    (hits < 1.0).then(|| at_share(reads, (1.0 + hits) / 2.0))
}

/// The latency that this share of the operations took at most, between two steps of the distribution by proportion.
fn at_share(latency: &Latency, share: f64) -> f64 {
    let after = latency.cdf.iter().position(|(_, own)| *own >= share).unwrap_or(latency.cdf.len());
    let (Some((us, own)), Some((before_us, before))) =
        (latency.cdf.get(after), after.checked_sub(1).and_then(|before| latency.cdf.get(before)))
    else {
        return latency.cdf.get(after).or(latency.cdf.last()).map_or(0.0, |(us, _)| *us);
    };
    before_us + (us - before_us) * (share - before) / (own - before).max(1e-12)
}

impl Reference {
    /// The middle of several measurements, by depth; `None` if there are none.
    pub fn middle(all: &[Reference]) -> Option<Self> {
        let mut middle = all.iter().find(|own| own.refused.is_none()).or(all.first())?.clone();
        for (index, depth) in middle.depths.iter_mut().enumerate() {
            let of = |get: fn(&Depth) -> f64| {
                let figures = all.iter().filter_map(|own| own.depths.get(index)).map(get);
                Spread::of(figures).map_or(0.0, |spread| spread.median)
            };
            depth.per_second = of(|own| own.per_second);
            depth.median_us = of(|own| own.median_us);
            depth.p99_us = of(|own| own.p99_us);
        }
        Some(middle)
    }

    /// What was measured behind `phase`, or else before the round.
    pub fn beside<'a>(&'a self, phase: &'a Measured) -> &'a [Depth] {
        if phase.reference.is_empty() { &self.depths } else { &phase.reference }
    }

    /// The ceiling of a closed loop that reads single keys, and may write some; `None` for other phases.
    ///
    /// A write takes the median of writes, so that what some of them wait for is not allowed for; that of a read-modify-write, which is
    /// not measured by itself, takes nothing.
    pub fn ceiling(&self, phase: &Measured) -> Option<Ceiling> {
        let misses = 1.0 - single_reads(phase)?.1;
        let depths = self.beside(phase);
        let alone = depths.first()?;
        let device_us = (1e6 / alone.per_second.max(1e-9)).max(self.emulated_us.unwrap_or(0.0));
        let (hit_us, threads) = (hit_median(phase).unwrap_or(0.0), phase.threads);
        let at_depth = depths.iter().find(|own| own.depth >= threads).or(depths.last())?;
        let operations: u64 = phase.latencies.iter().map(|latency| latency.count).sum();
        let (mut reading, mut write_us) = (0.0, 0.0);
        for latency in &phase.latencies {
            let share = latency.count as f64 / operations.max(1) as f64;
            match latency.op {
                Op::Update | Op::Insert => write_us += share * latency.p50_us,
                _ => reading += share,
            }
        }
        let read_us = misses * device_us + (1.0 - misses) * hit_us;
        Some(Ceiling {
            reading,
            misses,
            device_us,
            hit_us,
            write_us,
            by_latency: threads as f64 * 1e6 / (reading * read_us + write_us).max(1e-3),
            by_device: at_depth.per_second / (reading * misses).max(1e-9),
        })
    }

    /// What the device does, in a line.
    pub fn text(&self) -> String {
        if let Some(why) = &self.refused {
            return format!("flash by itself: not measured ({why})");
        }
        let depths = self.depths.iter().map(|own| {
            format!("{}: {} ({} us)", own.depth, grouped(own.per_second as u64), micros(own.median_us))
        });
        let emulated =
            self.emulated_us.map_or(String::new(), |us| format!("; imitated, {us:.0} us at least"));
        format!(
            "flash by itself, random reads of 4 KiB a second (median), by reads in flight: {}{emulated}",
            depths.collect::<Vec<_>>().join(", ")
        )
    }
}

/// The ceilings of the phases of `case`, a line for each that has one.
pub fn text(report: &Report, case: &Repeated) -> String {
    let mut out = String::new();
    let Some(reference) = &report.settings.reference else { return out };
    let first = case.first();
    for phase in &first.phases {
        let Some(ceiling) = reference.ceiling(phase) else { continue };
        let own = 1.0 - ceiling.reading;
        let writes = if ceiling.write_us > 0.0 {
            format!(", {:.0} % writes of {} us", own * 100.0, micros(ceiling.write_us / own))
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "  ceiling, {}: {} ops/s ({:.0} % misses of {} us, hits of {} us{}, {} threads: {}; device: {}); {:.0} % of it \
             reached, and {:.0} % of the processors used",
            phase.name,
            grouped(ceiling.rate() as u64),
            ceiling.misses * 100.0,
            micros(ceiling.device_us),
            micros(ceiling.hit_us),
            writes,
            phase.threads,
            grouped(ceiling.by_latency as u64),
            grouped(ceiling.by_device.min(1e12) as u64),
            phase.rate / ceiling.rate() * 100.0,
            phase.rate * phase.cpu_us_per_op / 1e4 / report.machine.processors.max(1) as f64,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(threads: usize, cdf: Vec<(f64, f64)>, hits: f64) -> Measured {
        let latency = Latency {
            op: Op::Read,
            count: 1,
            never_begun: 0,
            average_us: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            p999_us: 0.0,
            max_us: 0.0,
            cdf,
        };
        Measured { threads, latencies: vec![latency], hit_ratio: Some(hits), ..Measured::default() }
    }

    fn reference(emulated_us: Option<f64>) -> Reference {
        let depth = |depth, per_second, median_us| Depth { depth, per_second, median_us, p99_us: median_us };
        let depths = vec![depth(1, 10_000.0, 100.0), depth(4, 30_000.0, 120.0), depth(64, 50_000.0, 900.0)];
        Reference { depths, emulated_us, refused: None }
    }

    #[test]
    fn the_ceiling_is_of_latency_or_of_the_device() {
        let mut phase = reads(4, vec![(1.0, 0.1), (2.0, 0.25), (3.0, 0.5), (200.0, 1.0)], 0.5);
        assert_eq!((hit_median(&phase), miss_median(&phase)), (Some(2.0), Some(101.5)), "between two steps");
        let ceiling = reference(None).ceiling(&phase).expect("reads");
        // Half of the reads take 100 us, and half 2 us, which is where a quarter of all are done.
        assert!((ceiling.by_latency - 4e6 / 51.0).abs() < 1.0, "{ceiling:?}");
        // The device takes 30,000 with four in flight, which are half of all.
        assert!((ceiling.rate() - 60_000.0).abs() < 1.0, "{ceiling:?}");
        phase.threads = 2;
        let slow = reference(Some(400.0)).ceiling(&phase).expect("reads");
        assert!((slow.rate() - 2e6 / 201.0).abs() < 1.0, "an imitated device is at least so slow: {slow:?}");
        let depth = |depth, per_second| Depth { depth, per_second, ..Depth::default() };
        phase.reference = vec![depth(1, 20_000.0), depth(2, 15_000.0)];
        let beside = reference(None).ceiling(&phase).expect("reads");
        assert_eq!(
            (beside.device_us, beside.by_device),
            (50.0, 30_000.0),
            "what was measured behind it counts"
        );
        let hits = reference(None).ceiling(&reads(2, vec![(1.0, 0.5), (2.0, 1.0)], 1.0)).expect("reads");
        assert!((hits.rate() - 2e6).abs() < 1.0, "without misses the device is in nobody's way: {hits:?}");
    }

    #[test]
    fn of_several_measurements_the_middle_counts_at_each_depth() {
        let mut all = vec![reference(None), reference(None), reference(None)];
        all[0].depths[0].median_us = 10.0;
        all[1].depths[0].median_us = 20.0;
        all[2] = Reference { depths: Vec::new(), emulated_us: None, refused: Some("full".to_owned()) };
        let middle = Reference::middle(&all).expect("some");
        assert_eq!((middle.depths[0].median_us, middle.depths[1].median_us), (15.0, 120.0));
        assert_eq!(Reference::middle(&[]), None);
    }

    #[test]
    fn writes_take_their_own_time_and_none_of_the_device() {
        let mut phase = reads(2, vec![(2.0, 0.5), (200.0, 1.0)], 0.5);
        let of = |op, count, p50_us| Latency { op, count, p50_us, ..phase.latencies[0].clone() };
        let (updates, both) = (of(Op::Update, 3, 8.0), of(Op::ReadModifyWrite, 1, 60.0));
        phase.latencies.extend([updates, both]);
        let ceiling = reference(None).ceiling(&phase).expect("reads");
        // Two of five operations read, of which half take 100 us, and half 2 us, which is where a quarter of all are done; three take 8 us.
        assert_eq!((ceiling.reading, ceiling.hit_us), (0.4, 2.0));
        assert!((ceiling.by_latency - 2e6 / (0.4 * 51.0 + 0.6 * 8.0)).abs() < 1.0, "{ceiling:?}");
        // One operation in five reads from the device, which takes 30,000 with as many in flight.
        assert!((ceiling.by_device - 150_000.0).abs() < 1.0, "{ceiling:?}");
    }

    #[test]
    fn phases_of_other_operations_and_open_loops_have_none() {
        let mut phase = reads(1, vec![(1.0, 1.0)], 1.0);
        phase.latencies[0].op = Op::Update;
        assert_eq!(reference(None).ceiling(&phase), None);
        phase.latencies[0].op = Op::Read;
        assert!(reference(None).ceiling(&phase).is_some());
        phase.latencies.push(Latency { op: Op::Scan, ..phase.latencies[0].clone() });
        assert_eq!(reference(None).ceiling(&phase), None);
        phase.latencies.pop();
        phase.offered_rate = Some(5.0);
        assert_eq!(reference(None).ceiling(&phase), None);
    }

    #[test]
    fn the_device_is_read_and_nothing_is_left() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let dir = temp.path().join("own");
        let (found, medium) = measure(&dir, Duration::from_millis(5), Some("qlc"));
        let beside = Beside { dir, seconds: 0.005 }.measure(1);
        assert_eq!(beside.len(), found.depths.len().min(1), "one depth is measured once");
        drop(medium);
        assert_eq!(found.emulated_us, Some(391.0));
        assert!(found.refused.is_some() || found.depths.len() == DEPTHS.len(), "{found:?}");
        assert!(found.depths.iter().all(|own| own.per_second > 0.0 && own.median_us > 0.0), "{found:?}");
        assert_eq!(std::fs::read_dir(temp.path()).expect("directory").count(), 0);
    }
}
