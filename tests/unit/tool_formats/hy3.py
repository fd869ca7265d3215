"""Answers of Hy3, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("hy3", "The section\n<tool_calls> has <tool_call>name<tool_sep> in it, and ends </tool_calls>.\n"),
    (
        "hy3",
        "I look.<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Neu Ulm</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now<tool_sep>\n</tool_call>\n"
        "</tool_calls>",
        [Text("I look."), *calls(("weather", '{"city": "Neu Ulm", "days": 3}'), ("now", "{}"))],
    ),
    (
        "hy3",
        "<tool_calls><tool_call>weather<tool_sep><arg_key>city</arg_key><arg_value>U",
        calls(("weather", '{"city": "U')),
    ),
    ("hy3", "<tool_calls><tool_call>now<tool_sep></tool_call></tool_calls>", calls(("now", "{}"))),
]
