//! A crate may depend only on crates of a lower layer, so engines cannot reach into each other.

use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

#[test]
fn dependencies_point_downward() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let layer = |package: &Value| {
        let name = package["name"].as_str().unwrap_or_default().to_owned();
        let layer = package["metadata"]["layer"].as_u64();
        (name.clone(), layer.unwrap_or_else(|| panic!("{name} says no layer under [package.metadata]")))
    };
    let layers: BTreeMap<String, u64> = packages.iter().map(layer).collect();
    assert!(layers.len() >= 10, "the whole workspace was read: {layers:?}");
    let mut checked = 0;
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            let Some(below) = layers.get(on).filter(|_| dependency["kind"] != "dev") else { continue };
            let own = layers[name];
            assert!(*below < own, "{name} (layer {own}) depends on {on} (layer {below})");
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} dependencies were found");
}
