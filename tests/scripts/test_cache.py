"""The folder for downloads."""

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
