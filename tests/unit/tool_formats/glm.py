"""Answers of GLM, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("glm", 'Write\n<tool_call>\n{"name": "now"}\n</tool_call> there.'),
    (
        "glm",
        "I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>\nUlm </arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now</tool_call>\nDone.",
        [Text("I look."), *calls(("weather", '{"city": "\\nUlm ", "days": 3}'), ("now", "{}")), Text("Done.")],
    ),
    # GLM 4.7 writes no line breaks.
    (
        "glm-4.7",
        "I look.<tool_call>weather<arg_key>city</arg_key><arg_value>Neu\nUlm</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
        [Text("I look."), *calls(("weather", '{"city": "Neu\\nUlm", "days": 3}'), ("now", "{}"))],
    ),
    (
        "glm",
        '<tool_call>weather<arg_key>where</arg_key><arg_value>{"x": 1}</arg_value></tool_call>',
        calls(("weather", '{"where": {"x": 1}}')),
    ),
    ("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>U", calls(("weather", '{"city": "U'))),
]
