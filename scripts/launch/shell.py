"""Runs commands that build or install something. Their output is shown."""

import subprocess
from collections.abc import Sequence

from scripts.launch.errors import LauncherError


def run(command: Sequence[str]) -> None:
    """Run a command to its end. Raises LauncherError if there is no such command or it fails."""
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LauncherError(f"could not run {' '.join(command[:4])}: {error}") from error
