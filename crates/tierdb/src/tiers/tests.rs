//! Every state that directories can be in when a store is opened, on simulated devices.

use super::*;
use crate::config::EngineKind;
use crate::identity::Mode;
use tierdb_base::ErrorKind;
use tierdb_device::{AlignedBuf, BlockFile, OpenMode};
use tierdb_sim::{SimDir, World};

pub(super) const SHAPE: Shape =
    Shape { engine: EngineKind::Valuelog, mode: Mode::Block, pool_len: 4 << 20, log_len: 1 << 20 };
/// Stands for the files of the engine.
pub(super) const ENGINE_FILE: &str = "values";

pub(super) fn place(world: &World, role: TierRole, name: &str) -> Place<SimDir> {
    Place { dir: Some(world.dir(name)), path: name.into(), role, capacity: 64 << 20 }
}

pub(super) fn begin(places: Vec<Place<SimDir>>, intent: Intent) -> Result<Tiers<SimDir>> {
    let no_dir = |path: &Path| -> Result<SimDir> { panic!("{} is there", path.display()) };
    Tiers::open(places, intent, 1_700_000_000, no_dir, |_| Ok(SHAPE), |name| name == ENGINE_FILE)
}

/// Opens or creates a store, with an engine that has one file in each flash tier.
pub(super) fn open(places: Vec<Place<SimDir>>, intent: Intent) -> Result<Tiers<SimDir>> {
    let mut tiers = begin(places, intent)?;
    for tier in &tiers.flash {
        if tiers.fresh {
            let file = tier.dir.open(ENGINE_FILE, OpenMode::CreateNew)?;
            file.set_len(4096)?;
            file.write(0, &AlignedBuf::from_bytes(tiers.uuid.as_bytes())?)?;
            file.sync()?;
            tier.dir.sync()?;
        } else {
            let mut buf = AlignedBuf::zeroed(4096)?;
            tier.dir.open(ENGINE_FILE, OpenMode::Existing)?.read(0, &mut buf)?;
            assert_eq!(&buf[..16], tiers.uuid.as_bytes(), "the engine's file is this store's");
        }
    }
    tiers.finish()?;
    Ok(tiers)
}

pub(super) fn world() -> World {
    let world = World::new();
    for name in ["fast", "flash-a", "flash-b", "other-fast", "other-flash", "spare"] {
        world.add_dir(name);
    }
    world
}

pub(super) fn three(world: &World) -> Vec<Place<SimDir>> {
    vec![
        place(world, TierRole::Fast, "fast"),
        place(world, TierRole::Flash, "flash-a"),
        place(world, TierRole::Flash, "flash-b"),
    ]
}

fn error(places: Vec<Place<SimDir>>) -> Error {
    match open(places, Intent::OpenOrCreate) {
        Ok(_) => panic!("must be refused"),
        Err(error) => error,
    }
}

/// All names and bytes of the directories, to see that a refusal changed nothing.
fn contents(world: &World) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for name in ["fast", "flash-a", "flash-b", "other-fast", "other-flash", "spare"] {
        let dir = world.dir(name);
        for file in dir.list().expect("list") {
            let open = dir.open(&file, OpenMode::Existing).expect("open");
            let mut buf = AlignedBuf::zeroed(open.len().expect("len") as usize).expect("buffer");
            if !open.is_empty().expect("len") {
                open.read(0, &mut buf).expect("read");
            }
            all.push((format!("{name}/{file}"), buf.to_vec()));
        }
    }
    all
}

#[test]
fn a_store_is_created_and_found_again() {
    let world = world();
    let created = open(three(&world), Intent::OpenOrCreate).expect("create");
    let uuid = created.uuid;
    assert!(created.fresh && created.flash.len() == 2);
    drop(created);
    let found = open(three(&world), Intent::OpenExisting).expect("open");
    assert_eq!((found.uuid, found.shape, found.fresh), (uuid, SHAPE, false));
}

#[test]
fn absent_and_empty_are_not_found_where_a_store_must_be() {
    let world = world();
    let refused = begin(three(&world), Intent::OpenExisting).err().expect("refused");
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(contents(&world).is_empty());
}

#[test]
fn a_store_is_not_created_over_one() {
    let world = world();
    drop(open(three(&world), Intent::CreateNew).expect("create"));
    let before = contents(&world);
    assert_eq!(begin(three(&world), Intent::CreateNew).err().expect("refused").kind(), ErrorKind::Invalid);
    assert_eq!(contents(&world), before);
}

#[test]
fn foreign_files_are_left_alone() {
    let world = world();
    let file = world.dir("flash-b").open("holiday.jpg", OpenMode::CreateNew).expect("create");
    file.set_len(4096).expect("length");
    let before = contents(&world);
    let refused = error(three(&world));
    assert!(matches!(&refused, Error::NotAStore { why, .. } if why.contains("holiday.jpg")), "{refused}");
    assert_eq!(contents(&world), before);
}

