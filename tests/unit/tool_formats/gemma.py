"""Answers of Gemma 4 and FunctionGemma, and the pieces that they are read as."""

from inflight_gateway.pieces import Arguments, Call, Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call("gemma4", "call:now{} <|tool_call>calls <|tool_call>call:a b{}"),
    (
        "gemma4",
        'I look.\n<|tool_call>call:weather{city:<|"|>Ulm {"[}<|"|>,days:3,where:{x:1.5,<|"|>y z<|"|>:[true,null]}}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
        [
            Text("I look."),
            *calls(
                ("weather", '{"city": "Ulm {\\"[}", "days": 3, "where": {"x": 1.5, "y z": [true, null]}}'),
                ("now", "{}"),
            ),
        ],
    ),
    (
        "gemma4",
        '<|tool_call>call:now{a: [1, 2,], "b":"c", d: some text}<tool_call|>',
        calls(("now", '{"a": [1, 2], "b": "c", "d": "some text"}')),
    ),
    ("gemma4", "<|tool_call>call:now{a}<tool_call|> Done.", [*calls(("now", "{")), Text("Done.")]),
    (
        "gemma4",
        "<|tool_call>call:now{a:<<|tool_call>call:now{}",
        [Call("now"), Arguments('{"a": '), *calls(("now", "{}"))],
    ),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>U', calls(("weather", '{"city": "U'))),
    no_call("functiongemma", "call:now{} <start_function_call>now{} <start_function_call>call:now"),
    (
        "functiongemma",
        'I look.\n<start_function_call>call:weather{city:<escape>Ulm {"[}<|"|><escape>,days:3,where:{x:[true,<escape>a'
        "<escape>]}}<end_function_call><start_function_call>call:now{}<end_function_call>",
        [
            Text("I look."),
            *calls(
                ("weather", '{"city": "Ulm {\\"[}<|\\"|>", "days": 3, "where": {"x": [true, "a"]}}'),
                ("now", "{}"),
            ),
        ],
    ),
    ("functiongemma", "<start_function_call>call:weather{city:<escape>U", calls(("weather", '{"city": "U'))),
]
