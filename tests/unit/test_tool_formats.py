"""Each tool format reads calls as they arrive, however the text is cut, and says how calls are written.

The answers of each family are in the folder tool_formats.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_gateway.pieces import Arguments, Call, Piece, Text, merged
from inflight_gateway.reader import Reader
from inflight_gateway.source import Source
from inflight_gateway.tool_formats import FORMATS, WrittenCall
from tests.unit.tool_formats import dsml
from tests.unit.tool_formats.all_cases import CASES
from tests.unit.tool_formats.case import calls
from tests.unit.tool_formats.markers import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_END,
    DEEPSEEK_SEP,
    KIMI_ARGUMENTS,
    KIMI_CALL,
    KIMI_CALLS,
    KIMI_CALLS_END,
    KIMI_END,
)
from tests.unit.tool_formats.reading import TOOLS, read


@pytest.mark.parametrize(("name", "text", "expected"), CASES, ids=[f"{name}-{text[:50]}" for name, text, _ in CASES])
def test_an_answer_is_read_alike_however_it_is_cut(name: str, text: str, expected: list[Piece]) -> None:
    assert read(name, [text]) == expected
    assert read(name, text) == expected  # One character at a time.
    for at in range(1, len(text)):
        assert read(name, [text[:at], text[at:]]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[now(), weather(city='Ulm')] Done.", [*calls(("now", "{}"), ("weather", '{"city": "Ulm"}')), Text("Done.")]),
        ("I look. [now()]\n[now()]", [Text("I look."), *calls(("now", "{}"), ("now", "{}"))]),
        ("<|python_start|>[now()]<|python_end|>", calls(("now", "{}"))),
        (" [ now()]", [Text(" [ now()]")]),
        ("now()", [Text("now()")]),
        ("\nnow()", [Text("\nnow()")]),
        ("[now(),weather()]", [*calls(("now", "{}")), Text(",weather()]")]),
        ("[now() weather()]", [*calls(("now", "{}")), Text("weather()]")]),
        ("[now(), ", [*calls(("now", "{}")), Text(", ")]),
    ],
)
def test_enforced_pythonic_calls_are_only_those_which_the_grammar_enforces(text: str, expected: list[Piece]) -> None:
    form = FORMATS["pythonic"].of_enforced_answers()
    for parts in ([text], text):
        reader = Reader(lambda source, emit: form.read(source, emit, TOOLS))
        assert merged([piece for part in parts for piece in reader.feed(part)] + reader.end()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"name": "now", "arguments": {}}] Done.', [*calls(("now", "{}")), Text("Done.")]),
        (
            'I look. [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
            [Text("I look."), *calls(("now", "{}"), ("now", "{}"))],
        ),
        (' [ {"name": "now"}]', [Text(' [ {"name": "now"}]')]),
        ('[{"name": "now"}]', [Text('[{"name": "now"}]')]),
        (
            '[{"name": "now", "arguments": {}},{"name": "now"}]',
            [*calls(("now", "{}")), Text(',{"name": "now"}]')],
        ),
    ],
)
def test_enforced_calls_of_xlam_are_only_those_which_the_grammar_enforces(text: str, expected: list[Piece]) -> None:
    form = FORMATS["xlam"].of_enforced_answers()
    for parts in ([text], text):
        reader = Reader(lambda source, emit: form.read(source, emit, TOOLS))
        assert merged([piece for part in parts for piece in reader.feed(part)] + reader.end()) == expected


@pytest.mark.parametrize(
    "beginning",
    [
        *("<function=", "<tool_call>", "[TOOL_CALLS]", "[TOOL_CALLS]a", '{"name": "', "<|tool_call>call:a"),
        *(
            "<function_calls>a",
            "[now(a",
            "[now(",
            "<|tool_call|>",
            "<|tool_call|>[",
            "functools[{",
            "<|START_ACTION|>[",
            '<|tools_prefix|>[{"',
            "<TOOLCALL>[",
            "<start_function_call>call:a",
            '[{"name": "now", "arguments": ',
            '<minimax:tool_call><invoke name="',
            '<minimax:tool_call><invoke name="a">',
            f'{dsml.BEGIN}{dsml.INVOKE}a">',
            "<tool_calls><tool_call>a<tool_sep>",
            '<|action_start|><|plugin|>{"name": "',
            '<|tool_call_start|>\n```python\nnow("',
            "now\n{",
            "now\n",
        ),
        *(DEEPSEEK_CALLS, DEEPSEEK_CALL, f"{DEEPSEEK_CALL}function{DEEPSEEK_SEP}a", f"{KIMI_CALLS}{KIMI_CALL}a"),
    ],
)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_beginnings_of_calls_are_read_once(name: str, beginning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading each of them up to the end of the answer would hold up all other users."""
    put_back, characters = Source.put_back, 0

    def counted(source: Source, text: str) -> None:
        nonlocal characters
        characters += len(text)
        put_back(source, text)

    monkeypatch.setattr(Source, "put_back", counted)
    answer = beginning * 300
    assert read(name, [answer])
    assert characters <= 2 * len(answer)


