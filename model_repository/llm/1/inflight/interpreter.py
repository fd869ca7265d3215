"""Finds the Python interpreter, for processes that this process starts."""

import sys
import sysconfig
from pathlib import Path


def interpreter() -> str:
    """The Python of this process. Embedded in Triton's process, `sys.executable` may be another program."""
    own = Path(sys.executable)
    if own.name.startswith("python"):
        return str(own)
    return str(Path(sysconfig.get_path("scripts"), f"python{sys.version_info.major}"))
