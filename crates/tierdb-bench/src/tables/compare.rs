//! What each comparison runs: which systems, on what, for how long.
//!
//! All systems of a comparison get the same keys, devices, memory and fast tier, and take turns. Sizes are those of
//! 4 million keys with values of 1 KiB where the scale is 1.

use crate::args::{Keys, Place, Run, Tables};
use crate::failure::Failure;
use crate::keys::MIN_KEY_BYTES;
use crate::phase::{Limit, Phase, Warmup};
use crate::plan::{self, LEAST_FAST, LEAST_MEMORY, Plan};
use crate::store::{Durability, Fast, Systems};
use crate::values::Sizes;
use crate::workload::Op;
use clap::ValueEnum;
use std::fmt::Write;
use tierdb::ByteSize;

/// The distributions of keys that are compared, and how tables call them.
pub(super) const DISTRIBUTIONS: [(&str, Keys); 2] =
    [("scrambled zipfian", Keys::Scrambled), ("zipfian over the keys", Keys::Zipfian)];
/// What is measured of the limits, each with a store of its own.
pub(super) const HITS: &str = "all in memory";
pub(super) const MISSES: &str = "little in memory";
pub(super) const BUSY: &str = "a fifth in memory";
pub(super) const UPDATES: &str = "updates";
/// Puts and gets of a store that checks, and of one that leaves checksums out.
pub(super) const CHECKED: &str = "with checksums";
pub(super) const UNCHECKED: &str = "without checksums";
/// What there is of flash where writes are counted.
pub(super) const ROOM: &str = "room for all";
pub(super) const TIGHT: &str = "flash of twice the data";
/// How systems read one SSD where all peers are compared.
pub(super) const DIRECT: &str = "direct I/O";
pub(super) const CACHED: &str = "through the page cache";
/// What production is like, by those who measured it.
pub(super) const NUTANIX: &str = "PRISM's production mix";
pub(super) const MIXGRAPH: &str = "Facebook's mixgraph";
/// The second phase of C where two are run.
pub(super) const MORE_THREADS: &str = "c, 4 threads";

/// In the order in which they run. D inserts the more the faster a system is: behind all others it makes none of them slower.
const WORKLOADS: [&str; 6] = ["a", "b", "c", "f", "e", "d"];
const VALUE: u64 = 1024;
/// How often puts and gets are measured with and without checksums, in turn.
const CHECKED_RUNS: usize = 5;
/// Bytes of memory with room for what 4 threads insert in a minute or two.
const INSERTING_MEMORY: u64 = 160 << 20;
/// What flash is at the pace of where slab is compared: PrismDB's own is dense and slow.
const SLAB_FLASH: &str = "qlc";
/// And its fast tier, where that is a block device, as the paper's is.
const SLAB_FAST: &str = "optane-ssd";
/// Clients of the PrismDB paper's runs (§6).
const PAPER_CLIENTS: u16 = 8;
/// Operations for each key in a warm-up of the PrismDB paper (§6, 100 million keys): of B, C and D four fifths of 300 million, of E half
/// of 10 million. Of A and F half, for which it gives no number: of as many, here.
const PAPER_READS: f64 = 2.4;
const PAPER_UPDATES: f64 = 1.5;
const PAPER_SCANS: f64 = 0.05;
/// Operations a second below which a warm-up ends before it has them.
const LEAST_RATE: f64 = 5_000.0;

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Comparison {
    /// valuelog and RocksDB over a fast tier and flash, YCSB A to F
    TwoTiers,
    /// valuelog and RocksDB on one SSD, every write synced, 1 to 16 threads
    OneSsdSync,
    /// valuelog, fjall, redb and LMDB on one SSD, every write synced
    EmbeddedSync,
    /// valuelog and all peers on one SSD, writes grouped
    OneSsdGrouped,
    /// valuelog, slab and RocksDB over a fast tier and flash, mixes of production
    Production,
    /// Bytes written to flash for each byte of uniform updates
    Writes,
    /// Latency of hits and misses, share of the device, checksums, idling
    Limits,
    /// Times to open, and space of the index
    Recovery,
    /// slab and RocksDB over a fast tier and flash at the pace of QLC, YCSB A to F
    Slab,
    /// The same over a fast block device at the pace of an Optane SSD
    SlabBlock,
}

