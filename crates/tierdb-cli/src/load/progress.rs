//! How far a load is: a bar on a terminal, a line every second elsewhere.

use crate::text::grouped;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::ByteSize;

/// How a load shows its progress.
pub struct Progress {
    look: Look,
    every: Duration,
    begun: Instant,
    reported: Instant,
    read: Arc<AtomicU64>,
    size: Option<u64>,
}

enum Look {
    Silent,
    Lines,
    Bar(ProgressBar),
}

impl Progress {
    /// No progress.
    pub fn silent() -> Self {
        Self::new(Look::Silent, Duration::ZERO)
    }

    /// A line to standard error, `every` so often.
    pub fn lines(every: Duration) -> Self {
        Self::new(Look::Lines, every)
    }

    /// A bar on the terminal that standard error is.
    pub fn bar() -> Self {
        Self::new(Look::Bar(ProgressBar::no_length()), Duration::from_millis(100))
    }

    fn new(look: Look, every: Duration) -> Self {
        let now = Instant::now();
        Progress { look, every, begun: now, reported: now, read: Arc::default(), size: None }
    }

    /// Starts the clock for an input of `size` bytes, if that is known. Returns where the bytes read are
    /// to be counted.
    pub fn start(&mut self, size: Option<u64>) -> Arc<AtomicU64> {
        self.size = size;
        self.begun = Instant::now();
        self.reported = self.begun;
        if let Look::Bar(bar) = &self.look {
            let template = match size {
                Some(size) => {
                    bar.set_length(size);
                    "{wide_bar} {percent:>3} %  {msg}  {eta} left"
                }
                None => "{spinner} {binary_bytes}  {msg}",
            };
            // The templates are constants; without a style the bar would still work.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
        }
        self.read.clone()
    }

    /// Whether it is time to report again.
    pub fn is_due(&self) -> bool {
        !matches!(self.look, Look::Silent) && self.reported.elapsed() >= self.every
    }

    /// Whether a report is a statement that stays: then what it says is loaded must be durable.
    pub fn tells(&self) -> bool {
        matches!(self.look, Look::Lines)
    }

    /// Reports that `entries` have been loaded. A closed standard error does not stop a load.
    pub fn report(&mut self, err: &mut dyn Write, entries: u64) {
        let read = self.read.load(Ordering::Relaxed);
        let seconds = self.begun.elapsed().as_secs_f64().max(1e-9);
        let rate = grouped((entries as f64 / seconds) as u64);
        let loaded = format!("{} entries, {rate} entries/s", grouped(entries));
        match &self.look {
            Look::Silent => {}
            Look::Bar(bar) => {
                bar.set_position(read);
                bar.set_message(loaded);
            }
            Look::Lines => {
                let rest = match self.size.filter(|size| *size > 0 && read > 0) {
                    Some(size) => {
                        let left = seconds * size.saturating_sub(read) as f64 / read as f64;
                        format!("{} % read, about {left:.0} s left", read.saturating_mul(100) / size)
                    }
                    None => format!("{} read", ByteSize(read)),
                };
                let _ = writeln!(err, "loaded {loaded}; {rest}");
            }
        }
        self.reported = Instant::now();
    }

    /// Writes a line to standard error without disturbing the bar.
    pub fn aside(&self, err: &mut dyn Write, line: &str) {
        let _ = match &self.look {
            Look::Bar(bar) => bar.suspend(|| writeln!(err, "{line}")),
            _ => writeln!(err, "{line}"),
        };
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Look::Bar(bar) = &self.look {
            bar.finish_and_clear();
        }
    }
}

/// A reader that counts the bytes it gives.
pub struct Counted<R> {
    from: R,
    read: Arc<AtomicU64>,
}

impl<R> Counted<R> {
    /// Counts what is read of `from` in `read`.
    pub fn new(from: R, read: Arc<AtomicU64>) -> Self {
        Counted { from, read }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buf)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}
