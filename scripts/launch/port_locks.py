"""Keeps two servers that start at the same time from using the same port."""

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.launch.errors import LauncherError


@contextlib.contextmanager
def locked_ports(folder: Path, ports: Mapping[str, int]) -> Iterator[None]:
    """Hold the ports, which are given by the names of their settings, until the end of the context.

    Triton takes its ports only once its models are loaded. Until then, whoever looks at a port finds it free, and an
    answer from it may be another server's.

    Raises:
        LauncherError: another process holds one of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for name, port in ports.items():
            lock = stack.enter_context((folder / f"port-{port}").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LauncherError(f"{name} is {port}; another server uses that port, or is about to") from error
        yield
