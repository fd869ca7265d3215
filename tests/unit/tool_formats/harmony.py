"""Answers of gpt-oss, and the pieces that they are read as."""

from inflight_gateway.pieces import Text, Thought
from tests.unit.tool_formats.case import ULM, Case, calls

CASES: list[Case] = [
    ("harmony", "<|channel|>final<|message|>It rains.\n", [Text("It rains.\n")]),
    (
        "harmony",
        "<|channel|>analysis<|message|>Ulm? So.<|end|><|start|>assistant<|channel|>final<|message|>It rains.<|return|>",
        [Thought("Ulm? So."), Text("It rains.")],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ULM}<|call|>",
        [Thought("One.\n\nTwo."), Text("I look."), *calls(("weather", ULM))],
    ),
    # The recipient comes first where the prompt ends with the role. Models also forget what they should write.
    ("harmony", f" to=functions.weather<|channel|>commentary json<|message|>{ULM}<|call|>", calls(("weather", ULM))),
    ("harmony", "<|channel|>commentary to=now<|message|>", calls(("now", "{}"))),
    (
        "harmony",
        "<|channel|>analysis<|message|>So.<|channel|>final<|message|>Yes.",
        [Thought("So."), Text("Yes.")],
    ),
    (
        "harmony",
        '<|channel|>commentary to=functions.now<|message|>{"a": "<|end|>"}',
        calls(("now", '{"a": "<|end|>"}')),
    ),
    (
        "harmony",
        "<|channel|>analysis to=python code<|message|>print(1)<|call|><|start|>assistant<|channel|>final<|mess",
        [Thought("print(1)")],
    ),
    # It continues a message of the prompt.
    ("harmony", "and it rains.<|return|>", [Text("and it rains.")]),
    ("harmony", "", []),
]
