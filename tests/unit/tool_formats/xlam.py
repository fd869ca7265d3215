"""Answers of xLAM 2, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("xlam", '[1, 2] and [{"city": "Ulm"}]'),
    no_call("xlam", ' [{"name": "rain", "arguments": {}}]\n'),
    no_call("xlam", '\n[ {"name": "no'),
    # Lists of JSON within a text are seldom calls, even if something in them has the name of a tool.
    no_call("xlam", 'They are:\n[{"name": "now"}, {"name": "weather", "arguments": {"city": "Ulm"}}]'),
    no_call("xlam", 'So: [{ "name": "now", "arguments": {}}]'),
    (
        "xlam",
        f' [{{"name": "weather", "arguments": {ULM}}}, {{"name": "now", "arguments": {{}}}}]\n',
        calls(("weather", ULM), ("now", "{}")),
    ),
    (
        "xlam",
        '[\n  {"arguments": {"city": "Ulm"}, "name": "weather"},\n  {"name": "now"}\n]',
        calls(("weather", '{"city": "Ulm"}'), ("now", "{}")),
    ),
    (
        "xlam",
        'I look [1].\n[{"name": "now", "arguments": {}},{"name": "now"}] Done.',
        [Text("I look [1]."), *calls(("now", "{}"), ("now", "{}")), Text("Done.")],
    ),
    # Only tools of the request are called.
    (
        "xlam",
        '[{"name": "now", "arguments": {}}, {"name": "rain"}]',
        [*calls(("now", "{}")), Text(', {"name": "rain"}]')],
    ),
    ("xlam", '[{"name": "weather", "arguments": {"city": "U', calls(("weather", '{"city": "U'))),
]