#[test]
fn an_open_store_is_locked_by_every_tier() {
    let world = world();
    let first = open(three(&world), Intent::OpenOrCreate).expect("create");
    assert_eq!(error(three(&world)).kind(), ErrorKind::Locked);
    drop(first);
    let lock = world.dir("flash-b").lock().expect("lock");
    assert_eq!(error(three(&world)).kind(), ErrorKind::Locked);
    drop(lock);
    open(three(&world), Intent::OpenExisting).expect("open");
}

#[test]
fn reordered_flash_tiers_are_put_in_order() {
    let world = world();
    drop(open(three(&world), Intent::OpenOrCreate).expect("create"));
    let mut places = three(&world);
    places.swap(1, 2);
    let tiers = open(places, Intent::OpenExisting).expect("open");
    let order: Vec<_> = tiers.flash.iter().map(|t| (t.path.display().to_string(), t.configured)).collect();
    assert_eq!(order, [("flash-a".to_owned(), 1), ("flash-b".to_owned(), 0)]);
}

#[test]
fn several_fast_tiers_are_found_in_their_order() {
    let world = world();
    let four = || {
        let mut places = three(&world);
        places.insert(1, place(&world, TierRole::Fast, "other-fast"));
        places
    };
    drop(open(four(), Intent::OpenOrCreate).expect("create"));
    let mut places = four();
    places.swap(0, 1);
    let tiers = open(places, Intent::OpenExisting).expect("open");
    let order: Vec<_> = tiers.fast.iter().map(|t| (t.path.display().to_string(), t.configured)).collect();
    assert_eq!(order, [("fast".to_owned(), 1), ("other-fast".to_owned(), 0)]);
    drop(tiers);
    let mut places = four();
    places[1] = place(&world, TierRole::Fast, "spare");
    let refused = error(places);
    assert!(
        matches!(&refused, Error::TierMissing { role: TierRole::Fast, uuid, path }
            if uuid.starts_with("1 of") && path == Path::new("spare")),
        "{refused}"
    );
    let mut places = four();
    places.remove(1);
    let refused = error(places);
    assert!(
        matches!(&refused, Error::TierMissing { path, .. } if path == Path::new("other-fast")),
        "{refused}"
    );
    let remains = Remains::find(four()).expect("find");
    assert_eq!(remains.fast.iter().map(|tier| tier.capacity).collect::<Vec<_>>(), [Some(64 << 20); 2]);
}

/// Goal: repair takes a directory without an identity for no other tier than the one that was there, be another one missing too.
#[test]
fn a_tier_without_identity_is_not_taken_for_one_that_is_missing() {
    let world = world();
    drop(open(three(&world), Intent::OpenOrCreate).expect("create"));
    world.overwrite("flash-b/TIER", 0, &[7; 4 * 4096]);
    let found = |path: &str, is_a_there: bool| {
        let mut places = three(&world);
        places[2].path = path.into();
        if !is_a_there {
            places[1].dir = None;
        }
        let remains = Remains::find(places).expect("one says which store it is");
        let there = |tier: &Remain<SimDir>| tier.dir.is_some().then(|| tier.path.display().to_string());
        remains.flash.iter().map(there).collect::<Vec<_>>()
    };
    let some = |path: &str| Some(path.to_owned());
    assert_eq!(found("flash-b", true), [some("flash-a"), some("flash-b")]);
    assert_eq!(found("elsewhere", true), [some("flash-a"), some("elsewhere")], "no other is left");
    assert_eq!(found("flash-b", false), [None, some("flash-b")], "it is where it was");
    assert_eq!(found("elsewhere", false), [None, None], "it may be either");
}

#[test]
fn swapped_roles_are_refused() {
    let world = world();
    let pair = |fast, flash| vec![place(&world, TierRole::Fast, fast), place(&world, TierRole::Flash, flash)];
    drop(open(pair("fast", "flash-a"), Intent::OpenOrCreate).expect("create"));
    let before = contents(&world);
    let refused = error(pair("flash-a", "fast"));
    assert!(matches!(refused, Error::ForeignTier { .. }), "{refused}");
    assert_eq!(contents(&world), before);
}

#[test]
fn another_stores_tier_is_refused_by_name() {
    let world = world();
    let other =
        || vec![place(&world, TierRole::Fast, "other-fast"), place(&world, TierRole::Flash, "other-flash")];
    let store = open(three(&world), Intent::OpenOrCreate).expect("create").uuid;
    let second = open(other(), Intent::OpenOrCreate).expect("create").uuid;
    let before = contents(&world);
    let mixed = vec![
        place(&world, TierRole::Fast, "fast"),
        place(&world, TierRole::Flash, "flash-a"),
        place(&world, TierRole::Flash, "other-flash"),
    ];
    let refused = error(mixed);
    assert!(
        matches!(&refused, Error::ForeignTier { expected, found, .. }
            if expected.contains(&store.to_string()) && found.contains(&second.to_string())),
        "{refused}"
    );
    assert_eq!(contents(&world), before);
}