/// What a comparison runs.
pub struct Draft {
    /// The runs.
    pub plan: Plan,
    /// Systems that it would have had too.
    pub absent: Vec<String>,
}

/// Cases as they are put together.
struct Desk<'a> {
    systems: &'a Systems,
    asked: &'a Tables,
    /// Labels, and what is run under each.
    runs: Vec<(&'static str, Run)>,
    /// Whether each run with sizes of its own says which.
    says_sizes: bool,
    absent: Vec<String>,
}

impl Desk<'_> {
    /// As many keys as the scale makes of `keys`.
    fn keys(&self, keys: u64) -> u64 {
        ((keys as f64 * self.asked.scale) as u64).max(1000)
    }

    fn data(keys: u64) -> u64 {
        keys * (MIN_KEY_BYTES as u64 + VALUE)
    }

    /// A store with this memory and fast tier; without them they are settled as for any run.
    fn place(&self, memory: Option<u64>, fast: Option<u64>) -> Place {
        Place {
            site: self.asked.site.clone(),
            block_dir: None,
            emulate_block: None,
            emulate_flash: None,
            key_size: Some(MIN_KEY_BYTES),
            memory: memory.map(|bytes| ByteSize(bytes.max(LEAST_MEMORY))),
            fast_capacity: fast.map(|bytes| ByteSize(bytes.max(LEAST_FAST))),
            repeat: self.asked.repeat,
            idle: 0.0,
            no_recovery: true,
            json: None,
        }
    }

    /// Memory and fast tier of these percentages of `keys` keys.
    fn shares(&self, keys: u64, memory: u64, fast: u64) -> Place {
        let share = |percent: u64| Some(Self::data(keys) / 100 * percent);
        self.place(share(memory), share(fast))
    }

    /// Adds `workload` on those of `system` that are there.
    fn add(
        &mut self,
        label: &'static str,
        system: &[&str],
        workload: &[&str],
        keys: u64,
        place: Place,
    ) -> &mut Run {
        let (here, absent): (Vec<&str>, Vec<&str>) =
            system.iter().partition(|name| self.systems.named(name).is_some());
        for name in absent {
            if !self.absent.iter().any(|own| own == name) {
                self.absent.push(name.to_owned());
            }
        }
        // In tenths, for people who read them.
        let tenths = |seconds: f64| (seconds * 10.0).round() / 10.0;
        let seconds = self.asked.seconds.unwrap_or_else(|| tenths(20.0 * self.asked.scale.sqrt()));
        let mut run = Run { seconds, warmup: tenths(seconds / 2.0), ..Run::of(&here, workload, keys, place) };
        if here
            .iter()
            .any(|name| self.systems.named(name).is_some_and(|system| system.fast() == Fast::Memory))
        {
            run.place.site.memory_group = None;
        }
        self.runs.push((label, run));
        let last = self.runs.len() - 1;
        &mut self.runs[last].1
    }

    fn finish(self, comparison: Comparison) -> Result<Draft, Failure> {
        let mut whole: Option<Plan> = None;
        for (label, run) in &self.runs {
            let mut plan = plan::of_run(self.systems, run)?;
            plan.cases.iter_mut().for_each(|(own, _)| (*label).clone_into(own));
            match &mut whole {
                None => whole = Some(plan),
                Some(whole) => {
                    whole.cases.extend(plan.cases);
                    let (sizes, known) = (plan.settings.sizes(), whole.settings.sizes());
                    if self.says_sizes && sizes != known {
                        whole.settings.others.push(format!("{label}: {sizes}"));
                    }
                    let more = plan.settings.systems;
                    let known = |name: &String| whole.settings.systems.iter().any(|(own, _)| own == name);
                    let more: Vec<_> = more.into_iter().filter(|(name, _)| !known(name)).collect();
                    whole.settings.systems.extend(more);
                }
            }
        }
        let mut plan =
            whole.ok_or_else(|| Failure::Invalid(format!("nothing to run for {}", comparison.name())))?;
        let group = self.runs.iter().find_map(|(_, run)| run.place.site.memory_group);
        plan.title = format!("{}: {}", comparison.title(), command(comparison, self.asked, group));
        Ok(Draft { plan, absent: self.absent })
    }
}

