"""Answers of Functionary, and the pieces that they are read as."""

from inflight_gateway.pieces import Call, Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("llama3-functions", "Write\n<function=, then a name and >, as in <function=a b>{}</function>."),
    no_call("llama3-functions", 'So: {"name": "now"}</function>'),
    no_call("llama3-functions", "\n<function=now"),
    (
        "llama3-functions",
        f"I look.\n<function=weather>{ULM}</function><function=now>{{}}</function>\nDone.\n",
        [Text("I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.\n")],
    ),
    (
        "llama3-functions",
        '<function=now> {"a": "</function>"} </function>\n<function=now></function>',
        calls(("now", '{"a": "</function>"}'), ("now", "{}")),
    ),
    # Models forget the end, or write no JSON.
    (
        "llama3-functions",
        f"<function=weather>{ULM}\n<function=now>{{}} Done.",
        [*calls(("weather", ULM), ("now", "{}")), Text("Done.")],
    ),
    ("llama3-functions", '<function=now>{"a": [</function> Done.', [*calls(("now", '{"a": [')), Text("Done.")]),
    ("llama3-functions", "<function=now>none<function=now>{}", [Call("now"), *calls(("now", "{}"))]),
    ("llama3-functions", '<function=weather>{"city": "U', calls(("weather", '{"city": "U'))),
    (
        "llama3-functions",
        '<function=weather>"{\\"city\\": \\"Ulm\\"}"</function>',
        calls(("weather", '{"city": "Ulm"}')),
    ),
]
