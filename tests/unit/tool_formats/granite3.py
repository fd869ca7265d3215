"""Answers of Granite 3, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("granite3", "Write\n<|tool_call|> [ or\n<tool_call>."),
    (
        "granite3",
        f'I look.\n<|tool_call|>[{{"name": "weather", "arguments": {ULM}}}, {{"name":"now"}}]\n',
        [Text("I look."), *calls(("weather", ULM), ("now", "{}"))],
    ),
    (
        "granite3",
        f'<|tool_call|> {{"type": "function", "function": "weather", "arguments": {ULM}}} Done.',
        [*calls(("weather", ULM)), Text("Done.")],
    ),
    ("granite3", '<tool_call>\n[\n{"name": "now", "arguments": {}}\n]', calls(("now", "{}"))),
    (
        "granite3",
        '<|tool_call|>[{"name": "now", "arguments": {"a": "<|tool_call|>[',
        calls(("now", '{"a": "<|tool_call|>[')),
    ),
    ("granite3", "<|tool_call|>[]", []),
]
