//! What a run was measured on, so that figures of different machines are not taken for each other.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The machine, and what was built.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// TierDB's version and commit.
    pub version: String,
    /// Whether the benchmark was built with optimisation.
    pub optimised: bool,
    /// The processor's name.
    pub processor: String,
    /// Processors that the process may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// The system's name and version.
    pub system: String,
    /// Tasks that were ready to run, on average over the last minute: work of others.
    pub load_average: f64,
    /// When the run began, in seconds since 1970.
    pub at: u64,
}

impl Machine {
    /// This machine, now.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let processor = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let uname = rustix::system::uname();
        let info = rustix::system::sysinfo();
        Machine {
            version: format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("TIERDB_COMMIT")),
            optimised: !cfg!(debug_assertions),
            processor: processor
                .and_then(|line| line.split_once(':'))
                .map_or("unknown processor".to_owned(), |(_, name)| name.trim().to_owned()),
            processors: tierdb_base::processors(),
            memory: (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)),
            system: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            load_average: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            at: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }
}

impl Machine {
    /// The day on which the run began, in UTC, as in `2026-11-22`.
    pub fn day(&self) -> String {
        // Years begin in March here, so that the day which leap years have more is their last (days of the proleptic
        // Gregorian calendar, in eras of 400 years).
        let days = self.at / 86_400 + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
        format!("{:04}-{month:02}-{day:02}", era * 400 + year + u64::from(month <= 2))
    }
}

/// The file system and the kind of device that `path` is on, or will be, as in `ext4 on an NVMe device`: what figures depend
/// on, and no path of this machine, as reports are kept and shown elsewhere.
pub fn file_system(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    let there = path.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    let path = there.unwrap_or(path);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    file_system_of(&path, &mounts)
}

fn file_system_of(path: &Path, mounts: &str) -> String {
    let mut best = (0, "an unknown file system".to_owned());
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(at), Some(kind)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        // Of several mounts that hold the path the deepest counts, and of two in one place the later.
        if path.starts_with(at) && at.len() >= best.0 {
            best = (at.len(), device_kind(device).map_or(kind.to_owned(), |on| format!("{kind} on {on}")));
        }
    }
    best.1
}

/// What the name of a block device says of it.
fn device_kind(device: &str) -> Option<&'static str> {
    const KINDS: [(&str, &str); 8] = [
        ("nvme", "an NVMe device"),
        ("pmem", "persistent memory"),
        ("vd", "a virtual disk"),
        ("xvd", "a virtual disk"),
        ("sd", "a SCSI or SATA disk"),
        ("md", "a software RAID"),
        ("mapper/", "a mapped device"),
        ("dm-", "a mapped device"),
    ];
    let name = device.strip_prefix("/dev/")?;
    let known = KINDS.iter().find(|(start, _)| name.starts_with(start));
    Some(known.map_or("a block device", |(_, kind)| kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_counts() {
        let mounts = "/dev/vda1 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n/dev/nvme0n1p2 /mnt/b xfs rw 0 0\nhost:/x /mnt/n nfs rw 0 0\n";
        assert_eq!(file_system_of(Path::new("/mnt/b/c"), mounts), "xfs on an NVMe device");
        assert_eq!(file_system_of(Path::new("/dev/shm/x"), mounts), "tmpfs");
        assert_eq!(file_system_of(Path::new("/mnt/bc"), mounts), "ext4 on a virtual disk");
        assert_eq!(file_system_of(Path::new("/mnt/n"), mounts), "nfs");
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_where_its_parent_is() {
        let here = file_system(Path::new("/"));
        assert_eq!(file_system(Path::new("/no/such/directory")), here);
    }

    #[test]
    fn days_have_their_dates() {
        let day = |at| Machine { at, ..Machine::default() }.day();
        let days = [0, 951_782_400, 951_868_800, 1_767_225_599, 1_795_341_600].map(day);
        assert_eq!(days, ["1970-01-01", "2000-02-29", "2000-03-01", "2025-12-31", "2026-11-22"]);
    }

    #[test]
    fn this_machine_has_a_name() {
        let machine = Machine::here();
        assert!(machine.memory > 0 && machine.system.starts_with("Linux"), "{machine:?}");
    }
}