/// What repeats a comparison, whose processes are held by such a group; places are left out.
fn command(comparison: Comparison, asked: &Tables, group: Option<ByteSize>) -> String {
    let program = std::env::args().next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let Tables { scale, repeat, seconds, .. } = asked;
    let seconds = seconds.map(|seconds| format!(" --seconds {seconds}")).unwrap_or_default();
    let group = group.map(|more| format!(" --memory-group {}", more.to_string().replace(' ', "")));
    let group = group.unwrap_or_default();
    format!("{program} tables --only {} --scale {scale} --repeat {repeat}{seconds}{group}", comparison.name())
}

impl Comparison {
    /// Every comparison, the longest last.
    pub const ALL: [Comparison; 10] = [
        Comparison::Recovery,
        Comparison::Limits,
        Comparison::OneSsdSync,
        Comparison::EmbeddedSync,
        Comparison::Production,
        Comparison::TwoTiers,
        Comparison::Slab,
        Comparison::SlabBlock,
        Comparison::Writes,
        Comparison::OneSsdGrouped,
    ];

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Comparison::TwoTiers => "two-tiers",
            Comparison::OneSsdSync => "one-ssd-sync",
            Comparison::EmbeddedSync => "embedded-sync",
            Comparison::OneSsdGrouped => "one-ssd-grouped",
            Comparison::Production => "production",
            Comparison::Writes => "writes",
            Comparison::Limits => "limits",
            Comparison::Recovery => "recovery",
            Comparison::Slab => "slab",
            Comparison::SlabBlock => "slab-block",
        }
    }

    /// What it is, in a line.
    pub fn title(self) -> &'static str {
        match self {
            Comparison::TwoTiers => "Two tiers: valuelog beside RocksDB",
            Comparison::OneSsdSync => "One SSD, every write synced: valuelog beside RocksDB",
            Comparison::EmbeddedSync => {
                "One SSD, every write synced, 4 threads: valuelog beside fjall, redb, LMDB"
            }
            Comparison::OneSsdGrouped => "One SSD, writes grouped, 2 threads: valuelog beside all peers",
            Comparison::Production => {
                "Two tiers, mixes of production, 2 threads: valuelog beside RocksDB and slab"
            }
            Comparison::Writes => "Bytes written to flash: uniform updates",
            Comparison::Limits => "Limits of one machine",
            Comparison::Recovery => "Recovery, and space of the index",
            Comparison::Slab => {
                "Two tiers, 1 : 5, memory 10 %, flash in memory at the pace of QLC, 8 clients: slab beside RocksDB"
            }
            Comparison::SlabBlock => {
                "Two tiers, 1 : 5, memory 10 %, block devices in memory at the pace of an Optane SSD and of QLC, 8 clients: slab beside RocksDB"
            }
        }
    }

    /// What it runs on those of `systems` that it asks for.
    ///
    /// # Errors
    /// `Invalid` for sizes that cannot hold the keys.
    pub fn draft(self, systems: &Systems, asked: &Tables) -> Result<Draft, Failure> {
        // Those of the limits are told by what is measured.
        let says_sizes = self != Comparison::Limits;
        let mut desk = Desk { systems, asked, runs: Vec::new(), says_sizes, absent: Vec::new() };
        match self {
            Comparison::TwoTiers => {
                let keys = desk.keys(4_000_000);
                let place = desk.shares(keys, 20, 20);
                for (label, distribution) in DISTRIBUTIONS {
                    let both = ["tierdb-byte", "rocksdb-tiers"];
                    desk.add(label, &both, &WORKLOADS, keys, place.clone()).distribution = distribution;
                    desk.add(label, &["rocksdb-fast"], &["a", "b", "c", "d"], keys, place.clone())
                        .distribution = distribution;
                }
            }
            Comparison::OneSsdSync => {
                let (keys, place) = (desk.keys(400_000), desk.place(None, None));
                desk.add("", &["tierdb-ssd", "rocksdb"], &["load", "a"], keys, place).threads =
                    vec![1, 4, 16];
            }
            Comparison::EmbeddedSync => {
                // D and E insert, and on one SSD memory bounds how many keys there can be.
                let keys = desk.keys(100_000);
                let place = desk.place(Some((Desk::data(keys) / 4).max(INSERTING_MEMORY)), None);
                let workloads = [&["load"][..], &WORKLOADS].concat();
                let embedded = ["tierdb-ssd", "fjall", "redb", "lmdb"];
                desk.add("", &embedded, &workloads, keys, place).threads = vec![4];
            }
            Comparison::OneSsdGrouped => {
                let (keys, place) = (desk.keys(4_000_000), desk.place(None, None));
                for (label, systems) in [
                    (DIRECT, &["tierdb-ssd", "rocksdb", "rocksdb-blob"][..]),
                    (CACHED, &["tierdb-ssd-cached", "fjall", "redb", "lmdb"]),
                ] {
                    desk.add(label, systems, &WORKLOADS, keys, place.clone()).durability =
                        vec![Durability::Grouped];
                }
            }
            Comparison::Production => {
                let keys = desk.keys(4_000_000);
                let all = ["tierdb-byte", "slab-byte", "rocksdb-tiers"];
                desk.add(NUTANIX, &all, &["nutanix"], keys, desk.shares(keys, 20, 20));
                let place = Place { key_size: None, ..desk.place(None, None) };
                desk.add(MIXGRAPH, &all, &["mixgraph"], keys, place).value_size = None;
            }
            Comparison::Writes => {
                let keys = desk.keys(4_000_000);
                let place = desk.shares(keys, 20, 20);
                desk.add(ROOM, &["tierdb-byte", "rocksdb-tiers"], &["put"], keys, place.clone());
                desk.add(TIGHT, &["tierdb-byte"], &["put"], keys, place);
            }
            Comparison::Limits => limits(&mut desk),
            Comparison::Recovery => {
                let place = Place { no_recovery: false, ..desk.place(None, None) };
                let systems = ["tierdb-byte", "tierdb-ssd", "slab-byte"];
                let keys = desk.keys(4_000_000);
                let run = desk.add("", &systems, &[], keys, place);
                run.value_size = Some(Sizes::Fixed(100));
            }
            Comparison::Slab | Comparison::SlabBlock => {
                let keys = desk.keys(4_000_000);
                let mut place = desk.shares(keys, 10, 20);
                // In memory, what the calls of a disk cost does not hide what a store costs.
                place.site.dir.clone_from(&place.site.fast_dir);
                let systems: &[_] = if self == Comparison::Slab {
                    &["slab-byte", "rocksdb-tiers"]
                } else {
                    place.emulate_block = Some(SLAB_FAST.to_owned());
                    &["slab-device", "slab-block", "rocksdb-tiers-block"]
                };
                for (label, distribution) in DISTRIBUTIONS {
                    let run = desk.add(label, systems, &WORKLOADS, keys, place.clone());
                    (run.threads, run.distribution) = (vec![PAPER_CLIENTS], distribution);
                    run.place.emulate_flash = Some(SLAB_FLASH.to_owned());
                }
            }
        }
        let mut draft = desk.finish(self)?;
        match self {
            Comparison::TwoTiers => {
                repeat_c(&mut draft.plan);
                settle(&mut draft.plan);
            }
            Comparison::EmbeddedSync => warm_scans(&mut draft.plan),
            Comparison::OneSsdGrouped | Comparison::Production => settle(&mut draft.plan),
            Comparison::Slab | Comparison::SlabBlock => {
                settle(&mut draft.plan);
                warm_as_the_paper(&mut draft.plan);
            }
            Comparison::Writes => count_updates(&mut draft.plan),
            Comparison::Limits => {
                warm_hits(&mut draft.plan);
                leave_out_checksums(&mut draft.plan);
                draft.plan.settings.length.push_str(
                    ": keys, sizes and times are those of the hits; misses, and 16 threads, have four times the keys; checksums the same keys, \
                     and a quarter of the times",
                );
            }
            _ => {}
        }
        Ok(draft)
    }
}

