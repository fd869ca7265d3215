"""A limit of threads at which Triton would wait for ever is an error before the start."""

import os
from pathlib import Path

import pytest

from scripts.launch.errors import LauncherError
from scripts.launch.task_limit import check_room_for_tasks
from tests.unit.cgroup_files import write, write_version_1, write_version_2

GROUPS = "sys/fs/cgroup"
OTHER_USER = 4321


def write_processes(root: Path, limit: str, **threads: int) -> None:
    """The processes of a user with a limit: `self`, and others with so many threads."""
    write(
        root, "proc/self/limits", f"Max file size    unlimited unlimited bytes\nMax processes    {limit} 9 processes\n"
    )
    for name, count in threads.items():
        for thread in range(count):
            write(root, f"proc/{name.removeprefix('pid_')}/task/{thread}/stat", "")


def give_to(user: int, root: Path, *names: str) -> None:
    for name in names:
        os.chown(root / "proc" / name, user, -1)


def test_the_smallest_room_of_all_groups_above_counts(tmp_path: Path) -> None:
    write_version_2(tmp_path, "/pod/container")
    write_processes(tmp_path, "unlimited")
    for group, limit, count in (("/pod", "500", 450), ("/pod/container", "max", 20)):
        write(tmp_path, f"{GROUPS}{group}/pids.max", f"{limit}\n")
        write(tmp_path, f"{GROUPS}{group}/pids.current", f"{count}\n")
    check_room_for_tasks(50, tmp_path)
    with pytest.raises(LauncherError, match=r"needs 51 threads and processes, and only 50 more .* --pids-limit"):
        check_room_for_tasks(51, tmp_path)


def test_a_group_that_is_full_has_no_room(tmp_path: Path) -> None:
    write_version_1(tmp_path, "/", "/")
    write_processes(tmp_path, "unlimited")
    write(tmp_path, f"{GROUPS}/pids/pids.max", "100\n")
    write(tmp_path, f"{GROUPS}/pids/pids.current", "101\n")
    with pytest.raises(LauncherError, match="only 0 more"):
        check_room_for_tasks(1, tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_the_limit_of_a_user_leaves_what_the_users_processes_do_not_have(tmp_path: Path) -> None:
    write_processes(tmp_path, "100", pid_1=50, pid_2=30, pid_3=5)
    give_to(OTHER_USER, tmp_path, "self", "2", "3")
    check_room_for_tasks(65, tmp_path)
    with pytest.raises(LauncherError, match=r"only 65 more .*ulimit -u"):
        check_room_for_tasks(66, tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has no limit")
def test_no_limit_of_users_applies_to_root(tmp_path: Path) -> None:
    write_processes(tmp_path, "100", pid_1=90)
    check_room_for_tasks(11, tmp_path)


def test_without_limits_there_is_room(tmp_path: Path) -> None:
    write_processes(tmp_path, "unlimited", pid_1=50)
    check_room_for_tasks(10**6, tmp_path)
