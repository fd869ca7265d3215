"""Reads the name of the function that a call is for."""

import re
from collections.abc import Sequence

from inflight_gateway.source import Reading, Source
from inflight_gateway.tool_formats.tool import NAME

_CHARACTERS = re.compile(r"[\w.:-]+", re.ASCII)
_SPACE, _SPACE_IN_LINE = re.compile(r"\s+"), re.compile(r"[^\S\n]+")


def read_name(
    source: Source, ends: Sequence[str], *, in_line: bool = False, form: re.Pattern[str] = NAME
) -> Reading[tuple[str, str] | None]:
    """Read a name with white space around it, and what follows, one of `ends`. Return the name and the end.

    If there is no name, as in a text about the format, read nothing and return None, as soon as that is known: the text
    goes on. `in_line`: the white space has no line break. `form`: what the name consists of.
    """
    source.keep()
    written: list[str] = []
    space = _SPACE_IN_LINE if in_line else _SPACE
    for pattern in (space, _CHARACTERS, space):
        while (yield from source.peek()) and (part := source.run(pattern)):
            written.append(part)
    end = None
    for one in ends:
        if end is None and (yield from source.accept(one)):
            end = one
    read, name = source.kept(), "".join(written).strip()
    if end is not None and form.fullmatch(name):
        return name, end
    source.put_back(read)
    return None
