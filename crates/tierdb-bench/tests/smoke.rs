//! The command as a whole: every workload on every mode, tiny, with values checked and a killed store recovered.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command, with `dir` for both tiers.
fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tierdb-bench"));
    command.args(args).arg("--dir").arg(dir).arg("--fast-dir").arg(dir);
    command.output().expect("the command runs")
}

fn bench(dir: &Path, args: &[&str]) -> Value {
    let short = ["--warmup", "0", "--reference", "0", "--idle", "0", "--json", "-"];
    let output = run(dir, &[args, &short].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn every_workload_runs_in_every_mode() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let report = bench(
        dir.path(),
        &[
            "run",
            "--system",
            "tierdb-byte,tierdb-block,tierdb-ssd,slab-byte,slab-block,slab-device,slab-ssd",
            "--keys",
            "3000",
            "--ops",
            "1500",
            "--workload",
            "a,b,c,f,d,e,nutanix,put,get,multiget",
        ],
    );
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 7, "{}", report["failures"]);
    for case in cases {
        let outcome = &case["runs"][0];
        let name = &outcome["system"];
        let phases = outcome["phases"].as_array().expect("phases");
        assert_eq!(phases.len(), 11, "{name}: the load and ten workloads");
        assert_eq!(number(&phases[0]["ops"]), 3000.0);
        for phase in phases {
            assert!(number(&phase["rate"]) > 0.0 && number(&phase["cpu_us_per_op"]) > 0.0, "{name}: {phase}");
        }
        assert!(number(&outcome["space"]["keys"]) >= 3000.0);
        assert!(number(&outcome["open_seconds"]) > 0.0, "{name} was opened after its close");
        assert!(number(&outcome["recover_seconds"]) > 0.0, "{name} was opened after it was killed");
    }
    let left = std::fs::read_dir(dir.path()).expect("directory").count();
    assert_eq!(left, 0, "stores are removed");
}

#[test]
fn sizes_distributions_and_rates_can_be_chosen() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let report = bench(
        dir.path(),
        &[
            "run",
            "--system",
            "tierdb-byte",
            "--keys",
            "2000",
            "--seconds",
            "0.5",
            "--workload",
            "a",
            "--rate",
            "1000",
            "--distribution",
            "zipfian",
            "--theta",
            "1.2",
            "--value-size",
            "50..3000",
            "--threads",
            "1,2",
            "--durability",
            "grouped",
            "--repeat",
            "2",
            "--key-size",
            "48",
            "--no-recovery",
        ],
    );
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2, "two numbers of threads");
    for case in cases {
        let runs = case["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2);
        let phase = &runs[0]["phases"][1];
        assert_eq!(phase["distribution"], "zipfian over the keys 1.2");
        assert!(
            number(&phase["rate"]) < 1300.0,
            "the rate of an open loop is that asked for: {}",
            phase["rate"]
        );
        assert!(runs[0]["recover_seconds"].is_null());
    }
}

#[test]
fn what_the_device_allows_and_what_idling_costs_are_said() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let output = run(
        dir.path(),
        &[
            &[
                "run",
                "--keys",
                "3000",
                "--ops",
                "2000",
                "--workload",
                "c,put",
                "--system",
                "tierdb-byte,slab-ssd",
            ][..],
            &["--warmup", "0", "--reference", "0.01", "--idle", "0.3", "--no-recovery"],
        ]
        .concat(),
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = |start: &str| said.lines().filter(|line| line.trim_start().starts_with(start)).count();
    assert_eq!(lines("flash by itself"), 1, "{said}");
    assert_eq!(lines("idle: "), 2, "{said}");
    let reached = if said.contains("not measured (") { 0 } else { 2 };
    assert_eq!(lines("ceiling, c: "), reached, "{said}");
    assert_eq!(lines("ceiling, put: "), 0, "only reads have one: {said}");
}

#[test]
fn keys_that_outweigh_their_values_have_room_in_every_mode() {
    let dir = tempfile::tempdir().expect("temporary directory");
    // A fifth of the data holds no such index: of 9 MB the keys are all.
    let small = ["run", "--keys", "25000", "--key-size", "360", "--value-size", "8", "--ops", "500"];
    let rest = ["--workload", "d", "--no-recovery"];
    let report = bench(dir.path(), &[&small[..], &rest].concat());
    assert_eq!(report["cases"].as_array().map(Vec::len), Some(3), "{}", report["failures"]);
}

