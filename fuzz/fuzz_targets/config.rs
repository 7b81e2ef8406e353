//! Configuration files: what is accepted is written and read again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tierdb::Config;

fuzz_target!(|text: &str| {
    let Ok(config) = Config::parse(text) else { return };
    let _ = config.memory_budget();
    let written = config.to_toml().expect("text");
    let again = Config::parse(&written).unwrap_or_else(|e| panic!("{e}, in what was written:\n{written}"));
    assert_eq!(again.to_toml().expect("text"), written);
    assert_eq!(config.validate().is_ok(), again.validate().is_ok());
});
