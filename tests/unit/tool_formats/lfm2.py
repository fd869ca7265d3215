"""Answers of LFM2, and the pieces that they are read as."""

from inflight_gateway.pieces import Call, Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("lfm2", "Write\n<|tool_call_start|> [ and a name (of it)."),
    (
        "lfm2",
        "I look.\n<|tool_call_start|>"
        """[weather(city="Ulm \\"),", days=3, where={'x': [1.5, None], "y": '\\'}'}), now()]<|tool_call_end|> Done.""",
        [
            Text("I look."),
            *calls(
                ("weather", '{"city": "Ulm \\"),", "days": 3, "where": {"x": [1.5, null], "y": "\'}"}}'),
                ("now", "{}"),
            ),
            Text("Done."),
        ],
    ),
    (
        "lfm2",
        "<|tool_call_start|>now(a=True, b=some text)<|tool_call_end|>",
        calls(("now", '{"a": true, "b": "some text"}')),
    ),
    ("lfm2", '<|tool_call_start|>[weather(days=3, city="Ul', calls(("weather", '{"days": 3'))),
    ("lfm2", "<|tool_call_start|>[now(3)]<|tool_call_end|> Done.", [Call("now"), Text("Done.")]),
    # Models mix Python with JSON, and write what is neither.
    (
        "lfm2",
        "<|tool_call_start|>"
        r"""[now(a={'x': true, "y": [null, (1, False)]}, b='it\'s "\d+"', c='\ud83d\ude00\ud83d', d=1e999)]""",
        calls(
            (
                "now",
                r"""{"a": {"x": true, "y": [null, [1, false]]}, "b": "it's \"\\d+\"", "c": """
                '"\U0001f600\ufffd", "d": "1e999"}',
            )
        ),
    ),
    (
        "lfm2",
        "<|tool_call_start|>[now(a=\"one\ntwo\", b='''say \"it's\", so\n''', c=\"\", d={1, 2}, e=f(x))]",
        calls(("now", '{"a": "one\\ntwo", "b": "say \\"it\'s\\", so\\n", "c": "", "d": "{1, 2}", "e": "f(x)"}')),
    ),
    ("lfm2", "<|tool_call_start|>[now(a<|tool_call_end|> Done.", [Call("now"), Text("Done.")]),
]
