//! The model passes the whole suite.

use tierdb_base::Result;
use tierdb_engine::conformance::Harness;
use tierdb_engine::{Engine, ModelStore};

struct Model(ModelStore);

impl Harness for Model {
    fn open(&mut self) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.0.open()?))
    }

    fn reset(&mut self) -> Result<()> {
        self.0 = ModelStore::new();
        Ok(())
    }

    fn describe(&self) -> String {
        "the model".into()
    }
}

tierdb_engine::conformance!(Model(ModelStore::new()));
