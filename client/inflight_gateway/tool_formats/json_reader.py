"""Reads JSON from a `Source` without decoding what need not be decoded."""

import json
import re

from inflight_gateway.source import Reading, Source, Take

_IN_STRING = re.compile(r'[^"\\]+')
# Up to a marker, too, which ends JSON that lacks its own end.
_OUTSIDE_STRING = re.compile(r'[^"{}\[\]<]+')
# Half of an emoji, for example. An answer to a client can't have it.
_HALF = re.compile("[\ud800-\udfff]")
_SCALAR = re.compile(r"[^\s,\]}]+")


def string(source: Source) -> Reading[str | None]:
    """Read a string and return what it means. None if there is none, or it is cut off or malformed."""
    if (yield from source.peek()) != '"':
        return None
    written: list[str] = []
    yield from _string(source, written.append)
    try:
        value = json.loads("".join(written))
    except ValueError:
        return None
    return _HALF.sub("\ufffd", str(value))


def value(source: Source, take: Take) -> Reading[bool]:
    """Pass on the JSON of a value, as it is written. Return whether it is complete."""
    match (yield from source.peek()):
        case '"':
            return (yield from _string(source, take))
        case "{" | "[":
            return (yield from _nested(source, take))
    found = False
    while text := source.run(_SCALAR):
        found = True
        take(text)
        yield from source.peek()
    return found


def _string(source: Source, take: Take) -> Reading[bool]:
    take(source.take(1))
    while (next_one := (yield from source.peek())) != "":
        if next_one == '"':
            take(source.take(1))
            return True
        if next_one == "\\":
            take(source.take(1))
            if (yield from source.peek()) == "":
                return False
            take(source.take(1))
        else:
            take(source.run(_IN_STRING))
    return False


def _nested(source: Source, take: Take) -> Reading[bool]:
    depth = 0
    while (next_one := (yield from source.peek())) != "":
        match next_one:
            case '"':
                if not (yield from _string(source, take)):
                    return False
            case "{" | "[":
                depth += 1
                take(source.take(1))
            case "}" | "]":
                depth -= 1
                take(source.take(1))
                if depth == 0:
                    return True
            case "<":
                return False
            case _:
                take(source.run(_OUTSIDE_STRING))
    return False
