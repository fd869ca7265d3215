"""Answers of Hermes and Qwen, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    # Several calls between one pair of tags, each in a line.
    (
        "hermes",
        '<tool_call>\n{"name": "now"}\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call> Done.',
        [*calls(("now", "{}"), ("weather", '{"city": "Ulm"}')), Text("Done.")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "now"} {"a": 1}</tool_call>',
        [*calls(("now", "{}")), Text('{"a": 1}')],
    ),
    no_call("hermes", "Write\n\n<tool_call>\n\nbefore a call and </tool_call> after it."),
    no_call("hermes", '<tool_call>\n{"name": 5}\n</tool_call>\n'),
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>', calls(("weather", ULM))),
    (
        "hermes",
        f'I look.\n<tool_call>{{"arguments": {ULM}, "name": "weather"}}</tool_call>\n'
        '<tool_call>{"name":"now"}</tool_call>\n Done.\n',
        [Text("I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.\n")],
    ),
    ("hermes", ' 1 < 2, <tool_box> and\n{"name": "now"}\n ', [Text(' 1 < 2, <tool_box> and\n{"name": "now"}\n ')]),
    ("hermes", "<tool_call>\nno</tool_call> yes", [Text("<tool_call>\nno</tool_call> yes")]),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', [Text('<tool_call>{"name": 5}</tool_call>')]),
    ("hermes", '<tool_call>{"city": "Ulm"}</tool_call>', [Text('<tool_call>{"city": "Ulm"}</tool_call>')]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "U', calls(("weather", '{"city": "U'))),
    ("hermes", '<tool_call>{"name": "wea', [Text('<tool_call>{"name": "wea')]),
    # The gateway would not take a call without a name back.
    (
        "hermes",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        [Text('<tool_call>{"name": "", "arguments": {}}</tool_call>')],
    ),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}', calls(("now", '{"a": 1}'))),
    (
        "hermes",
        '<tool_call>{"id": 7, "name": "now", "arguments": null}}</tool_call>',
        [*calls(("now", "null")), Text("}")],
    ),
    ("hermes", '<tool_call>{"name": "n\\u00f6w", "arguments": [1, "]"]}', calls(("nöw", '[1, "]"]'))),
    (
        "hermes",
        '<tool_call>{"name": "a\\ud83d", "arguments": "\\ude00\\ud83d\\ude00"}</tool_call>',
        calls(("a\ufffd", "\ufffd\U0001f600")),
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": [</tool_call> Done.',
        [*calls(("now", '{"a": [')), Text("Done.")],
    ),
]