def test_calls_of_harmony_are_text_where_there_are_no_tools() -> None:
    text = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    assert read("harmony", [text], {}) == [Text("{}")]


def test_calls_of_cohere_are_text_where_there_are_no_tools() -> None:
    text = '<|START_ACTION|>[{"tool_name": "now"}]<|END_ACTION|>'
    assert read("cohere", [f"<|START_RESPONSE|>{text}<|END_RESPONSE|>"], {}) == [Text(text)]


def test_pieces_of_one_kind_are_joined_across_empty_ones() -> None:
    pieces = [Text("a"), Arguments(""), Text("b"), Call("now"), Call("now"), Arguments("{"), Text(""), Arguments("}")]
    assert merged(pieces) == [Text("ab"), Call("now"), Call("now"), Arguments("{}")]


_PARTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", '{"name": "now", "arguments": ']
_PARTS += ["<|channel|>", "final", "analysis", " to=functions.now", "<|message|>", "<|end|>", "<|start|>assistant"]
_PARTS += ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_call>now"]
_PARTS += ["<|tool_call_start|>[now(", "<|tool_call_end|>", "a=", "'", "(", ")"]
_PARTS += ["<function_calls>", "</function_calls>", "[now(", "weather(city=", "<|python_start|>", "\\"]
_PARTS += ["<|tool_call|>", "<|/tool_call|>", "functools["]
_PARTS += ["<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", '"tool_name": "now"']
_PARTS += ["<TOOLCALL>[", "</TOOLCALL>", "<|tools_prefix|>[{", '"now": ', "<|tools_suffix|>"]
_PARTS += ["<|tool_call>call:now", "<tool_call|>", '<|"|>', "a:"]
_PARTS += ["<start_function_call>call:now", "<end_function_call>", "<escape>", '[{"name": "now", "arguments": ']
_PARTS += [DEEPSEEK_CALLS, DEEPSEEK_CALL, f"function{DEEPSEEK_SEP}", DEEPSEEK_SEP, DEEPSEEK_END, DEEPSEEK_CALLS_END]
_PARTS += ["<minimax:tool_call>", '<invoke name="now">', '<parameter name="city">', "</invoke>", "</minimax:tool_call>"]
_PARTS += [
    dsml.BEGIN,
    dsml.BEGIN_V4,
    f'{dsml.INVOKE}weather">',
    f'<{dsml.DSML}parameter name="city"',
    ' string="true">',
]
_PARTS += [f"</{dsml.DSML}parameter>", dsml.INVOKE_END, dsml.END, dsml.END_V4]
_PARTS += ["<tool_calls>", "now<tool_sep>", "</tool_calls>"]
_PARTS += ["<|action_start|>", "<|plugin|>", "<|action_end|>"]
_PARTS += ["<|assistant|>", "now\n", "\nweather\n{"]
_PARTS += ["<|tool_call_start|>\n```python\n", "```python"]
_PARTS += ["```", "json", KIMI_CALLS, f"{KIMI_CALL}functions.", "now:0", KIMI_ARGUMENTS, KIMI_END, KIMI_CALLS_END]
_PARTS += [
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<function=weather>",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    *'{}[]",:\\ \n;x',
    '"parameters": ',
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.lists(st.sampled_from(_PARTS), max_size=20))
def test_no_text_is_too_odd(name: str, parts: Sequence[str]) -> None:
    assert read(name, parts) == read(name, ["".join(parts)]) == read(name, "".join(parts))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_written_calls_are_read_back(name: str) -> None:
    form = FORMATS[name]
    written = form.written([WrittenCall("weather", {"city": "Ulm", "days": 3}), WrittenCall("now", {})])
    pieces = read(name, ["Yes.\n", written])
    assert [piece for piece in pieces if not isinstance(piece, Arguments)] == [
        Text("Yes."),
        Call("weather"),
        Call("now"),
    ]
    assert [json.loads(p.text) for p in pieces if isinstance(p, Arguments)] == [{"city": "Ulm", "days": 3}, {}]
    assert "Tells the weather." in form.instructions(list(TOOLS.values()))


