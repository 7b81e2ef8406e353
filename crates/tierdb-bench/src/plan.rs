//! From the command line to cases, and from cases to a report.

use crate::args::{First, Keys, Place, Run};
use crate::case::Case;
use crate::child;
use crate::failure::Failure;
use crate::group::Group;
use crate::keys::MIN_KEY_BYTES;
use crate::knobs::Knobs;
use crate::machine::{Machine, file_system};
use crate::phase::{Limit, Phase, Warmup};
use crate::reference::{self, Reference};
use crate::report::{Repeated, Report, Settings};
use crate::store::{Durability, Fast, Needs, Setup, System, Systems};
use crate::table::grouped;
use crate::values::Sizes;
use crate::workload::Workload;
use std::path::PathBuf;
use std::time::Duration;
use tierdb::ByteSize;

/// The least memory that TierDB works with.
pub const LEAST_MEMORY: u64 = 16 << 20;
/// The least fast tier that it works with.
pub const LEAST_FAST: u64 = 32 << 20;

/// Cases, and what is said about all of them.
pub struct Plan {
    /// The report's title.
    pub title: String,
    /// The cases, each with what sets it apart.
    pub cases: Vec<(String, Case)>,
    /// What is the same for all.
    pub settings: Settings,
    /// The reference that is measured before each round of cases: where, how long at each depth, and what is imitated there.
    pub reference: Option<(PathBuf, Duration, Option<String>)>,
}

/// What `run` asks for.
///
/// # Errors
/// `Invalid` for a system that is not there, and for `mixgraph` beside others whose sizes are not its own, if none are given.
pub fn of_run(systems: &Systems, run: &Run) -> Result<Plan, Failure> {
    let mut cases = Vec::new();
    let mut run = with_sizes(run.clone())?;
    let sizes = run.value_size.unwrap_or(Sizes::Fixed(1024));
    size_tiers(systems, &run.system, &mut run.place, run.keys, sizes)?;
    let run = &run;
    for threads in &run.threads {
        for durability in &run.durability {
            for name in &run.system {
                let system = named(systems, name)?;
                let mut case = bare_case(system, &run.place, run.keys, sizes, *durability);
                case.threads = usize::from(*threads);
                // A load that nobody asks to measure is only in the way.
                if run.workload.iter().any(|name| name == "load") {
                    case.load_durability = *durability;
                }
                for name in run.workload.iter().filter(|name| *name != "load") {
                    let Some(workload) = Workload::named(name) else { continue };
                    case.phases.push(phase(run, &workload, case.threads, *durability));
                }
                cases.push((String::new(), case));
            }
        }
    }
    let names: Vec<&str> = run.system.iter().map(String::as_str).collect();
    let length = match run.ops {
        Some(ops) => format!("{ops} operations after {} s of warm-up", run.warmup),
        None => format!("{} s after {} s of warm-up", run.seconds, run.warmup),
    };
    let pace = run.rate.map_or("closed loop".to_owned(), |rate| format!("open loop of {rate} operations/s"));
    let title = format!("TierDB benchmark: load, {}", run.workload.join(", "));
    let settings = settings(systems, &names, &run.place, run.keys, sizes, format!("{pace}; {length}"));
    let reference = reference(&run.place);
    Ok(Plan { title, cases, settings, reference })
}

/// The reference that `place` asks for.
pub fn reference(place: &Place) -> Option<(PathBuf, Duration, Option<String>)> {
    let own = place.site.dir.join(format!("tierdb-bench-{}-reference", std::process::id()));
    let device = place.emulate_flash.clone().filter(|device| device != "none");
    (place.site.reference > 0.0).then(|| (own, Duration::from_secs_f64(place.site.reference), device))
}

