//! The experiments of the papers, scaled to the machine, beside what the papers found.
//!
//! `prism` and `slab` say what a figure runs and what the paper has to say about it, [`view`] how it is shown.
//! Figures are pictures without numbers in most cases, so the text and the tables of the papers stand for them.

pub mod prism;
pub mod slab;
pub mod view;

use crate::args::{Keys, Paper, Place, Scale, Source};
use crate::case::Case;
use crate::failure::Failure;
use crate::phase::{Limit, Phase, Warmup};
use crate::plan::{self, Plan};
use crate::store::{Durability, Systems};
use crate::values::Sizes;
use crate::workload::Workload;
use tierdb::ByteSize;
use view::View;

/// A figure: what is run for it, and how that is shown.
pub struct Experiment {
    /// What is run.
    pub plan: Plan,
    /// How it is shown.
    pub view: View,
}

/// The figure that `paper` asks for.
///
/// # Errors
/// `Invalid` for a system that is not there, or sizes that cannot hold the keys.
pub fn prepare(systems: &Systems, paper: &Paper) -> Result<Experiment, Failure> {
    match &paper.source {
        Source::Prism(prism) => prism::prepare(systems, prism.figure, &prism.scale),
        Source::Slab(slab) => slab::prepare(systems, slab.figure, &slab.scale),
    }
}

/// What stands where a paper draws a figure and its text has none.
const NOT_GIVEN: &str = "not given";

/// What holds where the command line does not say otherwise.
#[derive(Clone, Copy)]
struct Defaults {
    systems: &'static [&'static str],
    keys: u64,
    threads: usize,
    seconds: f64,
    /// Memory and fast tier for each byte of data.
    memory: f64,
    fast: f64,
    /// How zipfian workloads choose keys.
    distribution: Keys,
    /// What is imitated on flash, and on a fast block device.
    flash: &'static str,
    block: &'static str,
}

/// The cases of a figure as they are put together.
struct Draft<'a> {
    systems: &'a Systems,
    /// As asked for, with nothing filled in.
    asked: &'a Place,
    defaults: Defaults,
    names: Vec<String>,
    keys: u64,
    threads: usize,
    seconds: f64,
    distribution: Keys,
    cases: Vec<(String, Case)>,
}

impl<'a> Draft<'a> {
    fn new(systems: &'a Systems, scale: &'a Scale, defaults: Defaults) -> Self {
        let names = match &scale.system {
            Some(names) => names.clone(),
            None => defaults.systems.iter().map(|name| (*name).to_owned()).collect(),
        };
        Draft {
            systems,
            asked: &scale.place,
            defaults,
            names,
            keys: scale.keys.unwrap_or(defaults.keys),
            threads: scale.threads.unwrap_or(defaults.threads),
            seconds: scale.seconds.unwrap_or(defaults.seconds),
            distribution: scale.distribution.unwrap_or(defaults.distribution),
            cases: Vec::new(),
        }
    }

    /// Bytes of keys and values, where values have `bytes` bytes.
    fn data(&self, bytes: u32) -> u64 {
        self.keys * (self.asked.key_size.unwrap_or(crate::keys::MIN_KEY_BYTES) as u64 + u64::from(bytes))
    }

    /// The sizes of the store of `name`: those of the paper, or what was asked for.
    fn place(&self, name: &str, bytes: u32) -> Result<Place, Failure> {
        let mut place = self.asked.clone();
        place.emulate_flash.get_or_insert_with(|| self.defaults.flash.to_owned());
        place.emulate_block.get_or_insert_with(|| self.defaults.block.to_owned());
        plan::size_tiers(self.systems, &[name.to_owned()], &mut place, self.keys, Sizes::Fixed(bytes))?;
        let needs = plan::needs(self.systems, name, &place, self.keys)?;
        let share = |of: f64| (self.data(bytes) as f64 * of) as u64;
        if self.asked.memory.is_none() {
            place.memory = Some(ByteSize(share(self.defaults.memory).max(needs.memory)));
        }
        if self.asked.fast_capacity.is_none() {
            // Slabs hold what is hot; an index must hold every key.
            let least = if name.starts_with("slab") { 0 } else { needs.fast_bytes };
            place.fast_capacity = Some(ByteSize(share(self.defaults.fast).max(least)));
        }
        Ok(place)
    }

    /// Adds a case of `name`, told from others by `label`, with values of `bytes` bytes.
    fn case(
        &mut self,
        name: &str,
        label: impl Into<String>,
        bytes: u32,
        phases: Vec<Phase>,
    ) -> Result<&mut Case, Failure> {
        let system = plan::named(self.systems, name)?;
        let place = self.place(name, bytes)?;
        let mut case = plan::bare_case(system, &place, self.keys, Sizes::Fixed(bytes), Durability::Durable);
        case.threads = self.threads;
        case.recovery = false;
        case.idle = 0.0;
        case.phases = phases;
        self.cases.push((label.into(), case));
        let last = self.cases.len() - 1;
        Ok(&mut self.cases[last].1)
    }

    /// A phase of the workload `name`, after a warm-up of `warm` times its length.
    fn phase(&self, name: &str, warm: f64) -> Phase {
        let workload = Workload::named(name).unwrap_or(Workload::ALL[0]);
        Phase {
            name: name.to_owned(),
            mix: workload.mix(),
            keys: workload.distribution(self.distribution.of(0.99)),
            threads: self.threads,
            durability: Durability::Durable,
            warmup: (warm > 0.0).then_some(Warmup::For(Limit::Seconds(self.seconds * warm))),
            limit: Limit::Seconds(self.seconds),
            rate: None,
            // Of 50 entries on average.
            scans: workload.scans(100),
            seed: self.asked.site.seed,
        }
    }

    /// What the figure runs. `length` says how long.
    fn finish(self, title: &str, values: &str, length: String) -> Result<Plan, Failure> {
        for (_, case) in &self.cases {
            if let Some(knob) = plan::named(self.systems, &case.system)?.lacks(&case.setup.knobs) {
                return Err(Failure::Invalid(format!(
                    "the figure sets {knob}, which {} has no knob for: leave it out of --system",
                    case.system
                )));
            }
        }
        let mut names: Vec<&str> = self.cases.iter().map(|(_, case)| case.system.as_str()).collect();
        names.dedup();
        let first = names.first().copied().unwrap_or("tierdb-byte");
        let place = self.place(first, 1024)?;
        let mut settings =
            plan::settings(self.systems, &names, &place, self.keys, Sizes::Fixed(1024), length);
        values.clone_into(&mut settings.values);
        let reference = plan::reference(&place);
        Ok(Plan { title: title.to_owned(), cases: self.cases, settings, reference })
    }
}
