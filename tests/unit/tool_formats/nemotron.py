"""Answers of Nemotron Nano and Jamba, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    # MiniMax M1.
    (
        "jamba",
        '<tool_calls>\n{"name": "weather", "arguments": {"days": 3}}\n{"name": "now", "arguments": {}}\n</tool_calls>',
        calls(("weather", '{"days": 3}'), ("now", "{}")),
    ),
    no_call("nemotron", "Write\n<TOOLCALL> or\n<TOOLCALL> [ and </TOOLCALL>."),
    no_call("nemotron", '<TOOLCALL>[{"city": "Ulm"}]</TOOLCALL>\n'),
    (
        "nemotron",
        f'I look.\n\n<TOOLCALL>[{{"name": "weather", "arguments": {ULM}}}, {{"name": "now"}}]</TOOLCALL>\nDone.\n',
        [Text("I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.\n")],
    ),
    # The template shows the arguments as a text.
    (
        "nemotron",
        '<TOOLCALL>[{"name": "now", "arguments": "{\\"a\\": \\"</TOOLCALL>\\"}"}]</TOOLCALL>',
        calls(("now", '{"a": "</TOOLCALL>"}')),
    ),
    (
        "nemotron",
        '<TOOLCALL>{"name": "now", "arguments": {}}<TOOLCALL>[{"name": "now"}]',
        calls(("now", "{}"), ("now", "{}")),
    ),
    ("nemotron", '<TOOLCALL>[{"name": "weather", "arguments": {"city": "U', calls(("weather", '{"city": "U'))),
    no_call("jamba", "Write <tool_calls> or </tool_calls>."),
    (
        "jamba",
        f' I look. <tool_calls>[\n    {{"name": "weather", "arguments": {ULM}}},\n    {{"name": "now", "id": "7"}}\n]'
        "</tool_calls>\nDone.",
        [Text(" I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.")],
    ),
]
