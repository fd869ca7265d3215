"""Values in calls that are written in Python. Models mix it with JSON, and break lines within quotation marks."""

import ast
import json
import re
import warnings

from inflight_gateway.source import Reading, Source
from inflight_gateway.strict_json import read_json
from inflight_gateway.tool_formats import json_text

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_PLAIN = re.compile(r"""[^()\[\]{},"'<]+""")
_IN_STRING = {quote: re.compile(rf"[^\\{quote}]+") for quote in "\"'"}
_STRING = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.DOTALL)
_OF_JSON = {"true": True, "false": False, "null": None}


def written(value: object) -> str:
    """Return a value as it stands in a call."""
    return json_text.text_of(value) if isinstance(value, str) else repr(value)


def read(source: Source) -> Reading[str | None]:
    """Read an expression up to the comma or bracket after it, and return its JSON. None: it is cut off."""
    source.keep()
    open_brackets: list[str] = []
    while (following := (yield from source.peek())) and following != "<":
        if following in "\"'":
            if not (yield from _read_string(source, following)):
                break
        elif following in _BRACKETS:
            open_brackets.append(_BRACKETS[source.take(1)])
        elif open_brackets and following == open_brackets[-1]:
            open_brackets.pop()
            source.take(1)
        elif not open_brackets and following in ",)":
            return _as_json(source.kept().strip())
        elif not source.run(_PLAIN):
            source.take(1)
    source.kept()
    return None


def _read_string(source: Source, quote: str) -> Reading[bool]:
    end = quote * 3
    if not (yield from source.accept(end)):
        end = source.take(1)
    while not (yield from source.accept(end)):
        if (following := (yield from source.peek())) == "":
            return False
        if following == "\\":
            source.take(1)
            if not (yield from source.peek()):
                return False
            source.take(1)
        elif not source.run(_IN_STRING[quote]):
            source.take(1)
    return True


def _as_json(expression: str) -> str:
    """Return the JSON of a value that is written as Python or as JSON. What is neither becomes a text."""
    try:
        read_json(expression)
    except (ValueError, RecursionError):
        pass
    else:
        return expression
    try:
        return _writable(json.dumps(_value(expression), ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return json_text.text_of(expression)


def _value(expression: str) -> object:
    if '"""' not in expression and "'''" not in expression:
        # So that lines may be broken within.
        expression = _STRING.sub(lambda found: f"{found[0][0] * 2}{found[0]}{found[0][0] * 2}", expression)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of escapes that are none, as in "\d".
        tree = ast.parse(expression, mode="eval")
    return ast.literal_eval(_WithPythonsConstants().visit(tree))


class _WithPythonsConstants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_OF_JSON[node.id]) if node.id in _OF_JSON else node


def _writable(text: str) -> str:
    """Return a text in which halves of characters are joined, and those that stay alone are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