#[test]
fn a_tier_that_cannot_hold_the_keys_is_refused_and_what_could_is_said() {
    let refused = |option: &str, system: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tierdb-bench"))
            .args(["run", "--keys", "4000000", "--value-size", "100", "--system", system, option, "64MiB"])
            .output()
            .expect("the command runs");
        assert!(!output.status.success(), "{option} {system}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // 56 B for each of 4 million keys, half as much again for the write buffer, and a quarter to spare: 408 MiB; and
    // for a logged pool twice that in memory.
    let said = refused("--fast-capacity", "tierdb-byte");
    assert!(said.contains("--fast-capacity 64 MiB") && said.contains("--fast-capacity 408MiB"), "{said}");
    let said = refused("--memory", "tierdb-ssd");
    assert!(said.contains("--memory 64 MiB") && said.contains("--memory 810MiB"), "{said}");
}

#[test]
fn a_control_group_holds_a_case_or_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let run = |system: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tierdb-bench"))
            .args([
                "run",
                "--keys",
                "2000",
                "--ops",
                "500",
                "--workload",
                "c",
                "--warmup",
                "0",
                "--reference",
                "0",
                "--idle",
                "0",
            ])
            .args(["--memory-group", "1GiB", "--system", system, "--dir"])
            .arg(dir.path())
            .output()
            .expect("the command runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (done, _, refused) = run("tierdb-ssd,tierdb-byte");
    assert!(!done && refused.contains("--memory-group cannot hold tierdb-byte"), "{refused}");
    // Whether groups can be made is up to the machine.
    match run("tierdb-ssd") {
        (true, said, _) => assert!(said.contains("a control group holds each case's process"), "{said}"),
        (false, _, refused) => {
            assert!(refused.contains("no control group with a limit of memory"), "{refused}")
        }
    }
}

#[test]
fn mixgraph_is_measured_and_drawn() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let plots = dir.path().join("plots");
    let systems = "tierdb-byte,tierdb-ssd,slab-byte,slab-ssd";
    let args = ["run", "--system", systems, "--keys", "5000", "--seconds", "0.5", "--workload", "mixgraph"];
    let plotting = ["--plots", plots.to_str().expect("a path in UTF-8")];
    let report = bench(dir.path(), &[&args[..], &plotting].concat());
    assert_eq!(report["settings"]["key_bytes"], 48);
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 4, "{}", report["failures"]);
    for case in cases {
        let measured = &case["runs"][0]["phases"][1];
        assert_eq!(measured["distribution"], "mixgraph");
        assert!(number(&measured["ops"]) > 0.0, "{case}");
    }
    for name in ["throughput", "latency-mixgraph", "time-mixgraph"] {
        let svg = std::fs::read_to_string(plots.join(format!("{name}.svg"))).expect("SVG");
        // What was measured on stands on each plot.
        for note in [
            "memory",
            "writes: of loads grouped, of workloads durable",
            "tierdb-byte says of itself: EMULATED",
        ] {
            assert!(svg.contains(note), "{name}: {note}");
        }
        let png = std::fs::read(plots.join(format!("{name}.png"))).expect("PNG");
        assert!(png.starts_with(b"\x89PNG") && png.len() > 5_000, "{name}");
    }
    let alone =
        bench(dir.path(), &["run", "--system", "tierdb-byte", "--keys", "2000", "--workload", "load"]);
    assert_eq!(alone["settings"]["key_bytes"], 16, "sizes of its own are mixgraph's alone");
    let refused =
        run(dir.path(), &["run", "--system", "tierdb-byte", "--keys", "5000", "--workload", "mixgraph,c"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("sizes of its own"), "{said}");
}

