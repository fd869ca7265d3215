"""The output of a batch: one line of JSON per line of the input, in the same order.

A line begins with its index and the digest of its input line. So one can check whether an output file belongs to an
input, even if the process was killed while it wrote the last line.
"""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from inflight_cli.batch_input import InputLine
from inflight_cli.errors import CommandError


def encode(line: InputLine, answer: Mapping[str, object]) -> bytes:
    """Make the output line for an input line."""
    return json.dumps({"index": line.index, "digest": line.digest, **answer}).encode() + b"\n"


def open_alone(path: Path) -> IO[bytes]:
    """Open a file for appending, with an exclusive lock. Creates the file if necessary.

    Raises:
        CommandError: another process holds the lock.
    """
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise CommandError(f"another batch writes to {path}") from None
    return file


def answered(path: Path, lines: Iterable[InputLine]) -> Iterator[bytes]:
    """Yield the complete lines of an output file, which answer `lines` from the first on. Skips a partial last line.

    Raises:
        CommandError: a line does not belong to its input line.
    """
    unanswered = iter(lines)
    with path.open("rb") as file:
        for number, answer in enumerate(file, start=1):
            line = next(unanswered, None)
            if line is None or not _belongs(answer, line):
                raise CommandError(
                    f"line {number} of {path} does not answer that line of this input with these options; "
                    "give another output file, or remove this one"
                )
            if answer.endswith(b"\n"):
                yield answer


def _belongs(answer: bytes, line: InputLine) -> bool:
    beginning = encode(line, {}).removesuffix(b"}\n") + b","
    return answer.startswith(beginning) or (not answer.endswith(b"\n") and beginning.startswith(answer))


def error_of(answer: bytes) -> Mapping[str, Any] | None:
    """Return the type and the message of a line's error, or None if the line has an answer."""
    error: Mapping[str, Any] | None = json.loads(answer).get("error")
    return error


def failures(path: Path) -> Iterator[str]:
    """Yield a description of each line of a finished output that has an error. Line numbers begin at 1."""
    with path.open("rb") as file:
        for number, answer in enumerate(file, start=1):
            if (error := error_of(answer)) is not None:
                yield f"line {number}: {error['type']}: {error['message']}"
