"""Types of command line options: numbers within bounds."""

import argparse


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