#[test]
fn the_tables_are_filled_and_one_of_them_again() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let below = |name: &str| dir.path().join(name);
    std::fs::create_dir(below("stores")).expect("directory");
    let tables = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tierdb-bench"))
            .args(["tables", "--scale", "0.0004", "--seconds", "0.04", "--reference", "0"])
            .args(["--dir".as_ref(), below("stores").as_os_str()])
            .args(["--fast-dir".as_ref(), below("stores").as_os_str()])
            .args(["--markdown".as_ref(), below("tables.md").as_os_str()])
            .args(["--plots".as_ref(), below("plots").as_os_str()])
            .args(["--json".as_ref(), below("json").as_os_str()])
            .args(args)
            .output()
            .expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        (said, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (_, forecast) = tables(&["--dry-run"]);
    let comparisons = [
        "two-tiers",
        "one-ssd-sync",
        "embedded-sync",
        "one-ssd-grouped",
        "production",
        "writes",
        "limits",
        "recovery",
        "slab",
    ];
    for name in comparisons {
        assert!(forecast.lines().any(|line| line.starts_with(name) && line.contains("about")), "{forecast}");
    }
    assert!(forecast.contains("without fjall, redb, lmdb"), "{forecast}");
    assert!(!below("tables.md").exists(), "a dry run writes nothing");
    tables(&["--repeat", "1"]);
    let text = || std::fs::read_to_string(below("tables.md")).expect("tables");
    let all = text();
    for (name, row) in [
        ("two-tiers", "| tierdb-byte, K ops/s |"),
        ("one-ssd-sync", "| | load, 1 thread | load, 4 | load, 16 | A, 1 thread | A, 4 | A, 16 |"),
        ("embedded-sync", "| tierdb-ssd, K ops/s |"),
        ("one-ssd-grouped", "| tierdb-ssd, p99 of reads, us |"),
        ("production", "### Facebook's mixgraph"),
        ("writes", "### Flash of twice the data"),
        ("limits", "| checksums of a put |"),
        ("recovery", "| tierdb-byte: open after kill -9 |"),
        ("slab", "### Zipfian over the keys"),
    ] {
        let section = all.split_once(&format!("<!-- {name} -->")).map(|(_, rest)| rest).expect(name);
        let section = section.split_once(&format!("<!-- end of {name} -->")).expect(name).0;
        let settles = ["two-tiers", "one-ssd-grouped", "production", "slab"].contains(&name);
        assert_eq!(
            section.contains("warm-ups that end when reads have settled took"),
            settles,
            "{name}: {section}"
        );
        assert!(section.lines().any(|line| line.starts_with(row)), "{name}: {section}");
        assert!(section.contains("EMULATED") || section.contains("one plain SSD"), "{name}: {section}");
        assert!(below("json").join(format!("{name}.json")).exists(), "{name}");
    }
    let own = dir.path().to_str().expect("a path in UTF-8");
    assert!(!all.contains(own), "tables are kept elsewhere, and name no path of this machine: {all}");
    for plot in ["two-tiers-1", "two-tiers-latency-2", "slab-1", "one-ssd-sync-1"] {
        assert!(all.contains(&format!("](plots/{plot}.svg)")), "{plot}");
        assert!(below("plots").join(format!("{plot}.svg")).exists(), "{plot}");
        assert!(!below("plots").join(format!("{plot}.png")).exists(), "{plot}: it was not asked for");
    }
    let (said, _) = tables(&["--only", "writes", "--repeat", "2"]);
    assert!(said.contains("writes: 4 of 4"), "{said}");
    let section = |text: &str| text.split_once("<!-- writes -->").map(|(before, _)| before.to_owned());
    assert_eq!(section(&text()), section(&all), "what stands before it is as it was");
    assert_ne!(text(), all);
    let (said, again) = tables(&["--resume", "--repeat", "1", "--png"]);
    let png = std::fs::read(below("plots").join("one-ssd-sync-1.png")).expect("PNG");
    assert!(png.starts_with(b"\x89PNG"));
    assert!(!said.contains(" of ") && again.contains("## Limits"), "nothing is measured again: {said}");
    assert_eq!(std::fs::read_dir(below("stores")).expect("directory").count(), 0, "stores are removed");
}

/// Runs every figure of a paper, tiny, and returns what each says.
fn figures(paper: &str, figures: &[&str], keys: &str) -> Vec<String> {
    let run = |figure: &&str| {
        let dir = tempfile::tempdir().expect("temporary directory");
        let plots = dir.path().join("plots");
        let output = Command::new(env!("CARGO_BIN_EXE_tierdb-bench"))
            .args([
                "paper",
                paper,
                figure,
                "--keys",
                keys,
                "--seconds",
                "0.05",
                "--threads",
                "2",
                "--reference",
                "0",
            ])
            .arg("--plots")
            .arg(&plots)
            .arg("--dir")
            .arg(dir.path())
            .arg("--fast-dir")
            .arg(dir.path())
            .output()
            .expect("the command runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{figure}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("The paper: ") && said.contains("the paper\n"), "{figure}: {said}");
        said
    };
    figures.iter().map(run).collect()
}

/// The figure's line that begins with `system` and `what`.
fn line<'a>(said: &'a str, system: &str, what: &str) -> &'a str {
    let table = said.split("The paper: ").nth(1).unwrap_or_default();
    let found = table.lines().find(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.first() == Some(&system) && words[1..].join(" ").starts_with(what)
    });
    found.unwrap_or_else(|| panic!("{system} {what}: {said}"))
}

