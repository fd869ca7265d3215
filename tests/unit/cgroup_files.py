"""Control groups as a container sees them, written as files in the kernel's formats."""

from pathlib import Path

MEMINFO = "MemTotal:       65536000 kB\nMemFree:        41943040 kB\nMemAvailable:   52428800 kB\n"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_version_2(root: Path, group: str = "/", mounted: str = "/") -> None:
    """One hierarchy, with the group `mounted` at /sys/fs/cgroup."""
    write(root, "proc/meminfo", MEMINFO)
    write(root, "proc/self/cgroup", f"0::{group}\n")
    write(
        root,
        "proc/self/mountinfo",
        "23 28 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
        f"32 23 0:28 {mounted} /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n",
    )


def write_version_1(root: Path, group: str, mounted: str) -> None:
    """A hierarchy for each controller, beside one of version 2 without controllers, as systemd mounts them."""
    write(root, "proc/meminfo", MEMINFO)
    write(
        root, "proc/self/cgroup", f"5:pids:{group}\n4:memory:{group}\n3:cpu,cpuacct:{group}\n1:name=systemd:/\n0::/\n"
    )
    write(
        root,
        "proc/self/mountinfo",
        f"32 31 0:29 {mounted} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
        f"35 31 0:32 {mounted} /sys/fs/cgroup/memory rw,relatime master:9 - cgroup cgroup rw,memory\n"
        f"36 31 0:33 {mounted} /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n"
        "40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
    )
