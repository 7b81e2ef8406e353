//! Crashes at every event, and failures of every operation, of creating, opening and removing a store.

use super::tests::{ENGINE_FILE, open, three, world};
use super::*;
use tierdb_base::ErrorKind;
use tierdb_base::mutant::{self, Site};
use tierdb_device::{AlignedBuf, BlockFile, OpenMode};
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, Oracle, explore};
use tierdb_sim::{FaultKind, FaultPlan, SimDir, World};

/// What was told to the caller.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The store that was opened.
    store: Option<Uuid>,
    /// The last write that was acknowledged.
    written: u8,
    /// From here on the store may be replaced.
    abandoned: bool,
}

/// What a caller writes, in the engine's file of the second flash tier.
fn write(tiers: &Tiers<SimDir>, value: u8) -> Result<()> {
    let file = tiers.flash[1].dir.open(ENGINE_FILE, OpenMode::Existing)?;
    let mut block = AlignedBuf::from_bytes(tiers.uuid.as_bytes())?;
    block[512] = value;
    file.write_durable(0, &block)
}

fn written(tiers: &Tiers<SimDir>) -> Result<u8> {
    let mut block = AlignedBuf::zeroed(4096)?;
    tiers.flash[1].dir.open(ENGINE_FILE, OpenMode::Existing)?.read(0, &mut block)?;
    Ok(block[512])
}

/// Creates a store, uses it, opens it with a tier that moved, uses it again, and removes it.
fn script(world: &World, told: &Oracle<Told>) -> Result<()> {
    for round in 1..=2 {
        let mut places = three(world);
        if round == 2 {
            places[1].path = "moved".into();
        }
        let mut tiers = open(places, Intent::OpenOrCreate)?;
        told.update(|told| told.store = Some(tiers.uuid));
        write(&tiers, round)?;
        told.update(|told| told.written = round);
        if round == 2 {
            told.update(|told| told.abandoned = true);
            tiers.remove(|name| name == ENGINE_FILE)?;
        }
    }
    Ok(())
}

fn run(world: &World, told: &Oracle<Told>) {
    script(world, told).expect("no faults are injected");
}

/// Opens or creates the store. What was abandoned, and not yet removed, is left to another copy, which is what comes then.
fn open_or_fill(world: &World) -> Result<Tiers<SimDir>> {
    match open(three(world), Intent::OpenOrCreate) {
        Err(error) if error.kind() == ErrorKind::NotFound => open(three(world), Intent::CreateNew),
        opened => opened,
    }
}

fn recover(world: &World) -> Result<(), String> {
    open_or_fill(world).map(drop).map_err(|e| e.to_string())
}

fn check(told: &Told, world: &World) -> Result<(), String> {
    let tiers = open_or_fill(world).map_err(|e| format!("{told:?}: {e}"))?;
    let found = written(&tiers).map_err(|e| e.to_string())?;
    if !told.abandoned {
        if told.store.is_some_and(|store| store != tiers.uuid) {
            return Err(format!("{told:?}, but store {} was found", tiers.uuid));
        }
        if found < told.written {
            return Err(format!("{told:?}, but {found} was found"));
        }
    }
    let uuid = tiers.uuid;
    drop(tiers);
    let again = open(three(world), Intent::OpenExisting).map_err(|e| format!("second open: {e}"))?;
    if again.uuid != uuid {
        return Err(format!("store {uuid}, then {}", again.uuid));
    }
    Ok(())
}

fn crash_everywhere(options: &Options) -> std::result::Result<CrashRun, Box<CrashFailure>> {
    let (world, told) = (world(), Oracle::new(Told::default()));
    explore(&world, options, &told, run, recover, check)
}

/// Goal: a crash at any event of creation leaves one to do again or to finish; once the store was handed out, it is
/// found with all that was acknowledged, until it is removed; a crash at any event of that leaves directories for another.
/// Method: every event in both crash models, and then many of them with recoveries crashed in their turn.
#[test]
fn a_store_survives_a_crash_at_every_event_of_its_creation() {
    crash_everywhere(&Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
    let options = Options { recover_every: 1, recovery_points: usize::MAX, ..Options::default().depth(3) };
    let options = Options { max_images: Some(4_000), ..options };
    let run = crash_everywhere(&options).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(run.images >= 3_000 && run.in_recovery >= 2_000, "{run}");
}

/// Goal: the test above notices every durable write and sync of a tier's identity, and of what goes before it, that is left out.
#[test]
fn no_sync_of_a_tiers_identity_can_be_left_out() {
    let seen = mutant::record(|| run(&world(), &Oracle::new(Told::default())));
    let files = ["src/identity.rs", "src/tiers.rs"];
    let own = |site: &Site| files.iter().any(|file| site.file.ends_with(file)) && site.is_persist();
    let own: Vec<Site> = seen.into_keys().filter(own).collect();
    assert!(files.iter().all(|file| own.iter().any(|site| site.file.ends_with(file))), "{own:?}");
    for site in own {
        let survived = mutant::without(site, || crash_everywhere(&Options::default()));
        assert!(survived.is_err(), "{site} was left out, and nothing noticed");
    }
}

/// Goal: whichever operation fails, once or from then on, what was acknowledged is there when the device works
/// again, and creation can be done again.
#[test]
fn a_store_survives_the_failure_of_every_operation_of_its_creation() {
    let kinds =
        [FaultKind::Eio, FaultKind::Enospc, FaultKind::Short, FaultKind::Interrupted, FaultKind::SyncError];
    for kind in kinds {
        for persistent in [false, true] {
            let mut met = 0;
            for nth in 1.. {
                let (world, told) = (world(), Oracle::new(Told::default()));
                world.inject(FaultPlan { persistent, ..FaultPlan::nth(nth, kind) });
                let ran = script(&world, &told);
                if world.heal().hit == 0 {
                    ran.expect("no fault was met");
                    break;
                }
                met = nth;
                check(&told.get(), &world)
                    .unwrap_or_else(|wrong| panic!("{kind:?} at {nth}, persistent {persistent}: {wrong}"));
            }
            assert!(met > 5, "{kind:?}: {met} operations failed");
        }
    }
}