_TEXTS = st.text(max_size=5) | st.lists(st.sampled_from([*_PARTS, "'''", "\u2028", "\x00"]), max_size=4).map("".join)
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS
_VALUES = st.recursive(_LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(_TEXTS, one, max_size=3))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(
        [
            "apertus",
            "cohere",
            "functools",
            "glm4",
            "granite3",
            "internlm",
            "jamba",
            "lfm2",
            "llama3-functions",
            "minicpm3",
            "nemotron",
            "olmo3",
            "phi4-mini",
            "pythonic",
            "xlam",
        ]
    ),
    st.dictionaries(st.sampled_from(["city", "a_2", "gr\u00f6\u00dfe"]), _VALUES),
    st.integers(1, 9),
)
def test_written_arguments_are_read_back_whatever_they_are(name: str, arguments: dict[str, Any], size: int) -> None:
    written = FORMATS[name].written([WrittenCall("weather", arguments), WrittenCall("now", {})])
    parts = [written[at : at + size] for at in range(0, len(written), size)]
    first, found, *second = read(name, parts)
    assert [first, *second] == [Call("weather"), *calls(("now", "{}"))]
    assert isinstance(found, Arguments)
    assert json.loads(found.text) == arguments
    _, in_python = read("pythonic", [f"[now(a={arguments!r})]"])
    assert isinstance(in_python, Arguments)
    assert json.loads(in_python.text) == {"a": arguments}


# Two keys, of which the second is cut off.
CUT_OFF = dsml.weather(dsml.argument("days", dsml.JSON, "3"), dsml.argument("unit", dsml.TEXT, "C")).partition("it")[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("glm", "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>uni"),
        ("glm-4.7", "<tool_call>weather<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>unit</arg_"),
        ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=uni"),
        ("deepseek-v4", f"{dsml.BEGIN_V4}{CUT_OFF}"),
    ],
)
def test_a_key_that_was_cut_off_is_no_key(name: str, text: str) -> None:
    assert read(name, [text]) == calls(("weather", '{"days": 3'))


@pytest.mark.parametrize("value", ["tru", "-", "1.5", '<|"'])
def test_a_value_that_was_cut_off_is_no_value(value: str) -> None:
    assert read("gemma4", [f"<|tool_call>call:weather{{days:3,unit:{value}"]) == calls(
        ("weather", '{"days": 3, "unit": ')
    )


