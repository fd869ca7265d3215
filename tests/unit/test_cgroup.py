"""Processors and memory are those that a container may use, not those of its host."""

import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inflight import cpu_count
from inflight.cgroup import control_groups
from inflight.cpu_count import usable_cpus
from inflight.host_memory import free_memory
from tests.unit.cgroup_files import write, write_version_1, write_version_2

GIB = 2**30
AVAILABLE = 50 * GIB
GROUP_2, CPU_1, MEMORY_1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/memory"
NO_LIMIT_1 = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_count, "allowed_cpus", lambda: 8)


@pytest.mark.parametrize(
    ("written", "cpus"),
    [
        ("max 100000\n", 8),
        ("400000 100000\n", 4),
        ("150000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1000 100000\n", 1),
        ("25000 10000\n", 3),
        ("1600000 100000\n", 8),
    ],
)
def test_a_quota_of_version_2_bounds_the_processors(tmp_path: Path, written: str, cpus: int) -> None:
    write_version_2(tmp_path)
    write(tmp_path, f"{GROUP_2}/cpu.max", written)
    assert usable_cpus(tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1\n", 8), ("250000\n", 3), ("100000\n", 1), ("10000\n", 1)])
def test_a_quota_of_version_1_bounds_the_processors(tmp_path: Path, quota: str, cpus: int) -> None:
    write_version_1(tmp_path, "/docker/3f2a", mounted="/docker/3f2a")
    write(tmp_path, f"{CPU_1}/cpu.cfs_quota_us", quota)
    write(tmp_path, f"{CPU_1}/cpu.cfs_period_us", "100000\n")
    assert usable_cpus(tmp_path) == cpus


def test_the_smallest_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    write_version_2(tmp_path, "/kubepods.slice/pod.slice/container")
    for group, quota in (("", None), ("/kubepods.slice", "max"), ("/kubepods.slice/pod.slice", "200000")):
        if quota is not None:
            write(tmp_path, f"{GROUP_2}{group}/cpu.max", f"{quota} 100000\n")
    write(tmp_path, f"{GROUP_2}/kubepods.slice/pod.slice/container/cpu.max", "600000 100000\n")
    assert usable_cpus(tmp_path) == 2


def test_without_control_groups_the_affinity_mask_counts(tmp_path: Path) -> None:
    assert control_groups("cpu", tmp_path) == []
    assert usable_cpus(tmp_path) == 8


@pytest.mark.parametrize("path", ["/docker/3f2a", "/../other", "/"])
def test_a_container_may_not_see_the_path_of_its_group(tmp_path: Path, path: str) -> None:
    """With the host's names of groups, the mounted group is the container's own."""
    write_version_2(tmp_path, path, mounted="/docker/3f2a")
    write(tmp_path, f"{GROUP_2}/cpu.max", "300000 100000\n")
    assert usable_cpus(tmp_path) == 3


def memory_2(root: Path, limit: str, used: int, *, cached: int = 0, mapped: int = 0, group: str = "") -> None:
    write(root, f"{GROUP_2}{group}/memory.max", f"{limit}\n")
    write(root, f"{GROUP_2}{group}/memory.current", f"{used}\n")
    stat = f"anon {used - cached}\nfile {cached}\nfile_mapped {mapped}\ninactive_file {cached // 2}\n"
    write(root, f"{GROUP_2}{group}/memory.stat", f"{stat}active_file {cached - cached // 2}\npgfault 7\n")


def test_without_a_limit_the_free_memory_is_that_of_the_host(tmp_path: Path) -> None:
    write_version_2(tmp_path)
    assert free_memory(tmp_path) == AVAILABLE
    memory_2(tmp_path, "max", 3 * GIB)
    assert free_memory(tmp_path) == AVAILABLE


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    write_version_2(tmp_path)
    memory_2(tmp_path, f"{8 * GIB}", 3 * GIB)
    assert free_memory(tmp_path) == 5 * GIB
    memory_2(tmp_path, f"{8 * GIB}", 8 * GIB)
    assert free_memory(tmp_path) == 0


def test_memory_that_would_be_slow_is_not_free(tmp_path: Path) -> None:
    write_version_2(tmp_path)
    memory_2(tmp_path, "max", 3 * GIB)
    write(tmp_path, f"{GROUP_2}/memory.high", f"{4 * GIB}\n")
    assert free_memory(tmp_path) == GIB
    memory_2(tmp_path, f"{8 * GIB}", 3 * GIB)
    assert free_memory(tmp_path) == GIB
    write(tmp_path, f"{GROUP_2}/memory.high", "max\n")
    assert free_memory(tmp_path) == 5 * GIB


def test_a_limit_over_the_memory_of_the_host_changes_nothing(tmp_path: Path) -> None:
    write_version_2(tmp_path)
    memory_2(tmp_path, f"{100 * GIB}", GIB)
    assert free_memory(tmp_path) == AVAILABLE


def test_cached_files_count_as_free_unless_they_are_mapped(tmp_path: Path) -> None:
    write_version_2(tmp_path)
    memory_2(tmp_path, f"{8 * GIB}", 7 * GIB, cached=5 * GIB, mapped=2 * GIB)
    assert free_memory(tmp_path) == 4 * GIB
    memory_2(tmp_path, f"{8 * GIB}", 7 * GIB, cached=GIB, mapped=2 * GIB)
    assert free_memory(tmp_path) == GIB


def test_the_group_that_leaves_least_counts(tmp_path: Path) -> None:
    write_version_2(tmp_path, "/pod/container")
    memory_2(tmp_path, f"{10 * GIB}", 8 * GIB, group="/pod")
    memory_2(tmp_path, f"{6 * GIB}", GIB, group="/pod/container")
    assert free_memory(tmp_path) == 2 * GIB


@pytest.mark.parametrize(("limit", "free"), [(NO_LIMIT_1, AVAILABLE), (f"{8 * GIB}\n", 6 * GIB)])
def test_version_1_limits_memory_too(tmp_path: Path, limit: str, free: int) -> None:
    write_version_1(tmp_path, "/docker/3f2a", mounted="/docker/3f2a")
    write(tmp_path, f"{MEMORY_1}/memory.limit_in_bytes", limit)
    write(tmp_path, f"{MEMORY_1}/memory.usage_in_bytes", f"{3 * GIB}\n")
    stat = f"cache 7\nactive_file 1\ninactive_file 1\ntotal_mapped_file 0\ntotal_active_file {GIB}\n"
    write(tmp_path, f"{MEMORY_1}/memory.stat", f"{stat}total_inactive_file 0\n")
    assert free_memory(tmp_path) == free


@pytest.mark.parametrize(
    ("limit", "free"),
    [("unlimited", AVAILABLE), (str(3 * GIB), 2 * GIB), (str(GIB // 2), 0), (str(90 * GIB), AVAILABLE)],
)
def test_a_process_may_map_no_more_than_its_limit(tmp_path: Path, limit: str, free: int) -> None:
    write_version_2(tmp_path)
    write(
        tmp_path, "proc/self/limits", f"Max locked memory  1  1  bytes\nMax address space  {limit}  unlimited  bytes\n"
    )
    write(tmp_path, "proc/self/statm", f"{GIB // os.sysconf('SC_PAGE_SIZE')} 9 9 9 0 9 0\n")
    assert free_memory(tmp_path) == free


# -- the kernel itself -----------------------------------------------------------------------------------------------


@contextmanager
def child_group(controller: str) -> Iterator[Path]:
    """A new control group below that of this process. Skips the test where none can be made."""
    groups = control_groups(controller, Path("/"))
    if not groups:
        pytest.skip(f"there is no control group for {controller}")
    folder = groups[0].folder / f"inflight-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not list(folder.glob(f"{controller}.*")):
            pytest.skip(f"the groups below this one have no controller {controller}")
        yield folder
    finally:
        folder.rmdir()


def in_group(folder: Path, expression: str) -> int:
    """Evaluate an expression in a process of a control group."""
    code = f"""
import os, pathlib
pathlib.Path({str(folder / "cgroup.procs")!r}).write_text(str(os.getpid()))
from inflight.cpu_count import usable_cpus
from inflight.host_memory import free_memory
print({expression})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_real_quota_is_found() -> None:
    with child_group("cpu") as folder:
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text("50000 100000")
        else:
            (folder / "cpu.cfs_quota_us").write_text("50000")
        assert in_group(folder, "usable_cpus()") == 1


def test_a_real_limit_of_memory_is_found() -> None:
    with child_group("memory") as folder:
        name = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"
        (folder / name).write_text(str(GIB // 2))
        free = in_group(folder, "free_memory()")
        assert GIB // 4 < free < GIB // 2
        held = in_group(folder, f"(held := bytearray(b'x') * {GIB // 8}) and free_memory()")
        assert held < free - GIB // 16


def test_a_real_limit_of_a_process_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from inflight.host_memory import free_memory; print(free_memory())"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (GIB, GIB)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert GIB // 4 < int(done.stdout) < GIB
