//! Records which commit is measured, so that every report can say it.

use std::process::Command;

fn main() {
    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo::rustc-env=TIERDB_COMMIT={}", commit.as_deref().unwrap_or("unknown").trim());
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
}
