"""A cached build is complete, even if an earlier build was interrupted."""

import threading
from pathlib import Path

import pytest

from scripts.launch.cache import build_once, cache_root
from scripts.launch.errors import LauncherError
from scripts.launch.wheels import fetch_wheel, pinned


def test_the_cache_can_be_put_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.setenv("INFLIGHT_CACHE", "")
    assert cache_root() == Path.home() / ".cache/inflight"


def test_a_failed_build_leaves_no_target(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        build_once(tmp_path / "target", fail)
    assert not (tmp_path / "target").exists()


def test_what_a_killed_build_left_is_not_used(tmp_path: Path) -> None:
    partial = tmp_path / ".target.partial"
    partial.mkdir()
    (partial / "half").touch()
    target = build_once(tmp_path / "target", lambda folder: (folder / "whole").touch())
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert not partial.exists()


def test_two_at_once_build_once(tmp_path: Path) -> None:
    first_is_building = threading.Event()
    go_on = threading.Event()
    builds = []

    def build(folder: Path) -> None:
        builds.append(folder)
        first_is_building.set()
        assert go_on.wait(timeout=10)

    threads = [threading.Thread(target=build_once, args=(tmp_path / "target", build)) for _ in range(2)]
    threads[0].start()
    assert first_is_building.wait(timeout=10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(timeout=10)
    assert len(builds) == 1


def test_a_wheel_that_cannot_be_had_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    requirement = pinned("triton-runtime")
    with pytest.raises(LauncherError, match=f"could not download {requirement}: .+") as failure:
        fetch_wheel(requirement, tmp_path)
    assert "\n" not in str(failure.value)
