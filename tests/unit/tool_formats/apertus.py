"""Answers of Apertus, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("apertus", "Write\n<|tools_prefix|> or\n<|tools_prefix|> [ and <|tools_suffix|>."),
    no_call("apertus", '<|tools_prefix|>[{"now"}, {}]<|tools_suffix|>\n'),
    no_call("apertus", '<|tools_prefix|>[{"": {}}]'),
    (
        "apertus",
        f'I look.\n<|tools_prefix|>[{{"weather": {ULM}}}, {{"now": {{}}}}]<|tools_suffix|>\nDone.\n',
        [Text("I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.\n")],
    ),
    (
        "apertus",
        '<|tools_prefix|> [ { "now" : {"a": "<|tools_suffix|>"} } ] <|tools_suffix|><|tools_prefix|>{"now": {}}',
        calls(("now", '{"a": "<|tools_suffix|>"}'), ("now", "{}")),
    ),
    ("apertus", '<|tools_prefix|>[{"weather": {"city": "U', calls(("weather", '{"city": "U'))),
    ("apertus", "<|tools_prefix|>[]<|tools_suffix|>", []),
]