fn limits(desk: &mut Desk<'_>) {
    let keys = desk.keys(1_000_000);
    let data = Desk::data(keys);
    let ours = ["tierdb-byte"];
    // Fewer, since all of them are read first.
    let run = desk.add(HITS, &ours, &["c"], keys / 4, desk.place(Some(data), None));
    (run.threads, run.distribution) = (vec![1], Keys::Zipfian);
    // A fast tier with room for the index alone keeps no values that memory gives up.
    let least = desk.systems.named(ours[0]).map(|system| system.needs(keys, MIN_KEY_BYTES).fast_bytes);
    let place = desk.place(Some(LEAST_MEMORY), Some(least.unwrap_or(0) / 4 * 5));
    desk.add(MISSES, &ours, &["get"], keys, place).threads = vec![1];
    let place = desk.shares(keys, 20, 20);
    desk.add(BUSY, &ours, &["c"], keys, place).threads = vec![16];
    let idle = desk.asked.seconds.unwrap_or(5.0).min(5.0);
    let place = Place { idle, ..desk.place(None, None) };
    desk.add(UPDATES, &["tierdb-byte", "tierdb-ssd", "slab-byte", "slab-ssd"], &["put"], keys, place);
    // With flash in memory too, processors are the limit, and whatever takes their time shows.
    let mut place = desk.shares(keys / 4, 20, 20);
    place.site.dir.clone_from(&place.site.fast_dir);
    for label in [CHECKED, UNCHECKED].into_iter().cycle().take(2 * CHECKED_RUNS) {
        let run = desk.add(label, &ours, &["put", "get"], keys / 4, place.clone());
        (run.seconds, run.warmup) = (run.seconds / 4.0, run.warmup / 4.0);
    }
}