/// The sizes that `mixgraph` is defined with, where it is all that runs and none were asked for.
fn with_sizes(mut run: Run) -> Result<Run, Failure> {
    let is_asked_for = run.workload.iter().any(|name| name == "mixgraph");
    if is_asked_for && run.workload.iter().all(|name| name == "load" || name == "mixgraph") {
        run.value_size.get_or_insert(Sizes::MIXGRAPH);
        run.place.key_size.get_or_insert(48);
    } else if is_asked_for && run.value_size.is_none() {
        let what = "mixgraph has sizes of its own, and other workloads run on the same store: run it alone, or say which with \
                    --value-size ('pareto' for its own) and --key-size (48)";
        return Err(Failure::Invalid(what.to_owned()));
    }
    Ok(run)
}

fn phase(run: &Run, workload: &Workload, threads: usize, durability: Durability) -> Phase {
    Phase {
        name: workload.name.to_owned(),
        mix: workload.mix(),
        keys: workload.distribution(run.distribution()),
        threads,
        durability,
        warmup: (run.warmup > 0.0).then_some(Warmup::For(Limit::Seconds(run.warmup))),
        limit: run.ops.map_or(Limit::Seconds(run.seconds), Limit::Ops),
        rate: run.rate,
        scans: workload.scans(usize::from(run.scan_entries)),
        seed: run.place.site.seed,
    }
}

/// What `first` asks for.
///
/// # Errors
/// As [`of_run`].
pub fn of_first(systems: &Systems, first: &First) -> Result<Plan, Failure> {
    let modes = ["tierdb-byte", "tierdb-block", "tierdb-ssd"];
    let run = Run {
        threads: vec![1, 2, 4],
        distribution: Keys::Uniform,
        seconds: first.seconds,
        warmup: 1.0,
        ..Run::of(&modes, &["put", "get"], first.keys, first.place.clone())
    };
    let plan = of_run(systems, &run)?;
    Ok(Plan { title: "TierDB: first figures".to_owned(), ..plan })
}

/// The system `name`.
///
/// # Errors
/// `Invalid` if there is none.
pub fn named<'a>(systems: &'a Systems, name: &str) -> Result<&'a dyn System, Failure> {
    systems.named(name).ok_or_else(|| {
        Failure::Invalid(format!("there is no system {name:?}; there are {}", systems.names().join(", ")))
    })
}

/// A case of `system` without phases, on one thread, where [`size_tiers`] has settled its sizes.
pub fn bare_case(
    system: &dyn System,
    place: &Place,
    keys: u64,
    sizes: Sizes,
    durability: Durability,
) -> Case {
    let data_bytes = data_bytes(place, keys, sizes);
    let (fast, emulate_fast) = match system.fast() {
        Fast::Memory => (place.site.fast_dir.clone(), &*place.site.emulate_fast),
        fast => {
            let device = if fast == Fast::Block { block_device(place) } else { "none" };
            (place.block_dir.clone().unwrap_or_else(|| place.site.dir.clone()), device)
        }
    };
    // The process's number keeps two benchmarks apart that run at once.
    let own = |tier: &str| PathBuf::from(format!("tierdb-bench-{}-{tier}", std::process::id()));
    let device = |name: &str| (name != "none").then(|| name.to_owned());
    Case {
        system: system.name().to_owned(),
        setup: Setup {
            fast_dir: fast.join(own("fast")),
            fast_bytes: fast_bytes(place),
            flash_dir: place.site.dir.join(own("flash")),
            memory: memory(place),
            durability,
            emulate_fast: device(emulate_fast),
            emulate_flash: device(flash_device(place)),
            keys,
            data_bytes,
            knobs: Knobs::default(),
        },
        key_bytes: key_bytes(place),
        sizes,
        threads: 1,
        load_durability: Durability::Grouped,
        phases: Vec::new(),
        seed: place.site.seed,
        recovery: !place.no_recovery,
        idle: place.idle,
        unchecked: false,
        reference: None,
        group_bytes: place.site.memory_group.map(|more| memory(place) + more.bytes()),
    }
}

