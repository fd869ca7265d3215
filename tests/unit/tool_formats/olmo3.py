"""Answers of OLMo 3, and the pieces that they are read as."""

from inflight_gateway.pieces import Call, Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("olmo3", "Write\n<function_calls>, then </function_calls>."),
    (
        "olmo3",
        "I look.\n<function_calls>"
        """weather(city="Ulm \\"),", days=3, where={"x": [1.5, null], 'y': '</function_calls>'}, note=true)\n"""
        "now()</function_calls> Done.",
        [
            Text("I look."),
            *calls(
                (
                    "weather",
                    '{"city": "Ulm \\"),", "days": 3, '
                    '"where": {"x": [1.5, null], "y": "</function_calls>"}, "note": true}',
                ),
                ("now", "{}"),
            ),
            Text("Done."),
        ],
    ),
    ("olmo3", "<function_calls>\n[now( ),\nnow()]\n</function_calls>", calls(("now", "{}"), ("now", "{}"))),
    ("olmo3", "<function_calls>weather(days=3, city='Ul", calls(("weather", '{"days": 3'))),
    ("olmo3", "<function_calls>now(<function_calls>now()", [Call("now"), *calls(("now", "{}"))]),
    ("olmo3", "<function_calls>weather(3)</function_calls>", [Call("weather")]),
]
