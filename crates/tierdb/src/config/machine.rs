//! What the machine, or the control groups of this process, give it.

use std::path::Path;

/// Bytes of memory that this process may have.
pub(super) fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    let total = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit(&groups, Path::new("/sys/fs/cgroup")).map_or(total, |limit| limit.min(total))
}

/// The least limit of `groups`, as `/proc/self/cgroup` names them, and of those that they are in, with their files in `root`: of
/// either version of the interface.
fn limit(groups: &str, root: &Path) -> Option<u64> {
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            some if some.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // In a container the path may be that on its host, and the container's own group is the root.
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        groups
            .filter_map(|group| {
                std::fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse().ok()
            })
            .min()
    };
    groups.lines().filter_map(of_line).min()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().expect("a directory");
        let set = |file: &str, limit: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("create");
            std::fs::write(path, limit).expect("write");
        };
        let limit = |groups: &str| super::limit(groups, root.path());
        set("a/b/memory.max", "max\n");
        assert_eq!((limit("0::/a/b\n"), limit("0::/\n"), limit("")), (None, None, None));
        set("a/memory.max", "3000\n");
        assert_eq!((limit("0::/a/b\n"), limit("0::/a\n"), limit("0::/\n")), (Some(3000), Some(3000), None));
        set("memory.max", "2000\n");
        assert_eq!((limit("0::/a/b\n"), limit("0::/of/the/host\n")), (Some(2000), Some(2000)));
        set("memory/c/memory.limit_in_bytes", "1000\n");
        assert_eq!((limit("5:cpu:/c\n4:memory,hugetlb:/c\n0::/\n"), limit("5:cpu:/c\n")), (Some(1000), None));
    }
}
