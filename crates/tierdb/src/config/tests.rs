//! Settings from text, and in code.

use super::*;

const FULL: &str = r#"
    engine = "valuelog"
    memory = "1 GiB"
    durability = "grouped"
    [[fast]]
    path = "/mnt/slc/app"
    capacity = "64 GiB"
    kind = "block"
    emulate = "optane-ssd"
    [[flash]]
    path = "/mnt/qlc/app"
    capacity = "2 TiB"
    [[flash]]
    path = "/mnt/qlc2/app"
    emulate = "qlc"
    page_cache = true
    write_budget = "0.3 DWPD"
    [slab]
    pinning_threshold = "auto"
    tracked_pct = 80
    promotion = "by-migration"
    records = "device"
    migration_threads = 13
    migration_rate = "64 MiB"
    migrate_at_pct = 97
    migrate_to_pct = 90
    table_parts_pct = 5
    levels = 2
    range_tables = 3
    unmerged_pct = 15
    table_size = "4 MiB"
    [valuelog]
    write_buffer = "2 GiB"
    reclaim_pct = 60
    gc_free_pct = 5
    gc_garbage_pct = 40
"#;

fn refused(text: &str) -> String {
    let error = Config::parse(text).expect_err(text);
    assert_eq!(error.kind(), tierdb_base::ErrorKind::Invalid, "{error}");
    error.to_string()
}

#[test]
fn toml_and_builder_say_the_same() {
    let built = Config::new()
        .with_memory(ByteSize::gib(1))
        .with_durability(Durability::Grouped)
        .with_fast(
            FastTier::new("/mnt/slc/app", ByteSize::gib(64))
                .with_kind(FastKind::Block)
                .with_emulation("optane-ssd"),
        )
        .with_flash(FlashTier::new("/mnt/qlc/app").with_capacity(ByteSize::gib(2048)))
        .with_flash(
            FlashTier::new("/mnt/qlc2/app")
                .with_emulation("qlc")
                .with_page_cache()
                .with_write_budget("0.3 DWPD".parse().expect("a budget")),
        )
        .with_slab(Slab {
            pinning_threshold: Some(PinningThreshold::Auto),
            tracked_pct: Some(80),
            promotion: Some(Promotion::ByMigration),
            migration_threads: Some(13),
            migration_rate: Some(ByteSize::mib(64)),
            migrate_at_pct: Some(97),
            migrate_to_pct: Some(90),
            table_parts_pct: Some(5),
            levels: Some(2),
            range_tables: Some(3),
            unmerged_pct: Some(15),
            table_size: Some(ByteSize::mib(4)),
            records: Some(Records::Device),
        })
        .with_valuelog(Valuelog {
            write_buffer: Some(ByteSize::gib(2)),
            gc_free_pct: Some(5),
            gc_garbage_pct: Some(40),
            reclaim_pct: Some(60),
        });
    let parsed = Config::parse(FULL).expect("full");
    assert_eq!(parsed, built);
    assert_eq!(Config::parse(&built.to_toml().expect("text")).expect("own text"), built);
}

/// Goal: every setting reaches its engine. Method: each is another than the default.
#[test]
fn settings_reach_the_engines() {
    let config = Config::parse(FULL).expect("full");
    let defaults = tierdb_slab::Options::for_pool(1 << 30, 64 << 30);
    let mut options = defaults.clone();
    config.slab.apply(&mut options);
    let wanted = tierdb_slab::Options {
        pinned_pct: None,
        tracked_pct: 80,
        promotion: tierdb_slab::Promotion::ByMigration,
        migration_threads: 13,
        migration_rate: Some(64 << 20),
        high_pct: 97,
        low_pct: 90,
        table_parts_pct: 5,
        levels: Some(2),
        range_tables: 3,
        unmerged_pct: 15,
        table_bytes: 4 << 20,
        ..defaults
    };
    assert_eq!(format!("{options:?}"), format!("{wanted:?}"));
    let defaults = tierdb_valuelog::Options::for_pool(1 << 30, 64 << 30);
    let options = config.valuelog.apply(defaults.clone());
    let buffer = options.write_buffer();
    assert!((2 << 30) - buffer < u64::from(options.rings) * 4096, "{buffer}");
    let sizes = (options.rings, options.ring_bytes);
    let wanted = tierdb_valuelog::Options {
        rings: sizes.0,
        ring_bytes: sizes.1,
        reclaim_pct: 60,
        gc_free_pct: 5,
        gc_garbage_pct: 40,
        ..defaults
    };
    assert_eq!(format!("{options:?}"), format!("{wanted:?}"));
}

