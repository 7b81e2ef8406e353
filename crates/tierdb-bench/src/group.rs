//! A control group that holds the process of a case to its memory, page cache included.
//!
//! Stores that read through the page cache keep there, beyond the memory that they are given, as much as the machine has room
//! for. In a group of its own a process gets so much and no more: the kernel takes pages of its cache back, and ends it if
//! that does not help. Groups of both versions of Linux' interface are made by hand, below the group that this process is in, or
//! below the nearest one above that which hands the control of memory down.

use crate::failure::Failure;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file with the limit, in the second version of the interface and in the first.
const LIMITS: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];

/// A group. Dropping it removes it; by then the processes in it should have ended.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
}

impl Group {
    /// A group that may use so many bytes of memory.
    ///
    /// # Errors
    /// `Invalid` where no group can be made, with what was tried.
    pub fn new(bytes: u64) -> Result<Self, Failure> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let parents = parents(&read("/proc/self/mounts"), &read("/proc/self/cgroup"));
        let mut tried = Vec::new();
        for parent in parents {
            match Self::below(&parent, bytes) {
                Ok(group) => return Ok(group),
                Err(error) => tried.push(format!("{}: {error}", parent.display())),
            }
        }
        let tried = if tried.is_empty() { "none is mounted".to_owned() } else { tried.join("; ") };
        Err(Failure::Invalid(format!(
            "no control group with a limit of memory can be made here ({tried}): run as root where control groups can be written, or \
             leave --memory-group out"
        )))
    }

    fn below(parent: &Path, bytes: u64) -> Result<Self, Error> {
        let dir = parent.join(format!("tierdb-bench-{}", std::process::id()));
        match fs::create_dir(&dir) {
            // A case of this process that could not remove its group.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made?,
        }
        let group = Group { dir };
        let limit = LIMITS.iter().map(|name| group.dir.join(name)).find(|file| file.exists());
        let limit = limit.ok_or_else(|| Error::other("memory is not controlled below it"))?;
        fs::write(limit, bytes.to_string())?;
        Ok(group)
    }

    /// Puts the process `id` into it. What it has allocated before is not counted.
    ///
    /// # Errors
    /// `Io`.
    pub fn add(&self, id: u32) -> Result<(), Failure> {
        let file = self.dir.join("cgroup.procs");
        fs::write(&file, id.to_string()).map_err(|e| Failure::io("cannot put a case into", file, e))
    }

    /// Whether the kernel has ended a process of it because it needs more than the limit.
    pub fn has_killed(&self) -> bool {
        let counts =
            ["memory.events", "memory.oom_control"].map(|name| fs::read_to_string(self.dir.join(name)));
        let counts = counts.into_iter().filter_map(Result::ok).collect::<String>();
        let killed =
            counts.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok());
        killed.is_some_and(|killed| killed > 0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel lets go of a process a moment after it has ended. A group that stays is empty and harms nobody.
        for _ in 0..100 {
            match fs::remove_dir(&self.dir) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// The groups below which one may be made, the nearest first: that of the process itself, and those above it.
fn parents(mounts: &str, own: &str) -> Vec<PathBuf> {
    // Where the hierarchy that controls memory is mounted, and which of the process's groups is in it.
    let mut found = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, at, kind, options, ..] = fields[..] else { continue };
        let of = |controllers: &str| match kind {
            "cgroup" => controllers.split(',').any(|name| name == "memory"),
            _ => controllers.is_empty(),
        };
        if kind != "cgroup2" && !(kind == "cgroup" && options.split(',').any(|option| option == "memory")) {
            continue;
        }
        let group = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            (of(fields.next()?)).then(|| fields.next())?
        });
        let Some(group) = group else { continue };
        let group = Path::new(group.trim_start_matches('/'));
        found.extend(group.ancestors().map(|group| Path::new(at).join(group)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_looked_for_where_memory_is_controlled() {
        let first = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                     cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let own = "4:memory:/jobs/one\n3:cpu:/elsewhere\n0::/\n";
        let paths =
            |found: Vec<PathBuf>| found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            paths(parents(first, own)),
            ["/sys/fs/cgroup/memory/jobs/one", "/sys/fs/cgroup/memory/jobs", "/sys/fs/cgroup/memory/"]
        );
        let second = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(paths(parents(second, "0::/a.slice\n")), ["/sys/fs/cgroup/a.slice", "/sys/fs/cgroup/"]);
        assert_eq!(paths(parents("/dev/vda / ext4 rw 0 0\n", own)), [""; 0]);
    }
}