fn leave_out_checksums(plan: &mut Plan) {
    for (label, case) in &mut plan.cases {
        case.unchecked = label == UNCHECKED;
    }
}

/// C once more behind the first, by 4 threads, on systems that run everything.
fn repeat_c(plan: &mut Plan) {
    for (_, case) in &mut plan.cases {
        let whole = case.phases.iter().any(|phase| phase.name == "f");
        if let Some(c) = case.phases.iter().position(|phase| phase.name == "c").filter(|_| whole) {
            let more = Phase { name: MORE_THREADS.to_owned(), threads: 4, ..case.phases[c].clone() };
            case.phases.insert(c + 1, more);
        }
    }
}

/// How long a warm-up that settles goes on, at least and at most, in lengths of its phase: until caches hold what they will hold, and
/// where it takes longer, until values lie as scans want them; there little is gained from one moment to the next.
const CACHED_IN: (f64, f64) = (0.5, 4.0);
const LAID_OUT_IN: (f64, f64) = (2.0, 12.0);

/// Before each phase that reads, caches come to hold what they will hold, however long a system needs for that.
fn settle(plan: &mut Plan) {
    let mut words = None;
    for phase in plan.cases.iter_mut().flat_map(|(_, case)| &mut case.phases) {
        let writes = phase.mix.share(Op::Insert) + phase.mix.share(Op::Update);
        if let Limit::Seconds(seconds) = phase.limit
            && writes < 1.0
        {
            let [cached, laid_out] =
                [CACHED_IN, LAID_OUT_IN].map(|(least, most)| (seconds * least, seconds * most));
            let (least, most) = if phase.mix.share(Op::Scan) > 0.0 { laid_out } else { cached };
            phase.warmup = Some(Warmup::Settled { least, ops: 0, most });
            words = Some(format!(
                "{seconds} s after a warm-up of {:.1} to {:.1} s, until the bytes read from devices for an operation differ by less \
                 than 2 % from a quarter of a phase to the next; with scans of {:.1} to {:.1} s, and from a phase to the next",
                cached.0, cached.1, laid_out.0, laid_out.1
            ));
        }
    }
    if let Some(words) = words {
        plan.settings.length = format!("closed loop; {words}");
    }
}

/// Phases that scan have a warm-up of twice their time. It is no longer for one system than for another: they insert, so that one which
/// settles later would have more to scan.
fn warm_scans(plan: &mut Plan) {
    for phase in plan.cases.iter_mut().flat_map(|(_, case)| &mut case.phases) {
        if let Limit::Seconds(seconds) = phase.limit
            && phase.mix.share(Op::Scan) > 0.0
        {
            phase.warmup = Some(Warmup::For(Limit::Seconds(2.0 * seconds)));
        }
    }
    plan.settings.length.push_str("; with scans after twice as long as they take");
}

