"""Standard input, output and error of the process."""

import io
import os
import sys

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def prepare() -> None:
    """Make the standard streams usable whatever the caller's environment is.

    Python has None in the place of a stream that the caller has closed. Outputs write a question mark for a character
    that their encoding does not have: an answer can have any, and must not end there.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it is open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
