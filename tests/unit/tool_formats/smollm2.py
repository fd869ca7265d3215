"""Answers of SmolLM2, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls

CASES: list[Case] = [
    (
        "smollm2",
        f'<tool_call>[{{"name": "weather", "arguments": {ULM}}}, {{"name": "now", "arguments": {{}}}}]</tool_call>',
        calls(("weather", ULM), ("now", "{}")),
    ),
    ("smollm2", "<tool_call>[]</tool_call>", []),
    (
        "smollm2",
        '<tool_call>[{"name": "now", "arguments": {}}, {"name": "no',
        [*calls(("now", "{}")), Text('{"name": "no')],
    ),
    ("smollm2", "<tool_call>[nothing]</tool_call>", [Text("<tool_call>[nothing]</tool_call>")]),
]
