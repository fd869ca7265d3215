"""Reads the name of the function that a call is for."""

import re
from collections.abc import Sequence

from inflight_gateway.source import Reading, Source
from inflight_gateway.tool_formats.tool import NAME


def read_name(
    source: Source, ends: Sequence[str], borders: Sequence[str], *, form: re.Pattern[str] = NAME
) -> Reading[tuple[str, str] | None]:
    """Read a name and what follows it, one of `ends`. Return both.

    If there is no name, as in a text about the format, read nothing and return None. `borders`: what no name has in it,
    such as the beginning of another call. Without them, each call would be read up to the end of the answer. `form`:
    what the name consists of.
    """
    source.keep()
    written: list[str] = []
    end = yield from source.until((*ends, *borders), written.append)
    read, name = source.kept(), "".join(written).strip()
    if end is not None and end in ends and form.fullmatch(name):
        return name, end
    source.put_back(read)
    return None
