"""Deaths by lack of memory are found in the kernel's counts."""

from pathlib import Path

from scripts.launch.restarts import out_of_memory_kills
from tests.unit.cgroup_files import write, write_version_1, write_version_2


def test_kills_of_version_2(tmp_path: Path) -> None:
    write_version_2(tmp_path)
    assert out_of_memory_kills(tmp_path) == 0
    write(tmp_path, "sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert out_of_memory_kills(tmp_path) == 2


def test_kills_of_version_1(tmp_path: Path) -> None:
    write_version_1(tmp_path, "/", "/")
    write(tmp_path, "sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert out_of_memory_kills(tmp_path) == 4


def test_without_control_groups_there_is_no_count(tmp_path: Path) -> None:
    assert out_of_memory_kills(tmp_path) == 0
