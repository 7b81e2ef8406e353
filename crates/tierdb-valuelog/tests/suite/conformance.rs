//! The engine keeps the contract in the three hardware modes.

mod byte_addressable {
    use crate::rig::{SimHarness, Sizes};
    use tierdb_engine::conformance::Limits;

    tierdb_engine::conformance!(SimHarness::new(Sizes::roomy(), Limits::default(), None));
}

mod block_fast_tier {
    use crate::rig::{LogPlace, SimHarness, Sizes};
    use tierdb_engine::conformance::Limits;

    tierdb_engine::conformance!(SimHarness::new(Sizes::roomy(), Limits::default(), Some(LogPlace::FastTier)));
}

mod one_plain_ssd {
    use crate::rig::{LogPlace, SimHarness, Sizes};
    use tierdb_engine::conformance::Limits;

    tierdb_engine::conformance!(SimHarness::new(
        Sizes::roomy(),
        Limits::default(),
        Some(LogPlace::WithValues)
    ));
}
