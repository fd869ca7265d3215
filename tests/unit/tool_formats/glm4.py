"""Answers of GLM 4 before 4.5, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("glm4", "\nThe function weather\n{} and\n weather\n{} and now\n are no calls, nor is\nrain\n{}\n\n"),
    no_call("glm4", "now\nor never"),
    no_call("glm4", "weather"),
    ("glm4", f"weather\n{ULM}", calls(("weather", ULM))),
    ("glm4", f"weather\n{ULM}<|assistant|>now\n{{}}", calls(("weather", ULM), ("now", "{}"))),
    (
        "glm4",
        '\nI look. \n\nnow\n{}\nweather\n{"days": 3}\n\nDone.\n',
        [Text("\nI look."), *calls(("now", "{}"), ("weather", '{"days": 3}')), Text("Done.\n")],
    ),
    ("glm4", "Wait.<|assistant|>now\n{}", [Text("Wait."), *calls(("now", "{}"))]),
    ("glm4", "now\n{}now\n{}", [*calls(("now", "{}")), Text("now\n{}")]),
    ("glm4", 'weather\n{"city": "U', calls(("weather", '{"city": "U'))),
]