#[test]
fn a_path_that_is_not_text_cannot_be_written() {
    use std::os::unix::ffi::OsStrExt;
    let config = Config::one_directory(std::ffi::OsStr::from_bytes(b"/mnt/\xff"));
    assert_eq!(config.to_toml().expect_err("refused").kind(), tierdb_base::ErrorKind::Invalid);
}

#[test]
fn odd_sizes_survive_being_written() {
    let config = Config::one_directory("x").with_memory(ByteSize((1 << 30) + 1));
    assert_eq!(Config::parse(&config.to_toml().expect("text")).expect("own text"), config);
}

#[test]
fn unknown_keys_are_named() {
    for (text, key) in [
        ("memroy = \"1 GiB\"\n[[flash]]\npath = \"a\"", "memroy"),
        ("[[flash]]\npath = \"a\"\ncapcity = \"1 GiB\"", "capcity"),
        ("[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\nsize = 1\n[[flash]]\npath = \"b\"", "size"),
        ("engine = \"btree\"\n[[flash]]\npath = \"a\"", "btree"),
        ("durability = \"maybe\"\n[[flash]]\npath = \"a\"", "maybe"),
        ("[[flash]]\npath = \"a\"\n[slab]\npining_threshold = 70", "pining_threshold"),
    ] {
        assert!(refused(text).contains(key), "{text}");
    }
}

#[test]
fn settings_out_of_range_are_named() {
    for (text, word) in [
        ("memory = \"1 GiB\"", "flash"),
        ("memory = 1073741824\n[[flash]]\npath = \"a\"", "unit"),
        ("memory = \"1 MiB\"\n[[flash]]\npath = \"a\"", "16 MiB"),
        ("[[flash]]\npath = \"a\"\ncapacity = \"1 MiB\"", "flash.capacity"),
        ("[[flash]]\npath = \"\"", "flash.path"),
        ("[[flash]]\npath = \"a\"\n[[flash]]\npath = \"a\"", "twice"),
        ("[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\n[[flash]]\npath = \"a\"", "twice"),
        ("[[flash]]\npath = \"a\"\nemulate = \"tape\"", "tape"),
        ("[[flash]]\npath = \"a\"\n[valuelog]\nreclaim_pct = 95", "reclaim_pct"),
        ("[[flash]]\npath = \"a\"\n[valuelog]\ngc_free_pct = 0", "gc_free_pct"),
        ("[[flash]]\npath = \"a\"\n[valuelog]\ngc_garbage_pct = 5", "gc_garbage_pct"),
        ("[[flash]]\npath = \"a\"\n[valuelog]\nwrite_buffer = \"1 KiB\"", "write_buffer"),
        ("[[flash]]\npath = \"a\"\n[slab]\ntracked_pct = 0", "tracked_pct"),
        ("[[flash]]\npath = \"a\"\n[slab]\nmigrate_at_pct = 100", "migrate_at_pct"),
        ("[[flash]]\npath = \"a\"\n[slab]\nmigrate_to_pct = 98", "migrate_to_pct"),
        ("[[flash]]\npath = \"a\"\n[slab]\nmigration_threads = 65", "migration_threads"),
        (
            "[[flash]]\npath = \"a\"\n[slab]\nmigration_rate = \"1 KiB\"",
            "migration_rate: must be at least 64 KiB",
        ),
        ("[[flash]]\npath = \"a\"\n[slab]\ntable_parts_pct = 51", "table_parts_pct"),
        ("[[flash]]\npath = \"a\"\n[slab]\ntable_size = \"2 GiB\"", "table_size"),
        ("[[flash]]\npath = \"a\"\n[slab]\nlevels = 0", "levels"),
        ("[[flash]]\npath = \"a\"\n[slab]\nlevels = 5", "levels"),
        ("[[flash]]\npath = \"a\"\n[slab]\nrange_tables = 0", "range_tables: must be 1 to 16"),
        ("[[flash]]\npath = \"a\"\n[slab]\nrange_tables = 17", "range_tables: must be 1 to 16"),
        ("[[flash]]\npath = \"a\"\n[slab]\nunmerged_pct = 100", "unmerged_pct: must be 0 to 99"),
        (
            "[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\nkind = \"byte\"\nemulate = \"qlc\"\n[[flash]]\npath = \"b\"",
            "qlc",
        ),
        (
            "[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\n[[fast]]\npath = \"b\"\ncapacity = \"1 GiB\"\nkind = \
             \"block\"\n[[flash]]\npath = \"c\"",
            "b of kind Block",
        ),
        (
            "[[fast]]\npath = \"a\"\ncapacity = \"1 GiB\"\n[[fast]]\npath = \"b\"\ncapacity = \"1 GiB\"\nemulate = \
             \"tlc\"\n[[flash]]\npath = \"c\"",
            "pace of tlc",
        ),
    ] {
        let said = refused(text);
        assert!(said.contains(word), "{text}: {said}");
    }
}

