//! The engine keeps the contract in the three hardware modes.

mod byte_addressable {
    use crate::rig::Sizes;
    use tierdb_engine::conformance::harm::{Rig, SimHarness};

    tierdb_engine::conformance!(SimHarness::new(Rig::new(Sizes::roomy(), None), crate::rig::limits()));
}

mod block_fast_tier {
    use crate::rig::Sizes;
    use tierdb_engine::conformance::harm::{LogPlace, Rig, SimHarness};

    tierdb_engine::conformance!(SimHarness::new(
        Rig::new(Sizes::roomy(), Some(LogPlace::FastTier)),
        crate::rig::limits()
    ));
}

mod one_plain_ssd {
    use crate::rig::Sizes;
    use tierdb_engine::conformance::harm::{LogPlace, Rig, SimHarness};

    tierdb_engine::conformance!(SimHarness::new(
        Rig::new(Sizes::roomy(), Some(LogPlace::WithValues)),
        crate::rig::limits()
    ));
}
