//! How far a case is: a bar where standard error is a terminal, nothing elsewhere.

use crate::table::grouped;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;
use std::time::Instant;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// The bar of one case; each phase begins it again.
pub(crate) struct Bar {
    bar: ProgressBar,
    phase: RefCell<(String, Instant)>,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(STEPS);
        // The template is a constant; without a style the bar would still work.
        if let Ok(style) = ProgressStyle::with_template("{prefix:>10} {wide_bar} {percent:>3} %  {msg}") {
            bar.set_style(style);
        }
        Bar { bar, phase: RefCell::new((String::new(), Instant::now())) }
    }

    pub(crate) fn show(&self, name: &str, share: f64, ops: u64) {
        let mut phase = self.phase.borrow_mut();
        if phase.0 != name {
            *phase = (name.to_owned(), Instant::now());
            self.bar.set_prefix(phase.0.clone());
        }
        let rate = ops as f64 / phase.1.elapsed().as_secs_f64().max(0.05);
        self.bar.set_position((share * STEPS as f64) as u64);
        self.bar.set_message(format!("{} ops, {}/s", grouped(ops), grouped(rate as u64)));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