@pytest.mark.parametrize(
    ("name", "marker"),
    [
        ("glm", "<tool_call>"),
        ("hermes", "<tool_call>"),
        ("qwen3-coder", "<tool_call>\n<function="),
        ("llama3-functions", "<function="),
        ("gemma4", "<|tool_call>call:"),
        ("minimax-m2", '<minimax:tool_call><invoke name="'),
        ("hy3", "<tool_calls><tool_call>"),
        ("kimi-k2", KIMI_CALL),
        ("deepseek-v3.1", DEEPSEEK_CALL),
        ("lfm2", "<|tool_call_start|>["),
    ],
)
def test_text_about_a_marker_comes_as_soon_as_it_is_there(name: str, marker: str) -> None:
    reader = Reader(lambda source, emit: FORMATS[name].read(source, emit, TOOLS))
    assert merged(reader.feed(f"Calls begin with {marker} in this format")) == [
        Text(f"Calls begin with {marker} in this format")
    ]
    assert reader.feed(".") == [Text(".")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "U'),
        ("llama3", '{"name": "weather", "parameters": {"city": "U'),
        ("mistral-args", '[TOOL_CALLS]weather[ARGS]{"city": "U'),
        ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nU"),
        ("seed-oss", "<seed:tool_call>\n<function=weather>\n<parameter=city>U"),
        ("llama3-functions", '<function=weather>{"city": "U'),
        ("harmony", '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "U'),
        ("gemma4", '<|tool_call>call:weather{city:<|"|>U'),
        ("functiongemma", "<start_function_call>call:weather{city:<escape>U"),
        ("xlam", '[{"name": "weather", "arguments": {"city": "U'),
        ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>U"),
        ("deepseek-v3", f'{DEEPSEEK_CALLS}{DEEPSEEK_CALL}function{DEEPSEEK_SEP}weather\n```json\n{{"city": "U'),
        ("deepseek-v3.1", f'{DEEPSEEK_CALLS}{DEEPSEEK_CALL}weather{DEEPSEEK_SEP}{{"city": "U'),
        ("deepseek-v3.2", f'{dsml.BEGIN}{dsml.INVOKE}weather"><{dsml.DSML}parameter name="city" string="true">U'),
        ("deepseek-v4", f'{dsml.BEGIN_V4}{dsml.INVOKE}weather"><{dsml.DSML}parameter name="city" string="true">U'),
        ("deepseek-v4.1", f'<{dsml.DSML} calls><{dsml.DSML} invoke name="weather">{{"city": "U'),
        ("glm4", 'weather\n{"city": "U'),
        ("hy3", "<tool_calls><tool_call>weather<tool_sep><arg_key>city</arg_key><arg_value>U"),
        ("internlm", '<|action_start|><|plugin|>{"name": "weather", "parameters": {"city": "U'),
        ("kimi-k2", f'{KIMI_CALLS}{KIMI_CALL}functions.weather:0{KIMI_ARGUMENTS}{{"city": "U'),
        ("minimax-m2", '<minimax:tool_call><invoke name="weather"><parameter name="city">U'),
        ("nemotron", '<TOOLCALL>[{"name": "weather", "arguments": {"city": "U'),
        ("apertus", '<|tools_prefix|>[{"weather": {"city": "U'),
        ("cohere", '<|START_ACTION|>[{"tool_name": "weather", "parameters": {"city": "U'),
        ("granite3", '<|tool_call|>[{"name": "weather", "arguments": {"city": "U'),
        ("phi4-mini", '<|tool_call|>[{"name": "weather", "arguments": {"city": "U'),
    ],
)
def test_arguments_come_as_soon_as_they_are_there(name: str, text: str) -> None:
    reader = Reader(lambda source, emit: FORMATS[name].read(source, emit, TOOLS))
    assert reader.feed(text) == [Call("weather"), Arguments('{"city": "U')]
    assert reader.feed("l") == [Arguments("l")]
    assert reader.feed("m") == [Arguments("m")]
