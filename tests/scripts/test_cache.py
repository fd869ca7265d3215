"""The folder for downloads."""

import pwd
from pathlib import Path

import pytest

from scripts.launch.cache import cache_root
from scripts.launch.errors import LauncherError


def test_the_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "a" / "b"))
    assert cache_root() == tmp_path / "a" / "b"
    assert cache_root().is_dir()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LauncherError, match=r"INFLIGHT_CACHE is '.*/file/cache'; the folder cannot be made: Not a dir"):
        cache_root()


@pytest.mark.parametrize("name", ["John Doe", "jos\u00e9", "a;b", "$HOME"])
def test_a_path_that_triton_cannot_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Triton would pass it through a shell without quotes, and then wait for ever."""
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / name))
    with pytest.raises(LauncherError, match=r"INFLIGHT_CACHE is .*; Triton needs a path of ASCII letters"):
        cache_root()
    assert list(tmp_path.iterdir()) == []


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_user(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("INFLIGHT_CACHE", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    with pytest.raises(LauncherError, match="this user has no home folder; set INFLIGHT_CACHE to a folder"):
        cache_root()
