//! The command as a whole: every workload on every mode, tiny, with values checked and a killed store recovered.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn bench(dir: &Path, args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tierdb-bench"))
        .args(args)
        .args(["--warmup", "0", "--json", "-", "--dir"])
        .arg(dir)
        .arg("--fast-dir")
        .arg(dir)
        .output()
        .expect("the command runs");
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
        &["run", "--keys", "3000", "--ops", "1500", "--workload", "a,b,c,f,d,e,nutanix,put,get"],
    );
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 3);
    for case in cases {
        let outcome = &case["runs"][0];
        let name = &outcome["system"];
        let phases = outcome["phases"].as_array().expect("phases");
        assert_eq!(phases.len(), 10, "{name}: the load and nine workloads");
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
fn mixgraph_is_measured_and_drawn() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let plots = dir.path().join("plots");
    let args =
        ["run", "--system", "tierdb-byte", "--keys", "5000", "--seconds", "0.5", "--workload", "mixgraph"];
    let plotting = ["--plots", plots.to_str().expect("a path in UTF-8")];
    let report = bench(dir.path(), &[&args[..], &plotting].concat());
    assert_eq!(report["settings"]["key_bytes"], 48);
    assert_eq!(report["cases"][0]["runs"][0]["phases"][1]["distribution"], "mixgraph");
    for name in ["throughput", "latency-mixgraph", "time-mixgraph"] {
        let svg = std::fs::read_to_string(plots.join(format!("{name}.svg"))).expect("SVG");
        // What was measured on stands on each plot.
        assert!(svg.contains("EMULATED") && svg.contains("tierdb-byte") && svg.contains("memory"), "{name}");
        let png = std::fs::read(plots.join(format!("{name}.png"))).expect("PNG");
        assert!(png.starts_with(b"\x89PNG") && png.len() > 5_000, "{name}");
    }
}

#[test]
fn the_figures_of_the_paper_run_and_stand_beside_it() {
    for figure in ["7", "9", "12", "16"] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let output = Command::new(env!("CARGO_BIN_EXE_tierdb-bench"))
            .args(["paper", "prism", figure, "--keys", "2000", "--seconds", "0.05", "--threads", "2"])
            .args(["--no-recovery", "--dir"])
            .arg(dir.path())
            .arg("--fast-dir")
            .arg(dir.path())
            .output()
            .expect("the command runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{figure}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("The paper: ") && said.contains("tierdb-byte"), "{figure}: {said}");
    }
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
}
