//! What survives damage of `TIER`, and what is refused.

use super::*;
use tierdb_base::{ErrorKind, mutant};
use tierdb_sim::{FaultKind, FaultPlan, Ops, SimDir, World};

fn identity() -> Identity {
    Identity {
        uuid: Uuid::from_bytes(*b"0123456789abcdef"),
        generation: 1,
        created: 1_700_000_000,
        capacity: 64 << 30,
        shape: Shape {
            engine: EngineKind::Valuelog,
            mode: Mode::Block,
            pool_len: 512 << 20,
            log_len: 128 << 20,
        },
        role: TierRole::Flash,
        state: State::Ready,
        number: 1,
        fast_tiers: 1,
        flash_tiers: 2,
        paths: vec!["/mnt/slc/app".into(), "/mnt/qlc/app".into(), "/mnt/qlc2/app".into()],
    }
}

fn created() -> SimDir {
    let dir = World::new().add_dir("tier");
    create(&dir, &identity()).expect("create");
    dir
}

/// Changes one copy as `change` says, and gives it a good checksum again if `sealed`.
fn alter(dir: &SimDir, copy: usize, sealed: bool, change: impl FnOnce(&mut [u8])) {
    let file = dir.open(NAME, OpenMode::Existing).expect("open");
    let mut raw = AlignedBuf::zeroed(COPY_LEN).expect("buffer");
    file.read(copy as u64 * BLOCK, &mut raw).expect("read");
    change(&mut raw);
    if sealed {
        let sum = checksum(copy as u64, &raw[..at::CHECKSUM.start]);
        raw[at::CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    }
    file.write_durable(copy as u64 * BLOCK, &raw).expect("write");
}

fn refused(dir: &SimDir) -> Error {
    read(dir, TierRole::Flash).expect_err("must be refused")
}

#[test]
fn what_is_written_is_read() {
    let dir = created();
    let found = read(&dir, TierRole::Flash).expect("read");
    assert_eq!((&found.identity, &found.stale), (&identity(), &vec![]));
    assert_eq!(found.identity.last_path(TierRole::Flash, 1), Some("/mnt/qlc2/app"));
    assert_eq!(found.identity.last_path(TierRole::Fast, 0), Some("/mnt/slc/app"));
    assert_eq!(dir.list().expect("list"), [NAME]);
}

#[test]
fn an_identity_that_says_ready_is_never_replaced() {
    let dir = created();
    let other = Identity { uuid: Uuid::from_bytes([7; 16]), state: State::Creating, ..identity() };
    let refused = create(&dir, &other).expect_err("must be refused");
    assert!(
        matches!(&refused, Error::Invalid { what } if what.contains("already is flash tier 1")),
        "{refused}"
    );
    let found = read(&dir, TierRole::Flash).expect("read");
    assert_eq!((&found.identity, &found.stale), (&identity(), &vec![]));
    // One that says *creating* is.
    update(&dir, &found, &Identity { state: State::Creating, ..identity() }).expect("update");
    create(&dir, &other).expect("create");
    assert_eq!(read(&dir, TierRole::Flash).expect("read").identity, other);
}

#[test]
fn long_paths_are_cut_at_whole_lines() {
    let dir = World::new().add_dir("tier");
    let paths = vec!["a".repeat(3000), "b".repeat(3000), "c".into()];
    create(&dir, &Identity { paths: paths.clone(), ..identity() }).expect("create");
    assert_eq!(read(&dir, TierRole::Flash).expect("read").identity.paths, paths[..1]);
}

#[test]
fn two_copies_may_be_lost_and_are_written_again() {
    let dir = created();
    for copy in [0, 2] {
        alter(&dir, copy, false, |raw| raw.fill(0));
    }
    let found = read(&dir, TierRole::Flash).expect("read");
    assert_eq!((&found.identity, &found.stale), (&identity(), &vec![0, 2]));
    heal(&dir, &found).expect("heal");
    let healed = read(&dir, TierRole::Flash).expect("read");
    assert_eq!((healed.identity.generation, healed.stale), (2, vec![]));
    assert_eq!(Identity { generation: 1, ..healed.identity }, identity());
}

#[test]
fn three_lost_copies_are_corruption() {
    let dir = created();
    for copy in 0..3 {
        alter(&dir, copy, false, |raw| raw.fill(0));
    }
    let refused = refused(&dir);
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(refused.to_string().contains("1 are intact"), "{refused}");
}

#[test]
fn no_flipped_bit_of_a_copy_goes_unnoticed() {
    let raw = identity().encode(3).expect("encode");
    let unnoticed = || {
        (0..COPY_LEN * 8).find(|bit| {
            let mut flipped = AlignedBuf::from_bytes(&raw).expect("buffer");
            flipped[bit / 8] ^= 1 << (bit % 8);
            !matches!(decode(3, &flipped), Copy::Bad)
        })
    };
    assert!(matches!(decode(3, &raw), Copy::Good(_)));
    assert_eq!(unnoticed(), None);
    for (site, _) in mutant::record(|| drop(decode(3, &raw))) {
        assert!(mutant::without(site, unnoticed).is_some(), "{site}: the checksum is what notices");
    }
}

#[test]
fn a_copy_in_the_place_of_another_does_not_count() {
    assert!(matches!(decode(1, &identity().encode(0).expect("encode")), Copy::Bad));
}

#[test]
fn values_that_mean_nothing_do_not_count_although_the_checksum_is_right() {
    for (at, value) in
        [(at::ROLE, 3), (at::STATE, 0), (at::MODE, 9), (at::NUMBER, 2), (at::PATHS_LEN.end - 1, 0xff)]
    {
        let mut raw = identity().encode(0).expect("encode");
        raw[at] = value;
        let sum = checksum(0, &raw[..at::CHECKSUM.start]);
        raw[at::CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(decode(0, &raw), Copy::Bad), "byte {at}");
    }
    for pool_len in [0, (512 << 20) + 8, 1 << 57, u64::MAX - 4095] {
        let shape = Shape { pool_len, ..identity().shape };
        let raw = Identity { shape, ..identity() }.encode(0).expect("encode");
        assert!(matches!(decode(0, &raw), Copy::Bad), "a pool of {pool_len} bytes");
    }
}

#[test]
fn a_newer_format_is_refused_with_both_numbers() {
    let dir = created();
    for copy in 0..COPIES {
        alter(&dir, copy, true, |raw| raw[at::FORMAT].copy_from_slice(&7u32.to_le_bytes()));
    }
    assert!(matches!(refused(&dir), Error::NewerFormat { found: 7, newest: FORMAT, .. }));
}

#[test]
fn an_unknown_flag_is_refused() {
    let dir = created();
    for copy in 0..COPIES {
        alter(&dir, copy, true, |raw| raw[at::FLAGS][0] = 4);
    }
    assert!(refused(&dir).to_string().contains("0x4"));
}

#[test]
fn a_file_of_another_length_is_corruption() {
    let dir = created();
    dir.open(NAME, OpenMode::Existing).expect("open").set_len(FILE_LEN - BLOCK).expect("length");
    assert_eq!(refused(&dir).kind(), ErrorKind::Corrupt);
}

#[test]
fn a_copy_of_the_last_generation_makes_changes_impossible_and_no_more() {
    let dir = created();
    let last = Identity { generation: u64::MAX, ..identity() };
    let file = dir.open(NAME, OpenMode::Existing).expect("open");
    file.write_durable(0, &last.encode(0).expect("encode")).expect("write");
    let found = read(&dir, TierRole::Flash).expect("read");
    assert_eq!(found.identity, identity());
    let refused = update(&dir, &found, &identity()).expect_err("none is above it");
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
}

/// Goal: a change that is cut short leaves the old or the new, and can be done again.
/// Method: write the new copies as far as each point, tear the next one, and read.
#[test]
fn a_change_cut_short_leaves_the_old_or_the_new() {
    for done in 0..=COPIES {
        let dir = created();
        let new = Identity { generation: 2, state: State::Creating, ..identity() };
        let file = dir.open(NAME, OpenMode::Existing).expect("open");
        for copy in 0..done {
            file.write_durable(copy as u64 * BLOCK, &new.encode(copy).expect("encode")).expect("write");
        }
        if done < COPIES {
            alter(&dir, done, false, |raw| raw[512..1024].fill(0xa5));
        }
        let found = read(&dir, TierRole::Flash).expect("read");
        assert_eq!(found.identity, if done < QUORUM { identity() } else { new }, "after {done} copies");
        update(&dir, &found, &Identity { number: 0, ..identity() }).expect("update");
        let again = read(&dir, TierRole::Flash).expect("read");
        assert_eq!((again.identity.number, again.stale), (0, vec![]));
        assert!(again.identity.generation > if done > 0 { 2 } else { 1 });
    }
}

/// Goal: nor do two that are cut short, one after the other, take the tier back to what was before both.
/// Method: as many copies of a change are written as make it what is read; then each write of another one fails.
#[test]
fn two_changes_cut_short_do_not_go_back() {
    for nth in 1..=COPIES as u64 {
        let world = World::new();
        let dir = world.add_dir("tier");
        create(&dir, &identity()).expect("create");
        let file = dir.open(NAME, OpenMode::Existing).expect("open");
        let new = Identity { generation: 2, state: State::Creating, ..identity() };
        for copy in 0..QUORUM {
            file.write_durable(copy as u64 * BLOCK, &new.encode(copy).expect("encode")).expect("write");
        }
        let found = read(&dir, TierRole::Flash).expect("read");
        assert_eq!(found.identity, new);
        world.inject(FaultPlan::from_nth(nth, FaultKind::Eio).on(Ops::WRITE));
        update(&dir, &found, &Identity { number: 0, ..identity() }).expect_err("a write fails");
        world.heal();
        let now = read(&dir, TierRole::Flash).expect("read").identity;
        assert!(now == new || now.number == 0, "after {nth} writes: {now:?}");
    }
}

#[test]
fn lengths_that_no_store_has_are_refused() {
    for (field, len) in [(at::LOG_LEN, u64::MAX / 2), (at::LOG_LEN, 4097), (at::POOL_LEN, 0)] {
        let dir = created();
        (0..COPIES).for_each(|copy| {
            alter(&dir, copy, true, |raw| raw[field.clone()].copy_from_slice(&len.to_le_bytes()));
        });
        assert_eq!(refused(&dir).kind(), ErrorKind::Corrupt, "{len}");
    }
}

/// Goal: format 1 can be read for ever.
#[test]
fn the_golden_fixture_is_read_and_written() {
    let golden = include_bytes!("../../tests/golden/tier-v1");
    for copy in 0..COPIES {
        let raw = &golden[copy * COPY_LEN..][..COPY_LEN];
        assert!(matches!(decode(copy, raw), Copy::Good(found) if found == identity()), "copy {copy}");
        assert_eq!(&identity().encode(copy).expect("encode")[..], raw, "copy {copy}");
    }
}

#[test]
#[ignore = "writes the golden fixture; for a new format only"]
fn write_the_golden_fixture() {
    let whole: Vec<u8> =
        (0..COPIES).flat_map(|copy| identity().encode(copy).expect("encode").to_vec()).collect();
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/tier-v1"), whole).expect("write");
}
