"""Answers of InternLM, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("internlm", "Code:\n<|action_start|><|interpreter|>\n```python\n1 + 1\n```<|action_end|>"),
    no_call("internlm", "The tokens\n<|action_start|> and <|action_start|><|plugin|> and <|action_end|>."),
    (
        "internlm",
        f'I look.<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {ULM}}}<|action_end|>\n'
        '<|action_start|><|plugin|>{"name": "now", "arguments": {}}<|action_end|>\nDone.',
        [Text("I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.")],
    ),
    # Intern-S1.
    (
        "internlm",
        '<|action_start|> <|plugin|>\n{"name": "now", "parameters": {"a": "<|action_end|>"}}\n<|action_end|>',
        calls(("now", '{"a": "<|action_end|>"}')),
    ),
    (
        "internlm",
        '<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"city": "U',
        calls(("weather", '{"city": "U')),
    ),
]
