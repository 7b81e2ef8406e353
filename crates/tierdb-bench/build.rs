//! Records which commit is measured, so that every report can say it, and whether more was changed since.

use std::process::Command;

fn main() {
    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    let changed = Command::new("git")
        .args(["status", "--porcelain", "--untracked-files=no", "--"])
        .args(["../../Cargo.toml", "../../Cargo.lock", "..", "../../peers"])
        .output()
        .is_ok_and(|output| !output.stdout.is_empty());
    let mark = if changed { "+" } else { "" };
    println!("cargo::rustc-env=TIERDB_COMMIT={}{mark}", commit.as_deref().unwrap_or("unknown").trim());
    for path in ["../../.git/logs/HEAD", "../../Cargo.toml", "../../Cargo.lock", "..", "../../peers/src"] {
        println!("cargo::rerun-if-changed={path}");
    }
}
