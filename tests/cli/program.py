"""Runs the program `inflight` as its users do."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

CLIENT = Path(__file__).parents[2] / "client"
SECONDS = 60


class Program:
    """Runs `inflight` as a separate process, with one server as the default URL."""

    def __init__(self, url: str, **environment: str) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(CLIENT), "INFLIGHT_URL": url, **environment}

    def start(self, *arguments: str, before: Sequence[str] = (), **options: Any) -> "subprocess.Popen[str]":
        """Start the process, with pipes for its standard streams unless `options` change that. `before`: a command that
        starts it."""
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        command = [*before, sys.executable, "-m", "inflight_cli", *arguments]
        return subprocess.Popen(command, env=self._environment, text=True, **pipes)

    def run(self, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
        """Run the process to its end with `text` as its standard input."""
        with self.start(*arguments) as process:
            try:
                output, errors = process.communicate(text, timeout=SECONDS)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def interrupt(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Press Ctrl-C, and return the remaining output of the process."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=SECONDS)


class Terminal:
    """Runs the program in a terminal. The context manager kills the process at the end."""

    def __init__(self, program: Program, *arguments: str) -> None:
        self._fd, inner = pty.openpty()
        self.process = program.start(*arguments, stdin=inner, stdout=inner, stderr=inner)
        os.close(inner)
        self._unread = b""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode(errors="surrogateescape"))

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def read_until(self, text: str) -> str:
        """Return the output up to and including `text`. Waits at most `SECONDS`."""
        ends = time.monotonic() + SECONDS
        while text.encode() not in self._unread:
            readable, _, _ = select.select([self._fd], [], [], max(0.0, ends - time.monotonic()))
            assert readable, f"{text!r} did not come: {self._unread!r}"
            self._unread += os.read(self._fd, 4096)
        seen, found, self._unread = self._unread.partition(text.encode())
        return (seen + found).decode(errors="surrogateescape")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
