"""Answers of Llama 3, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("llama3", 'Write this:\n\n```json\n{"name": "my-app", "version": 1}\n```\nDone.'),
    no_call("llama3", 'Write this:\n{"name": "a"}\n\n{"name": "b"}\n'),
    no_call("llama3", '\n{"answer": 5}'),
    ("llama3", f'{{"name": "weather", "parameters": {ULM}}}', calls(("weather", ULM))),
    (
        "llama3",
        f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {ULM}}}; {{"name": "now"}}',
        calls(("weather", ULM), ("now", "{}")),
    ),
    # Llama 4 writes nothing between calls.
    ("llama3", f'{{"name": "weather", "parameters": {ULM}}}{{"name": "now"}}', calls(("weather", ULM), ("now", "{}"))),
    ("llama3", f'So: {{"name": "weather", "parameters": {ULM}}}', [Text("So:"), *calls(("weather", ULM))]),
    ("llama3", ' {"name": "Ann", "age": 5} ', [Text(' {"name": "Ann", "age": 5} ')]),
    ("llama3", '{"answer": {"name": "now", "age": 5}}', [Text('{"answer": {"name": "now", "age": 5}}')]),
    ("llama3", "<|python_tag|>print(1)", [Text("print(1)")]),
]