#[test]
fn the_figures_of_prism_run_and_stand_beside_it() {
    let names = ["7", "9", "10", "11", "12", "13", "15", "15b", "16", "17", "space", "recovery"];
    let said = figures("prism", &names, "2000");
    assert!(line(&said[0], "tierdb-byte", "e ").ends_with("average 325, median 270, 99 % 808 us"));
    assert!(line(&said[3], "tierdb-byte", "QD 64, combining").contains("11.7 times"));
    assert!(line(&said[3], "tierdb-byte", "QD 1, timeout").contains(" 1.00 "), "its own base");
    assert!(line(&said[3], "tierdb-byte", "a queue for each of 32 readers").ends_with("not given"));
    assert!(line(&said[0], "tierdb-byte", "load ").ends_with("not given"));
    assert!(line(&said[1], "tierdb-byte", "d 0.5 ").ends_with("below 1; how much is not given"));
    assert!(said[3].contains("relative us"), "{}", said[3]);
    line(&said[5], "tierdb-byte", "4 flash directories: c");
    assert!(line(&said[6], "tierdb-byte", "write buffer 2 %: load").ends_with("as fast with any size"));
    assert!(line(&said[6], "tierdb-byte", "memory 4 %: e").ends_with("0.55 of 20 %"));
    line(&said[7], "tierdb-byte", "memory 20 %: c");
    line(&said[8], "tierdb-byte", "e");
    line(&said[9], "tierdb-byte", "flash 1.5 times the data");
    let per_key = line(&said[10], "tierdb-byte", "load").split_whitespace().nth(2).expect("a figure");
    let per_key: f64 = per_key.parse().expect("bytes for a key");
    assert!((40.0..400.0).contains(&per_key), "{per_key}");
    assert!(said[11].contains("recovery s"), "{}", said[11]);
}

#[test]
fn the_figures_of_prismdb_run_and_stand_beside_it() {
    let names = ["7", "8", "9", "10", "11a", "11b", "11c", "11d", "levels"];
    let said = figures("slab", &names, "10000");
    for (what, paper) in [
        ("approx-M, rand-8", "182.4 K ops/s, 1.00"),
        ("precise-M, exhaustive", "49.3 K ops/s, 0.27"),
        ("max-unpop, exhaustive", "162.2 K ops/s, 0.89"),
    ] {
        let line = line(&said[0], "slab-byte", what);
        assert!(line.ends_with(paper), "{line}");
    }
    let ours = line(&said[0], "slab-byte", "sampled-M, rand-8");
    assert!(!ours.contains("ops/s"), "the paper has no such metric: {ours}");
    assert!(said[0].contains("migration CPU") && said[0].contains("flash MiB"), "{}", said[0]);
    line(&said[1], "slab-ssd", "qlc $0.10/GB 0.10");
    line(&said[1], "slab-byte", "het10 $0.34/GB 0.34");
    line(&said[1], "slab-byte", "nvm $2.50/GB 2.50");
    assert!(line(&said[1], "slab-byte", "het10").contains("3.3 times RocksDB on TLC"));
    assert!(
        line(&said[2], "tierdb-byte", "f").ends_with("2.4 times RocksDB, average latency 2.7 times lower")
    );
    assert!(line(&said[2], "slab-byte", "c").ends_with("2.5 times RocksDB, average latency 2 times lower"));
    line(&said[3], "slab-byte", "a uniform");
    let ours = line(&said[4], "slab-byte", "b").split("not given").next();
    assert!(ours.is_some_and(|ours| ours.contains('%')), "where reads were answered");
    assert!(line(&said[3], "slab-byte", "a 0.8").ends_with("1.98 times RocksDB with 11 % of NVM (Table 2)"));
    assert!(said[2].contains("CPU us") && said[2].contains("average us"), "{}", said[2]);
    for (figure, what) in [(5, "nothing pinned: c 8"), (6, "pinned as sought: c"), (7, "2 partitions")] {
        let line = line(&said[figure], "slab-byte", what);
        assert!(line.ends_with("not given"), "{line}");
    }
    line(&said[8], "slab-byte", "4 %, two levels: a uniform");
}

#[test]
fn a_request_that_makes_no_sense_is_refused() {
    for args in [
        &["run", "--system", "tierdb-tape"][..],
        &["run", "--workload", "z"],
        &["run", "--theta", "1"],
        &["run", "--threads", "0"],
        &["run", "--value-size", "1"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tierdb-bench")).args(args).output().expect("runs");
        assert!(!output.status.success(), "{args:?}");
    }
    for (figure, system, knob) in [
        (["prism", "15a"], "slab-byte", "the write buffer"),
        (["slab", "11c"], "tierdb-byte", "the pinning threshold"),
        (["slab", "8"], "slab-ssd", "two tiers"),
    ] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let asked = ["--keys", "1000", "--seconds", "0.01", "--reference", "0", "--system", system];
        let output = run(dir.path(), &[&["paper"][..], &figure, &asked].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(knob) && said.contains(system), "{said}");
    }
}