/// Refuses a control group for the memory of `names` where there can be none.
fn check_group(systems: &Systems, names: &[String], place: &Place) -> Result<(), Failure> {
    let Some(more) = place.site.memory_group else { return Ok(()) };
    for name in names {
        if named(systems, name)?.fast() == Fast::Memory {
            return Err(Failure::Invalid(format!(
                "--memory-group cannot hold {name}: its fast tier is shared memory, which counts as memory of its process; leave \
                 out the system or the option"
            )));
        }
    }
    Group::new(memory(place) + more.bytes()).map(drop)
}

/// Refuses to imitate a device on flash where `system` cannot: beside others that do it would be on another device.
fn check_flash(system: &dyn System, place: &Place) -> Result<(), Failure> {
    if flash_device(place) == "none" || system.imitates_flash() {
        return Ok(());
    }
    Err(Failure::Invalid(format!(
        "{} cannot imitate {} on flash; leave out the system, or give --emulate-flash none",
        system.name(),
        flash_device(place),
    )))
}

/// What is said of control groups.
fn group_in_words(place: &Place) -> String {
    match place.site.memory_group {
        Some(more) => format!(
            "a control group holds each case's process, page cache and the benchmark's own memory included, to its memory and {more} more"
        ),
        None => "no control group: the page cache may take what the machine has".to_owned(),
    }
}

/// What is imitated on a fast block device.
fn block_device(place: &Place) -> &str {
    place.emulate_block.as_deref().unwrap_or("none")
}

/// What is imitated on flash.
fn flash_device(place: &Place) -> &str {
    place.emulate_flash.as_deref().unwrap_or("none")
}

fn key_bytes(place: &Place) -> usize {
    place.key_size.unwrap_or(MIN_KEY_BYTES)
}

fn data_bytes(place: &Place, keys: u64, sizes: Sizes) -> u64 {
    (keys as f64 * (key_bytes(place) as f64 + sizes.mean())) as u64
}

/// What the system asks for beyond its needs, so that keys which are inserted later have room too: a quarter.
fn with_room(bytes: u64) -> u64 {
    bytes + bytes / 4
}

/// Settles how much memory and fast tier each store of a run gets, the same for all `names`: what was asked for, or
/// a fifth of the data, and more where values are small and some system needs it for its keys.
///
/// # Errors
/// `Invalid` if there is no such system, if what was asked for cannot hold the keys of one, saying what could, or if they
/// cannot be held in a control group, or cannot imitate a device on flash, that was asked for.
pub fn size_tiers(
    systems: &Systems,
    names: &[String],
    place: &mut Place,
    keys: u64,
    sizes: Sizes,
) -> Result<(), Failure> {
    let mut most = Needs::default();
    for name in names {
        check_flash(named(systems, name)?, place)?;
        let needs = named(systems, name)?.needs(keys, key_bytes(place));
        let enough = |given: Option<ByteSize>, needed: u64, option: &str| match given {
            Some(given) if given.bytes() < needed => Err(Failure::Invalid(format!(
                "--{option} {given} is too small: {name} needs about {} for {} keys of {} B; give --{option} {} or more, \
                 leave --{option} out, or ask for fewer --keys",
                ByteSize(needed),
                grouped(keys),
                key_bytes(place),
                whole_mib(with_room(needed)),
            ))),
            _ => Ok(()),
        };
        enough(place.memory, needs.memory, "memory")?;
        enough(place.fast_capacity, needs.fast_bytes, "fast-capacity")?;
        let wanted = self::needs(systems, name, place, keys)?;
        most.memory = most.memory.max(wanted.memory);
        most.fast_bytes = most.fast_bytes.max(wanted.fast_bytes);
    }
    let fifth = data_bytes(place, keys, sizes) / 5;
    place.memory.get_or_insert(ByteSize(fifth.max(most.memory)));
    place.fast_capacity.get_or_insert(ByteSize(fifth.max(most.fast_bytes)));
    check_group(systems, names, place)
}

