"""Commands that build or install something, with what they print."""

import subprocess
from collections.abc import Sequence

from scripts.launch.errors import LauncherError


def run(command: Sequence[str]) -> None:
    """Run a command to its end; raises LauncherError where there is none such, or it fails."""
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LauncherError(f"could not run {' '.join(command[:4])}: {error}") from error
