"""Pauses between starts, and deaths by lack of memory, which are found in the kernel's counts."""

from pathlib import Path

from scripts.launch.restarts import Backoff, out_of_memory_kills
from tests.unit.cgroup_files import write, write_version_1, write_version_2


def test_users_of_a_server_that_dies_often_do_not_wait_long() -> None:
    backoff = Backoff()
    assert [backoff.pause(True) for _ in range(5)] == [0.25] * 5


def test_starts_that_fail_become_rare() -> None:
    backoff = Backoff()
    assert [backoff.pause(False) for _ in range(9)] == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [backoff.pause(True), backoff.pause(False)] == [0.25, 0.5]


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
