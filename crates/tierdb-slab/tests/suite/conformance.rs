//! The engine keeps the contract in the three hardware modes.

mod byte_addressable {
    use crate::rig::{SimHarness, Sizes};

    tierdb_engine::conformance!(SimHarness::new(Sizes::roomy(), crate::rig::limits(), None));
}

mod block_fast_tier {
    use crate::rig::{LogPlace, SimHarness, Sizes};

    tierdb_engine::conformance!(SimHarness::new(
        Sizes::roomy(),
        crate::rig::limits(),
        Some(LogPlace::FastTier)
    ));
}

mod one_plain_ssd {
    use crate::rig::{LogPlace, SimHarness, Sizes};

    tierdb_engine::conformance!(SimHarness::new(
        Sizes::roomy(),
        crate::rig::limits(),
        Some(LogPlace::WithValues)
    ));
}
