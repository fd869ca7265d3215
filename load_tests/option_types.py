"""Types of command line options: numbers within bounds, and folders for results."""

import argparse
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

MOST = 10_000_000
"""The largest number of requests, users, tokens or rounds. Requests of more would not fit into memory."""
MOST_SEED = 2**32 - 1
"""The largest seed that NumPy's older generators take, which optuna uses."""
LEAST_NUMBER, MOST_NUMBER = 1e-9, 1e9
"""Bounds of rates, factors and times. A run of more seconds would not end, and far beyond them times overflow."""
_DIGITS = 4000
"""Python reads no longer numbers. So many digits are too large anyway, unless zeros lead."""


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds. It raises argparse.ArgumentTypeError."""

    def read(text: str) -> int:
        value = int(text[:_DIGITS]) if text.isdecimal() else -1
        if value > most:
            raise argparse.ArgumentTypeError(f"must be a whole number of at most {most}, not {text!r}")
        if value < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {text!r}")
        return value

    return read


def number(least: float, most: float = MOST_NUMBER) -> Callable[[str], float]:
    """Return a parser of numbers within bounds. It raises argparse.ArgumentTypeError."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if value > most:
            raise argparse.ArgumentTypeError(f"must be a number of at most {most:g}, not {text!r}")
        if not value >= least:
            raise argparse.ArgumentTypeError(f"must be a number of at least {least:g}, not {text!r}")
        return value

    return read


count, count_or_none, seed = whole(1), whole(0), whole(0, MOST_SEED)
positive = number(LEAST_NUMBER)


def read_levels(text: str) -> list[int]:
    """Parse comma-separated numbers of users. Raises argparse.ArgumentTypeError if the text has another form."""
    levels = [count(level) for level in text.split(",")]
    for level, times in Counter(levels).items():
        if times > 1:
            raise argparse.ArgumentTypeError(f"{text!r} has {level} users {times} times; each level is measured once")
    return levels


def results_file(text: str) -> Path:
    """Parse a file that can be written. Raises argparse.ArgumentTypeError as `results_folder` does."""
    file = Path(text)
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; it must be a file")
    results_folder(str(file.parent))
    return file


def results_folder(text: str) -> Path:
    """Parse a folder that exists and can be written, or can be made. Nothing is made yet.

    Raises argparse.ArgumentTypeError if it is none: a measurement of minutes must not end without its report.
    """
    folder = Path(text)
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: nothing can be written to {nearest}")
    return folder