#[test]
fn a_copied_tier_is_refused() {
    let world = world();
    drop(open(three(&world), Intent::OpenOrCreate).expect("create"));
    let (from, to) = (world.dir("flash-a"), world.dir("spare"));
    for name in from.list().expect("list") {
        let (from, to) = (
            from.open(&name, OpenMode::Existing).expect("open"),
            to.open(&name, OpenMode::CreateNew).expect("create"),
        );
        let len = from.len().expect("len");
        let mut buf = AlignedBuf::zeroed(len as usize).expect("buffer");
        from.read(0, &mut buf).expect("read");
        to.set_len(len).expect("length");
        to.write(0, &buf).expect("write");
    }
    let mut places = three(&world);
    places[2] = place(&world, TierRole::Flash, "spare");
    let refused = error(places);
    assert!(
        matches!(&refused, Error::ForeignTier { expected, .. } if expected.contains("copy")),
        "{refused}"
    );
}

#[test]
fn a_missing_or_emptied_tier_is_named_and_never_created_anew() {
    for missing in 0..3 {
        let world = world();
        let uuid = open(three(&world), Intent::OpenOrCreate).expect("create").uuid;
        let role = if missing == 0 { TierRole::Fast } else { TierRole::Flash };
        let before = contents(&world);
        let expect = |places, at: &str| {
            let refused = error(places);
            assert!(
                matches!(&refused, Error::TierMissing { role: r, uuid: u, path }
                    if *r == role && u.contains(&uuid.to_string()) && path == Path::new(at)),
                "{refused}"
            );
            assert_eq!(contents(&world), before);
        };
        // Replaced by an empty directory.
        let mut places = three(&world);
        places[missing] = place(&world, role, "spare");
        expect(places, "spare");
        // Not there.
        let mut places = three(&world);
        places[missing] = Place { dir: None, path: "unmounted".into(), role, capacity: 0 };
        expect(places, "unmounted");
        // Not configured: it is named by where it last was.
        let mut places = three(&world);
        let last = places.remove(missing).path;
        expect(places, last.to_str().expect("text"));
    }
}

#[test]
fn tiers_are_not_added_to_a_store() {
    let world = world();
    drop(open(three(&world), Intent::OpenOrCreate).expect("create"));
    let before = contents(&world);
    let mut places = three(&world);
    places.push(place(&world, TierRole::Flash, "spare"));
    let refused = error(places);
    assert!(matches!(&refused, Error::Invalid { what } if what.contains("spare")), "{refused}");
    assert_eq!(contents(&world), before);
}

#[test]
fn a_moved_tier_is_accepted_and_its_new_place_is_remembered() {
    let world = world();
    drop(open(three(&world), Intent::OpenOrCreate).expect("create"));
    let mut places = three(&world);
    places[1].path = "moved".into();
    drop(open(places, Intent::OpenExisting).expect("open"));
    let mut places = three(&world);
    places.remove(1);
    let refused = error(places);
    assert!(matches!(&refused, Error::TierMissing { path, .. } if path == Path::new("moved")), "{refused}");
}

/// Opens a store at an absent flash tier and, before it, an absent fast one, which are made by another process that
/// does `meanwhile` before they are locked here.
fn overtaken(world: &World, intent: Intent, meanwhile: impl Fn()) -> Result<Tiers<SimDir>> {
    let absent = |role, name: &str| Place { dir: None, path: name.into(), role, capacity: 64 << 20 };
    let places = vec![absent(TierRole::Fast, "fast"), absent(TierRole::Flash, "flash-a")];
    let make = |path: &Path| {
        if path == Path::new("fast") {
            meanwhile();
        }
        Ok(world.dir(path.to_str().expect("text")))
    };
    Tiers::open(places, intent, 1_700_000_000, make, |_| Ok(SHAPE), |name| name == ENGINE_FILE)
}

fn pair(world: &World) -> Vec<Place<SimDir>> {
    vec![place(world, TierRole::Fast, "fast"), place(world, TierRole::Flash, "flash-a")]
}

