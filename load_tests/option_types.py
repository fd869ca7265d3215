"""Types of command line options: numbers within bounds, and folders for results."""

import argparse
import os
from pathlib import Path


def positive(text: str) -> float:
    """Parse a finite number over 0. Raises argparse.ArgumentTypeError if it is none."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number over 0")
    return number


def count(text: str) -> int:
    """Parse a whole number of at least 1. Raises argparse.ArgumentTypeError if it is none."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def count_or_none(text: str) -> int:
    """Parse a whole number of at least 0. Raises argparse.ArgumentTypeError if it is none."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


def results_folder(text: str) -> Path:
    """Parse a folder that exists and can be written, or can be made. Nothing is made yet.

    Raises argparse.ArgumentTypeError if it is none: a measurement of minutes must not end without its report.
    """
    folder = Path(text)
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: nothing can be written to {nearest}")
    return folder
