"""A command that is started again whenever it ends, as systemd would."""

import asyncio
import contextlib
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

_MARK = "INFLIGHT_CHAOS"
"""A variable in the environment of all its processes."""
_RESTART_SECONDS = 1.0
_STOP_SECONDS = 60.0


class Supervised:
    """A command that is started again whenever it ends. Its output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._command, self._environment, self._log = list(command), {**environment, _MARK: self._mark}, log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The id of its present process."""
        if self._process is None:
            raise ProcessLookupError(f"{self._command[0]} is not running")
        return self._process.pid

    def processes(self) -> dict[int, str]:
        """The commands of all processes that it started, by their ids: children, and orphans of earlier ones."""
        mark = f"{_MARK}={self._mark}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            # A process may end while it is looked at, and others may not be looked at.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    async def run(self) -> None:
        """Keep it running until this is cancelled. Then stop it."""
        with self._log.open("a") as log:
            try:
                while True:
                    self._process = await asyncio.create_subprocess_exec(
                        *self._command,
                        env=self._environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    await self._process.wait()
                    await asyncio.sleep(_RESTART_SECONDS)
            finally:
                await self._stop()

    async def _stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
