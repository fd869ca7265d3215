"""What the commands that run a service of their own need: root, open files, and a folder."""

import contextlib
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.launch.errors import LauncherError


@contextlib.contextmanager
def workplace(logs: Path | None) -> Iterator[Path]:
    """An empty folder for a service. At the end its logs are copied to `logs`, if that is given.

    Raises LauncherError if this user may not mount the small disks of the service.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise LauncherError("this needs root and the program unshare")
    # Stopped in order, as by Ctrl-C: the service must not be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="inflight-chaos-") as folder:
        try:
            yield Path(folder)
        finally:
            if logs is not None:
                logs.mkdir(parents=True, exist_ok=True)
                for log in Path(folder).glob("*.log"):
                    shutil.copy(log, logs)
