"""Answers of Phi-4-mini, with its own template and with vLLM's, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("phi4-mini", "Write\n<|tool_call|> and <|/tool_call|>, or functools[0]."),
    no_call("functools", "Python's\nfunctools[cache] and functools [{}]."),
    (
        "phi4-mini",
        f'I look.<|tool_call|>[{{"name": "weather", "arguments": {ULM}}}, {{"name": "now"}}]<|/tool_call|> Done.',
        [Text("I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.")],
    ),
    (
        "phi4-mini",
        '<|tool_call|>{"name": "now", "parameters": {"a": "]<|/tool_call|>"}}',
        calls(("now", '{"a": "]<|/tool_call|>"}')),
    ),
    ("phi4-mini", 'functools[{"name": "now", "arguments": {"a": [1]}}]', calls(("now", '{"a": [1]}'))),
    ("phi4-mini", "<|tool_call|>no<|/tool_call|>", [Text("<|tool_call|>no<|/tool_call|>")]),
    (
        "functools",
        f'functools[{{"name": "weather", "arguments": {ULM}}}, {{"name": "now", "arguments": {{}}}}]\nDone.',
        [*calls(("weather", ULM), ("now", "{}")), Text("Done.")],
    ),
    ("functools", 'functools[{"name": "weather", "arguments": {"city": "U', calls(("weather", '{"city": "U'))),
]
