//! What the operating system knows about the process: processor time, memory, I/O; and files on disk.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds of processor time that all threads of the process have used, but for what the waiting for imitated devices took.
pub fn process_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime) - tierdb_device::imitation_cpu().as_secs_f64()
}

/// Seconds of processor time that the calling thread has used, likewise.
pub fn thread_seconds() -> f64 {
    tierdb_device::own_cpu().as_secs_f64()
}

/// Seconds of processor time that the threads whose names begin with `prefix` have used, by their names; nothing where
/// the system does not say. Threads that have ended are not counted.
pub fn thread_seconds_by_name(prefix: &str) -> BTreeMap<String, f64> {
    let mut seconds = BTreeMap::new();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return seconds };
    for thread in threads.filter_map(Result::ok) {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let name = read("comm");
        if let Some(name) = Some(name.trim()).filter(|name| name.starts_with(prefix)) {
            let spent = read("schedstat");
            let ns: f64 = spent.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
            *seconds.entry(name.to_owned()).or_default() += ns / 1e9;
        }
    }
    seconds
}

/// Resident memory of the process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// Memory of its own.
    pub anonymous: u64,
    /// Mapped files.
    pub file: u64,
    /// Shared memory: an emulated fast tier.
    pub shared: u64,
}

/// The resident memory now; zero where the system does not say.
pub fn resident() -> Resident {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    Resident { anonymous: field("RssAnon:"), file: field("RssFile:"), shared: field("RssShmem:") }
}

/// Bytes that the process has had read from and written to storage, as the kernel counts them: page cache
/// write-back is counted when pages are dirtied, and taken back for what is removed before it was written; shared memory is
/// not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIo {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes that it had read by calls, from whatever file, memory included.
    #[serde(default)]
    pub called_read_bytes: u64,
    /// Bytes that it had written by calls, the same.
    #[serde(default)]
    pub called_written_bytes: u64,
}

impl ProcessIo {
    /// What has been counted so far; zero where the system does not say.
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let field = |name: &str| -> u64 {
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
        };
        let written = field("write_bytes:").saturating_sub(field("cancelled_write_bytes:"));
        ProcessIo {
            read_bytes: field("read_bytes:"),
            written_bytes: written,
            called_read_bytes: field("rchar:"),
            called_written_bytes: field("wchar:"),
        }
    }

    /// What has been counted since `before`.
    pub fn since(self, before: ProcessIo) -> Self {
        ProcessIo {
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            called_read_bytes: self.called_read_bytes.saturating_sub(before.called_read_bytes),
            called_written_bytes: self.called_written_bytes.saturating_sub(before.called_written_bytes),
        }
    }
}

/// Bytes that the file system has allocated for the files below `dir`; 0 for what is not there.
pub fn allocated(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => allocated(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_answers() {
        let before = process_seconds();
        let mut x = 1u64;
        while process_seconds() - before < 0.01 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(thread_seconds() > 0.0 && resident().anonymous > 0);
        let busy = std::thread::Builder::new().name("tierdb-busy".into()).spawn(|| {
            let begun = thread_seconds();
            while thread_seconds() - begun < 0.02 {}
            thread_seconds_by_name("tierdb-bus").get("tierdb-busy").copied()
        });
        let busy = busy.expect("thread").join().expect("thread").expect("the thread's own time");
        assert!((0.01..5.0).contains(&busy), "{busy} s");
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(dir.path().join("below")).expect("directory");
        std::fs::write(dir.path().join("below/file"), vec![1; 100_000]).expect("file");
        let called = |before: &ProcessIo| ProcessIo::now().since(*before).called_written_bytes;
        let before = ProcessIo::now();
        std::fs::write(dir.path().join("another"), vec![1; 100_000]).expect("file");
        assert!(called(&before) >= 100_000, "wherever it lies");
        std::fs::remove_file(dir.path().join("another")).expect("there");
        let found = allocated(dir.path());
        assert!((100_000..200_000).contains(&found), "{found}");
    }
}