/// Warm-ups that settle have as many operations for each key as those of the PrismDB paper (§6): placement by how often keys are
/// read needs that they were.
fn warm_as_the_paper(plan: &mut Plan) {
    for (_, case) in &mut plan.cases {
        let keys = case.setup.keys as f64;
        for phase in &mut case.phases {
            let Some(Warmup::Settled { ops, most, .. }) = &mut phase.warmup else { continue };
            let share = |op| phase.mix.share(op);
            let a_key = if share(Op::Scan) > 0.0 {
                PAPER_SCANS
            } else if share(Op::Update) + share(Op::ReadModifyWrite) > 0.25 {
                PAPER_UPDATES
            } else {
                PAPER_READS
            };
            *ops = (a_key * keys) as u64;
            *most = most.max(*ops as f64 / LEAST_RATE);
        }
    }
    let _ = write!(
        plan.settings.length,
        ", and of {PAPER_READS} operations a key at least, {PAPER_UPDATES} where a quarter of them write, {PAPER_SCANS} with scans"
    );
}

/// Hits are looked at when nearly all keys were read: the misses of a zipfian over four times as many reads as there
/// are keys leave only what is hardly ever asked for.
fn warm_hits(plan: &mut Plan) {
    for (_, case) in plan.cases.iter_mut().filter(|(label, _)| label == HITS) {
        case.phases
            .iter_mut()
            .for_each(|phase| phase.warmup = Some(Warmup::For(Limit::Ops(4 * case.setup.keys))));
    }
}

/// As many updates as there are keys, after three times as many: so many that garbage has to be collected where there is room, too.
fn count_updates(plan: &mut Plan) {
    for (label, case) in &mut plan.cases {
        for phase in &mut case.phases {
            phase.warmup = Some(Warmup::For(Limit::Ops(case.setup.keys * 3)));
            phase.limit = Limit::Ops(case.setup.keys);
        }
        if label == TIGHT {
            case.setup.knobs.flash_bytes = Some((2 * case.setup.data_bytes).max(LEAST_FLASH));
        }
    }
    plan.settings.length = "closed loop; an operation for each key after three for each".to_owned();
}

/// The least flash that values are collected in.
const LEAST_FLASH: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn what_is_said_to_repeat_a_comparison_does() {
        let given = ["--only", "one-ssd-sync", "--scale", "0.1", "--repeat", "2", "--memory-group", "64MiB"];
        let cli =
            Cli::try_parse_from(["tierdb-bench", "tables"].into_iter().chain(given)).expect("a command");
        let Command::Tables(asked) = &cli.command else { panic!("{:?}", cli.command) };
        let said = |group| command(Comparison::OneSsdSync, asked, group);
        assert!(said(asked.site.memory_group).ends_with(&format!(" tables {}", given.join(" "))));
        assert!(said(None).ends_with("--repeat 2"));
    }

    #[test]
    fn every_comparison_fits_at_every_scale() {
        let systems = crate::our_systems();
        for scale in ["0.0001", "0.01", "0.05", "0.1", "0.2", "0.5", "1", "10"] {
            let cli = Cli::try_parse_from(["tierdb-bench", "tables", "--scale", scale]).expect("a command");
            let Command::Tables(asked) = &cli.command else { panic!("{:?}", cli.command) };
            for comparison in Comparison::ALL {
                assert_eq!(comparison.to_possible_value().expect("a name").get_name(), comparison.name());
                let name = comparison.name();
                let draft = comparison.draft(&systems, asked).unwrap_or_else(|e| panic!("{name}: {e}"));
                let mut labels: Vec<&str> = comparison.grids().iter().map(|grid| grid.label).collect();
                labels.retain(|label| draft.plan.cases.iter().all(|(own, _)| own != label));
                assert!(labels.is_empty(), "{}: no case is of the tables {labels:?}", comparison.name());
                for grid in comparison.grids() {
                    for column in &grid.columns {
                        let found = draft.plan.cases.iter().any(|(label, case)| {
                            let threads = column.threads.is_none_or(|threads| threads == case.threads);
                            let phase = column.phase == "load"
                                || case.phases.iter().any(|phase| phase.name == column.phase);
                            label == grid.label && case.system == grid.ours && threads && phase
                        });
                        assert!(found, "{}: {column:?}", comparison.name());
                    }
                    for target in &grid.targets {
                        let known = |head: &&str| grid.columns.iter().any(|column| column.head == *head);
                        assert!(target.heads.iter().all(known), "{}: {target:?}", comparison.name());
                    }
                }
            }
        }
    }
}
