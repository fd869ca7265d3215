"""Answers of models that write calls as Python does, and the pieces that they are read as."""

from inflight_gateway.pieces import Arguments, Call, Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("pythonic", "[1, 2] and\n[rain(a=1)]"),
    no_call("pythonic", "[now (), [weather(3)], now(x), [now"),
    no_call("pythonic", "now( 3 ) is a call, and now() is another."),
    no_call("pythonic", "\n[weather(ci"),
    (
        "pythonic",
        """ [weather(city="Ulm [now()]", days=3, where={'x': [1.5, None]}, note='\u00fc'), now()]\n""",
        calls(
            ("weather", '{"city": "Ulm [now()]", "days": 3, "where": {"x": [1.5, null]}, "note": "\u00fc"}'),
            ("now", "{}"),
        ),
    ),
    (
        "pythonic",
        "I look.\n\n[weather( city = 'Ulm' )]\n[now()] Done, see [now] and [weather(it)].",
        [
            Text("I look."),
            *calls(("weather", '{"city": "Ulm"}'), ("now", "{}")),
            Text("Done, see [now] and [weather(it)]."),
        ],
    ),
    ("pythonic", "<|python_start|>[now()]<|python_end|>\nDone.", [*calls(("now", "{}")), Text("\nDone.")]),
    ("pythonic", "weather(city='Ulm')\nnow()", calls(("weather", '{"city": "Ulm"}'), ("now", "{}"))),
    ("pythonic", "<|python_tag|>\n[\n  now()\n]", calls(("now", "{}"))),
    ("pythonic", "[now(gr\u00f6\u00dfe=3)]", calls(("now", '{"gr\u00f6\u00dfe": 3}'))),
    # Only tools of the request are called.
    ("pythonic", "[now(), rain(a=1)]", [*calls(("now", "{}")), Text(", rain(a=1)]")]),
    ("pythonic", "[weather(days=3, city='Ul", calls(("weather", '{"days": 3'))),
    (
        "pythonic",
        "[weather(days=3, Ulm), now()] or [now()]",
        [Call("weather"), Arguments('{"days": 3'), Text("or"), *calls(("now", "{}"))],
    ),
]
