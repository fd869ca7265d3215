"""Answers of Qwen 3 Coder and Seed-OSS, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("qwen3-coder", "I use `<function=` there.\n\nOk."),
    no_call("qwen3-coder", "The syntax is\n\n<function=...\n> or <function=a b>."),
    no_call("qwen3-coder", "The tag\n\n<tool_call>\nand its end </tool_call> belong together."),
    (
        "qwen3-coder",
        'Yes.\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n"{\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
        '<parameter=where>\n{"x": 1}\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=note>5</parameter>\n'
        "<parameter=more>\nTrue\n</parameter>\n</function>\n</tool_call>\n<function=now>\n</function>",
        [
            Text("Yes."),
            *calls(
                (
                    "weather",
                    '{"city": "Ulm\\n\\"{", "days": 3, "where": {"x": 1}, "unit": "C", "note": "5", "more": true}',
                ),
                ("now", "{}"),
            ),
        ],
    ),
    ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nU", calls(("weather", '{"city": "U'))),
    ("qwen3-coder", "<tool_call>none</tool_call>", [Text("<tool_call>none</tool_call>")]),
    (
        "qwen3-coder",
        "<function=weather><parameter=note>None</parameter><parameter=days>some</parameter></function>",
        calls(("weather", '{"note": null, "days": "some"}')),
    ),
    (
        "qwen3-coder",
        "Not <function=, but\n<tool_call>\n<function=now>\n<parameter=a>\nb\n</parameter>\n</tool_call>\n Done.",
        [Text("Not <function=, but"), *calls(("now", '{"a": "b"}')), Text("Done.")],
    ),
    ("qwen3-coder", "<tool_call>\n<function=now>\n</tool_call>", calls(("now", "{}"))),
    ("qwen3-coder", "<function=<function=now>\n</function>", [Text("<function="), *calls(("now", "{}"))]),
    (
        "qwen3-coder",
        "<function=weather><parameter=days>NaN</parameter></function>",
        calls(("weather", '{"days": "NaN"}')),
    ),
    no_call("seed-oss", "The tag\n\n<seed:tool_call>\nand its end </seed:tool_call> are not <tool_call>."),
    (
        "seed-oss",
        "I look.\n<seed:tool_call>\n<function=weather>\n<parameter=city>Ulm\n</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n<function=now>\n</function> Done.",
        [Text("I look."), *calls(("weather", '{"city": "Ulm\\n", "days": 3}'), ("now", "{}")), Text("Done.")],
    ),
    ("seed-oss", "<seed:tool_call><function=weather><parameter=city>U", calls(("weather", '{"city": "U'))),
]
