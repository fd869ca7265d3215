"""The output of a batch: a line of JSON for each line of the input, in its order.

A line begins with its index and the digest of what it answers, so that a file tells whether it belongs to an input,
even by a last line that a kill has torn.
"""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from inflight_cli.batch_input import InputLine
from inflight_cli.errors import CommandError


def encode(line: InputLine, answer: Mapping[str, object]) -> bytes:
    """The output line that answers an input line."""
    return json.dumps({"index": line.index, "digest": line.digest, **answer}).encode() + b"\n"


def open_alone(path: Path) -> IO[bytes]:
    """Open a file for appending, made where it is not there.

    Raises:
        CommandError: another process has opened it so.
    """
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise CommandError(f"another batch writes to {path}") from None
    return file


def answered(path: Path, lines: Iterable[InputLine]) -> Iterator[bytes]:
    """The whole lines of an output file, which answer `lines` from the first on; a torn last line is left out.

    Raises:
        CommandError: one answers something else.
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
    """Type and message of the error that a line has instead of an answer."""
    error: Mapping[str, Any] | None = json.loads(answer).get("error")
    return error


def failures(path: Path) -> Iterator[str]:
    """A text for each line of a finished output that has an error; lines are counted from 1."""
    with path.open("rb") as file:
        for number, answer in enumerate(file, start=1):
            if (error := error_of(answer)) is not None:
                yield f"line {number}: {error['type']}: {error['message']}"
