"""Answers of Command R7B and Command A, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("cohere", "Write\n<|START_ACTION|> or\n<|START_ACTION|> [ and <|END_ACTION|>."),
    (
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        + ULM
        + '},\n    {"tool_call_id": "1", "tool_name": "now"}\n]<|END_ACTION|>',
        calls(("weather", ULM), ("now", "{}")),
    ),
    ("cohere", "<|START_RESPONSE|>It rains.\n\nSo [1].<|END_RESPONSE|>", [Text("It rains.\n\nSo [1].")]),
    ("cohere", "<|START_TEXT|>It rains.\n<|END_TEXT|>", [Text("It rains.")]),
    ("cohere", " It rains. ", [Text(" It rains. ")]),
    (
        "cohere",
        'I look.<|START_ACTION|>{"tool_name": "now", "parameters": {"a": "<|END_ACTION|>"}}<|END_ACTION|>'
        "<|START_RESPONSE|>Done.",
        [Text("I look."), *calls(("now", '{"a": "<|END_ACTION|>"}')), Text("Done.")],
    ),
    ("cohere", "<|START_ACTION|>none<|END_ACTION|>", [Text("<|START_ACTION|>none<|END_ACTION|>")]),
    (
        "cohere",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "U',
        calls(("weather", '{"city": "U')),
    ),
]