#[test]
fn what_is_no_threshold_or_budget_is_named_with_its_line_and_what_may_stand_there() {
    for (text, place, accepted) in [
        ("[[flash]]\npath = \"a\"\n[slab]\npinning_threshold = 101", "line 4", "0 to 100, or \"auto\""),
        ("[[flash]]\npath = \"a\"\n[slab]\npinning_threshold = -1", "line 4", "0 to 100, or \"auto\""),
        ("[[flash]]\npath = \"a\"\n[slab]\npinning_threshold = \"all\"", "line 4", "0 to 100, or \"auto\""),
        ("[[flash]]\npath = \"a\"\n[slab]\npinning_threshold = 0.7", "line 4", "0 to 100, or \"auto\""),
        ("[[flash]]\npath = \"a\"\nwrite_budget = \"3 GiB\"", "line 3", "\"200 GiB/day\""),
        ("[[flash]]\npath = \"a\"\nwrite_budget = 3", "line 3", "\"0.3 DWPD\""),
    ] {
        let said = refused(text);
        let key = if text.contains("slab") { "pinning_threshold" } else { "write_budget" };
        assert!(said.contains(place) && said.contains(accepted) && said.contains(key), "{text}: {said}");
    }
    let seventy = Config::parse("[[flash]]\npath = \"a\"\n[slab]\npinning_threshold = 70").expect("a number");
    assert_eq!(seventy.slab.pinning_threshold, Some(PinningThreshold::Percent(70)));
    assert_eq!(Config::parse(&seventy.to_toml().expect("text")).expect("own text"), seventy);
}

#[test]
fn what_code_sets_is_checked_as_text_is() {
    let nothing = FlashTier::new("a").with_write_budget(WriteBudget::per_day(ByteSize(0)));
    let mut too_much = Config::one_directory("a");
    too_much.slab.pinning_threshold = Some(PinningThreshold::Percent(101));
    for (config, name) in
        [(Config::new().with_flash(nothing), "flash.write_budget"), (too_much, "slab.pinning_threshold")]
    {
        let refused = config.validate().expect_err("out of range").to_string();
        assert!(refused.contains(name), "{refused}");
    }
}

#[test]
fn there_may_be_sixteen_fast_tiers() {
    let config = |count| {
        (0..count).fold(Config::one_directory("x"), |config, number| {
            config.with_fast(FastTier::new(format!("fast{number}"), ByteSize::mib(64)))
        })
    };
    assert!(config(MAX_FAST_TIERS).validate().is_ok());
    let refused = config(MAX_FAST_TIERS + 1).validate().expect_err("too many").to_string();
    assert!(refused.contains("16"), "{refused}");
}

#[test]
fn relative_paths_are_relative_to_the_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("store.toml");
    std::fs::write(&file, "[[flash]]\npath = \"data\"").expect("write");
    assert_eq!(Config::load(&file).expect("load").flash[0].path, dir.path().join("data"));
    assert_eq!(Config::at(&file).expect("a file"), Config::load(&file).expect("load"));
    std::fs::write(&file, "[[flash]]\npath = \"\"").expect("write");
    let refused = Config::load(&file).expect_err("not the directory of the file").to_string();
    assert!(refused.contains("path"), "{refused}");
    std::fs::write(&file, "[[flash]]\npath = \"data\"").expect("write");
    assert_eq!(Config::at(dir.path()).expect("a directory"), Config::one_directory(dir.path()));
    for missing in [Config::load, Config::at].map(|load| load(dir.path().join("none.toml"))) {
        assert_eq!(missing.expect_err("missing").kind(), tierdb_base::ErrorKind::NotFound);
    }
    let named_so = dir.path().join("old.toml");
    std::fs::create_dir(&named_so).expect("directory");
    assert_eq!(Config::at(&named_so).expect("a directory"), Config::one_directory(&named_so));
}

#[test]
fn a_tier_with_one_bracket_is_told_of_the_second() {
    let said = refused("[flash]\npath = \"a\"");
    assert!(said.contains("[[flash]]") && said.contains("line 1"), "{said}");
}