/// What the system `name` is given for `keys` keys at least.
///
/// # Errors
/// `Invalid` if there is no such system.
pub fn needs(systems: &Systems, name: &str, place: &Place, keys: u64) -> Result<Needs, Failure> {
    let needs = named(systems, name)?.needs(keys, key_bytes(place));
    Ok(Needs {
        memory: with_room(needs.memory).max(LEAST_MEMORY),
        fast_bytes: with_room(needs.fast_bytes).max(LEAST_FAST),
    })
}

/// At least `bytes`, in a form that the command line takes.
fn whole_mib(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

fn memory(place: &Place) -> u64 {
    place.memory.map_or(LEAST_MEMORY, ByteSize::bytes)
}

fn fast_bytes(place: &Place) -> u64 {
    place.fast_capacity.map_or(LEAST_FAST, ByteSize::bytes)
}

/// What is said about all cases of a run.
pub fn settings(
    systems: &Systems,
    names: &[&str],
    place: &Place,
    keys: u64,
    sizes: Sizes,
    length: String,
) -> Settings {
    let data_bytes = data_bytes(place, keys, sizes);
    let used: Vec<&dyn System> = names.iter().filter_map(|name| systems.named(name)).collect();
    let mut places = vec![("flash".to_owned(), place.site.dir.clone())];
    let mut emulation = vec![format!("flash {}", flash_device(place))];
    if used.iter().any(|system| system.fast() == Fast::Memory) {
        places.push(("fast tier, byte-addressable, EMULATED".to_owned(), place.site.fast_dir.clone()));
        emulation.push(format!("byte-addressable fast tier {} (TierDB only)", place.site.emulate_fast));
    }
    if used.iter().any(|system| system.fast() == Fast::Block) {
        let dir = place.block_dir.clone().unwrap_or_else(|| place.site.dir.clone());
        places.push(("fast tier, block".to_owned(), dir));
        emulation.push(format!("fast block device {}", block_device(place)));
    }
    Settings {
        keys,
        key_bytes: key_bytes(place),
        values: sizes.name(),
        data_bytes,
        memory: memory(place),
        fast_bytes: fast_bytes(place),
        others: Vec::new(),
        places: places.into_iter().map(|(tier, dir)| (tier, file_system(&dir))).collect(),
        emulation: emulation.join(", "),
        group: group_in_words(place),
        length,
        repeats: place.repeat as usize,
        systems: used.iter().map(|system| (system.name().to_owned(), system.about().to_owned())).collect(),
        reference: None,
    }
}

/// Runs every case of `plan` in turn, as often as it says, and tells `progress` which one begins. A case that fails
/// is named in the report, and the others go on.
pub fn carry_out(plan: Plan, progress: &dyn Fn(&str)) -> Report {
    let machine = Machine::here();
    let mut settings = plan.settings;
    let mut cases: Vec<Repeated> =
        plan.cases.iter().map(|(label, _)| Repeated { label: label.clone(), runs: Vec::new() }).collect();
    let mut failures = Vec::new();
    let mut references = Vec::new();
    let all = plan.cases.len() * settings.repeats;
    for repeat in 0..settings.repeats {
        let medium = plan.reference.as_ref().and_then(|(dir, each, device)| {
            progress("flash by itself");
            let (reference, medium) = reference::measure(dir, *each, device.as_deref());
            references.push(reference);
            Some((medium?, *each))
        });
        for (index, (label, case)) in plan.cases.iter().enumerate() {
            let beside = medium.as_ref().and_then(|(file, each)| file.beside(&case.setup.flash_dir, *each));
            let case = &Case { reference: beside, ..case.clone() };
            let number = repeat * plan.cases.len() + index + 1;
            let durability = case.setup.durability.name();
            progress(&format!(
                "{number} of {all}: {}, {durability}, {} threads {label}",
                case.system, case.threads
            ));
            match child::measure(case) {
                Ok(outcome) => cases[index].runs.push(outcome),
                Err(failure) => failures.push(format!("{}, {durability}: {failure}", case.system)),
            }
        }
    }
    settings.reference = Reference::middle(&references);
    cases.retain(|case| !case.runs.is_empty());
    Report { title: plan.title, machine, settings, cases, failures }
}
