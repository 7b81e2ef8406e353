//! Records which commit is measured, so that every report can say it, and whether more was changed since.

use std::process::Command;

/// What a measuring program is built from.
const SOURCES: [&str; 6] = [
    "../../Cargo.toml",
    "../../Cargo.lock",
    "..",
    "../../peers/Cargo.toml",
    "../../peers/Cargo.lock",
    "../../peers/src",
];

fn main() {
    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    let changed = Command::new("git")
        .args(["status", "--porcelain", "--untracked-files=no", "--"])
        .args(SOURCES)
        .output()
        .is_ok_and(|output| !output.stdout.is_empty());
    let mark = if changed { "+" } else { "" };
    println!("cargo::rustc-env=TIERDB_COMMIT={}{mark}", commit.as_deref().unwrap_or("unknown").trim());
    for path in ["../../.git/logs/HEAD"].iter().chain(&SOURCES) {
        println!("cargo::rerun-if-changed={path}");
    }
}
