"""What a model may write, as a tree: the structural tags of xgrammar and vLLM, which the server enforces."""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

Tag: TypeAlias = dict[str, Any]
"""A node of the tree."""

ANY_TEXT: Tag = {"type": "any_text"}
"""Free text. Inside of a tag, it ends where the tag's end begins."""
MAX_CHARACTERS = 2**16
"""The server's bound on the JSON of an answer's tag."""


def text(value: str) -> Tag:
    """Exactly this text."""
    return {"type": "const_string", "value": value}


def json_value(schema: Mapping[str, Any]) -> Tag:
    """JSON that matches a schema."""
    return {"type": "json_schema", "json_schema": dict(schema)}


def regex(pattern: str) -> Tag:
    """Text that a regular expression matches."""
    return {"type": "regex", "pattern": pattern}


def grammar(written: str) -> Tag:
    """Text of a grammar."""
    return {"type": "grammar", "grammar": written}


def sequence(*elements: Tag) -> Tag:
    """One after the other."""
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Tag) -> Tag:
    """One of several."""
    return {"type": "or", "elements": list(elements)}


def tag(begin: str, content: Tag, end: str) -> Tag:
    """Content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def list_of(tags: Sequence[Tag], separator: str, *, several: bool) -> Tag:
    """At least one of these tags and, if there may be several, more of them."""
    return _separated(tags, separator, needed=True, several=several)


def any_number_of(element: Tag, separator: str) -> Tag:
    """None, one or more of an element."""
    return _separated([tag("", element, "")], separator, needed=False, several=True)


def members(values: Mapping[str, Tag], needed: Collection[str], *, assign: str, separator: str) -> Tag:
    """Named values in this order, such as `name=value, other=value`. Those that are not needed may be missing."""
    names = list(values)
    written = {name: sequence(text(f"{name}{assign}"), values[name]) for name in names}

    def further(name: str) -> Tag:
        member = sequence(text(separator), written[name])
        return member if name in needed else either(member, text(""))

    alternatives: list[Tag] = []
    for index, name in enumerate(names):
        alternatives.append(sequence(written[name], *map(further, names[index + 1 :])))
        if name in needed:
            break
    else:
        alternatives.append(text(""))
    return either(*alternatives)


def _separated(tags: Sequence[Tag], separator: str, *, needed: bool, several: bool) -> Tag:
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": needed,
        "stop_after_first": not several,
    }


def text_with(triggers: Sequence[str], tags: Sequence[Tag], *, several: bool) -> Tag:
    """Free text in which one of these tags must follow wherever a trigger appears. Without `several`, it ends there."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": False,
        "stop_after_first": not several,
    }


def whole(answer: Tag) -> Tag:
    """Return what the server takes for an answer that must match a node."""
    return {"type": "structural_tag", "format": answer}


def is_too_long(answer: Tag) -> bool:
    """Return whether the JSON of an answer's tag is over the bound. No more of it is written than the bound.

    The tag may hold one part many times, such as the definitions of a schema beside each parameter.
    """
    lengths = map(len, json.JSONEncoder().iterencode(whole(answer)))
    return any(length > MAX_CHARACTERS for length in accumulate(lengths))
