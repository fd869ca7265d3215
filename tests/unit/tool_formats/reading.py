"""Reads an answer with two tools."""

from collections.abc import Iterable

from inflight_gateway.pieces import Piece, merged
from inflight_gateway.reader import Reader
from inflight_gateway.tool_formats import FORMATS, Tool

_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "where": {"$ref": "#/$defs/Place"},
    },
    "required": ["city"],
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
TOOLS = {"weather": Tool("weather", _SCHEMA, "Tells the weather."), "now": Tool("now")}


def read(name: str, parts: Iterable[str], tools: dict[str, Tool] = TOOLS) -> list[Piece]:
    reader = Reader(lambda source, emit: FORMATS[name].read(source, emit, tools))
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return merged([*pieces, *reader.end()])
