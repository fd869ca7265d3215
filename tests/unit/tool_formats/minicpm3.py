"""Answers of MiniCPM 3, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("minicpm3", "Write\n<|tool_call_start|>\n```python\n1 + 1\n```"),
    (
        "minicpm3",
        'I look.\n<|tool_call_start|>\n```python\nweather(city="Ulm (\\"),",days=3)\nnow()\n```\n'
        "<|tool_call_end|>\nDone.",
        [Text("I look."), *calls(("weather", '{"city": "Ulm (\\"),", "days": 3}'), ("now", "{}")), Text("Done.")],
    ),
    (
        "minicpm3",
        "<|tool_call_start|>\n```python\nnow(a=True, b=null)\n```\n<|tool_call_end|>",
        calls(("now", '{"a": true, "b": null}')),
    ),
    (
        "minicpm3",
        "<|tool_call_start|>now(a='b')<|tool_call_end|>",
        calls(("now", '{"a": "b"}')),
    ),
    ("minicpm3", '<|tool_call_start|>\n```python\nweather(days=3, city="U', calls(("weather", '{"days": 3'))),
]