#[test]
fn a_store_that_another_process_makes_meanwhile_is_found() {
    let world = world();
    let uuid = std::cell::Cell::new(None);
    let other = || uuid.set(Some(open(pair(&world), Intent::OpenOrCreate).expect("create").uuid));
    let mut found = overtaken(&world, Intent::OpenOrCreate, other).expect("open");
    assert_eq!((Some(found.uuid), found.fresh), (uuid.get(), false));
    found.finish().expect("finish");
    assert_eq!(begin(pair(&world), Intent::OpenExisting).err().expect("locked").kind(), ErrorKind::Locked);
    drop(found);
    let again = open(pair(&world), Intent::OpenExisting).expect("open");
    assert_eq!(Some(again.uuid), uuid.get());
    drop(again);
    let before = contents(&world);
    let refused = overtaken(&world, Intent::CreateNew, || {}).err().expect("refused");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(contents(&world), before);
}

#[test]
fn what_else_another_process_makes_meanwhile_is_met_as_if_it_had_been_there() {
    let world = world();
    // A store that is open there, one of other tiers, and files of somebody else.
    let held = std::cell::RefCell::new(None);
    let other = || *held.borrow_mut() = Some(open(pair(&world), Intent::OpenOrCreate).expect("create"));
    let refused = overtaken(&world, Intent::OpenOrCreate, other).err().expect("refused");
    assert_eq!(refused.kind(), ErrorKind::Locked);
    drop(held);
    open(pair(&world), Intent::OpenExisting).expect("it is still there");

    let world = self::world();
    let other = || drop(open(three(&world), Intent::OpenOrCreate).expect("create"));
    let refused = overtaken(&world, Intent::OpenOrCreate, other).err().expect("refused");
    assert!(matches!(&refused, Error::TierMissing { path, .. } if path == Path::new("flash-b")), "{refused}");
    open(three(&world), Intent::OpenExisting).expect("it is still there");

    let world = self::world();
    let other = || drop(world.dir("flash-a").open("holiday.jpg", OpenMode::CreateNew).expect("create"));
    let refused = overtaken(&world, Intent::OpenOrCreate, other).err().expect("refused");
    assert!(matches!(&refused, Error::NotAStore { why, .. } if why.contains("holiday.jpg")), "{refused}");

    // A creation that was interrupted is done again, and its files go.
    let world = self::world();
    let other = || {
        let cut = begin(pair(&world), Intent::OpenOrCreate).expect("begin");
        cut.flash[0].dir.open(ENGINE_FILE, OpenMode::CreateNew).expect("create");
    };
    let created = overtaken(&world, Intent::OpenOrCreate, other).expect("create");
    assert!(created.fresh);
    assert_eq!(created.flash[0].dir.list().expect("list"), [identity::NAME]);
}

#[test]
fn a_creation_that_was_cut_short_is_done_again() {
    let world = world();
    let cut = begin(three(&world), Intent::OpenOrCreate).expect("begin");
    let file = cut.flash[0].dir.open(ENGINE_FILE, OpenMode::CreateNew).expect("create");
    file.set_len(8192).expect("length");
    let uuid = cut.uuid;
    drop(cut);
    assert_eq!(
        begin(three(&world), Intent::OpenExisting).err().expect("refused").kind(),
        ErrorKind::NotFound
    );
    let again = open(three(&world), Intent::OpenOrCreate).expect("create");
    assert!(again.fresh && again.uuid != uuid);
    drop(again);
    open(three(&world), Intent::OpenExisting).expect("open");
}

#[test]
fn a_creation_that_was_cut_short_is_not_cleared_of_foreign_files() {
    let world = world();
    drop(begin(three(&world), Intent::OpenOrCreate).expect("begin"));
    world.dir("flash-a").open("notes.txt", OpenMode::CreateNew).expect("create");
    let before = contents(&world);
    let refused = error(three(&world));
    assert!(matches!(&refused, Error::NotAStore { why, .. } if why.contains("notes.txt")), "{refused}");
    assert_eq!(contents(&world), before);
}

#[test]
fn what_a_copy_was_to_fill_does_not_become_an_empty_store() {
    let world = world();
    let filled = begin(three(&world), Intent::CreateNew).expect("begin");
    assert_eq!(error(three(&world)).kind(), ErrorKind::Locked, "while it goes on");
    drop(filled);
    let before = contents(&world);
    for intent in [Intent::OpenOrCreate, Intent::OpenExisting] {
        let refused = begin(three(&world), intent).err().expect("refused");
        assert!(
            matches!(&refused, Error::NotFound { hint, .. } if hint.contains("do it again")),
            "{refused}"
        );
        // Nor by way of one of its tiers.
        let one = vec![place(&world, TierRole::Flash, "flash-a")];
        assert_eq!(begin(one, intent).err().expect("refused").kind(), ErrorKind::NotFound);
    }
    assert_eq!(contents(&world), before);
    let uuid = open(three(&world), Intent::CreateNew).expect("again").uuid;
    assert_eq!(open(three(&world), Intent::OpenOrCreate).expect("open").uuid, uuid);
}
