"""Prompts for speculative decoding: some whose answers copy from them, and some whose answers do not."""

from collections.abc import Callable, Mapping

_NAMES = ("add", "area", "mean", "total", "price", "speed", "ratio", "count", "score", "width", "depth", "weight")
_TOWNS = ("Ulm", "Graz", "Brno", "Gent", "Lund", "Porto", "Turku", "Siena")
_THINGS = ("cat", "ship", "tower", "river", "lamp", "wizard", "train", "garden")


def _code(number: int) -> str:
    names = [_NAMES[(number + step) % len(_NAMES)] for step in range(4)]
    return "".join(
        f'def {name}(first, second):\n    """Return the {name} of two numbers."""\n'
        f"    result = first {operator} second\n    return round(result, {digits})\n\n\n"
        for name, operator, digits in zip(names, "+*-/", range(1, 5), strict=True)
    )


def _repeat(number: int) -> str:
    code = _code(number)
    return (
        f"The file:\n```python\n{code}```\n\nThe same file, unchanged:\n```python\n{code}```\n\nAnd again:\n```python\n"
    )


def _edit(number: int) -> str:
    code, old = _code(number), _NAMES[number % len(_NAMES)]
    renamed = code.replace(old, "tally")
    return (
        f"The file:\n```python\n{code}```\n\nThe same file with `tally` for `{old}`:\n```python\n{renamed}```\n\n"
        f"The second file once more:\n```python\n"
    )


def _extract(number: int) -> str:
    def record(row: int) -> str:
        town = _TOWNS[(number + row) % len(_TOWNS)]
        return f"Order {row + 1}: {3 + row} boxes of paper for the office in {town}, to be paid within {10 + row} days."

    records = [record(row) for row in range(4)]
    listed = "\n".join(f"- {each}" for each in records)
    return f"{' '.join(records)}\n\nThe orders as a list:\n{listed}\n\nThe same list again:\n"


def _quote(number: int) -> str:
    thing, town = _THINGS[number % len(_THINGS)], _TOWNS[number // 2 % len(_TOWNS)]
    text = (
        f"The old {thing} near {town} was built by three brothers who had come from the coast. They worked on it for "
        f"eleven winters, and when it was ready the whole of {town} came to see it and to hear the eldest speak."
    )
    return f'The report says: "{text}"\n\nQuoted in full: "{text}"\n\nOnce more, word for word: "'


def _story(number: int) -> str:
    thing, town = _THINGS[number % len(_THINGS)], _TOWNS[number // 8 % len(_TOWNS)]
    return f"Write a story about a {thing} in {town}, number {number}."


def _long(number: int) -> str:
    rows = " ".join(f"On day {day} it rained for {(number * 7 + day * day) % 23} hours." for day in range(1, 60))
    return f"{rows}\nWhat do you think of the weather in number {number}? Say it in your own words."


PROMPTS: Mapping[str, Callable[[int], str]] = {
    "repeat": _repeat,
    "edit": _edit,
    "extract": _extract,
    "quote": _quote,
    "story": _story,
    "long": _long,
}
"""The prompt with a number, by the kind of the answer. The last two kinds have nothing to copy."""

COPYING = ("repeat", "edit", "extract", "quote")
