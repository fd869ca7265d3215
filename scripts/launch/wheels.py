"""Downloads that are unpacked but never installed into this environment. pyproject.toml pins them in its groups."""

import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from scripts.launch.errors import LauncherError

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
HASHES = Path(__file__).with_name("hashes.txt")


def pinned(group: str) -> str:
    """Return the first requirement of a dependency group, such as `name==1.2.3`."""
    (requirement,) = pinned_all(group)
    return requirement


def pinned_all(group: str) -> list[str]:
    """Return the requirements of a dependency group. The first is the one that the group is named after."""
    return list(map(str, tomllib.loads(PYPROJECT.read_text())["dependency-groups"][group]))


def fetch_wheel(requirement: str, folder: Path) -> Path:
    """Download a pinned wheel without its dependencies into an empty folder and return its path.

    Raises LauncherError if pip cannot download it, or it is not what `hashes.txt` says, with the last line of pip's
    error.
    """
    return _download(requirement, folder, ["--only-binary", ":all:"])


def fetch_source(requirement: str, folder: Path) -> Path:
    """Download the source distribution of a pinned requirement, unpack it and return its folder.

    `folder` is created. Raises LauncherError like `fetch_wheel`.
    """
    archive = _download(requirement, folder, ["--no-binary", requirement.partition("==")[0]])
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = [path for path in folder.iterdir() if path.is_dir()]
    return source


def _download(requirement: str, folder: Path, kind: Sequence[str]) -> Path:
    print(f"Downloading {requirement}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as hashed:
        hashed.write(_with_hashes(requirement))
        hashed.flush()
        command += ["--no-deps", *kind, "--dest", str(folder), "--require-hashes", "--requirement", hashed.name]
        pip = subprocess.run(command, capture_output=True, text=True, check=False)
    files = [path for path in folder.glob("*") if path.is_file()]
    if pip.returncode != 0 or len(files) != 1:
        reason = (pip.stderr.strip() or "pip brought no file").splitlines()[-1]
        raise LauncherError(f"could not download {requirement}: {reason}")
    return files[0]


def _with_hashes(requirement: str) -> str:
    """Return the entry of a requirement in `hashes.txt`: it alone, for pip checks all entries of a file."""
    _, found, rest = f"\n{HASHES.read_text()}".partition(f"\n{requirement} ")
    if not found:
        raise LauncherError(f"{HASHES} has no hash of {requirement}")
    lines = rest.splitlines()
    end = next(number for number, line in enumerate(lines, start=1) if not line.endswith("\\"))
    return "\n".join([f"{requirement} {lines[0]}", *lines[1:end]])
