"""Each tool format reads calls as they arrive, however the text is cut, and says how calls are written."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_gateway.pieces import Arguments, Call, Piece, Text, merged
from inflight_gateway.reader import Reader
from inflight_gateway.source import Source
from inflight_gateway.tool_formats import FORMATS, Tool, Unenforceable, WrittenCall

_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "where": {"$ref": "#/$defs/Place"},
    },
    "required": ["city"],
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
TOOLS = {"weather": Tool("weather", _SCHEMA, "Tells the weather."), "now": Tool("now")}
ULM = '{"city": "Ulm {\\"[}", "days": 3}'


def read(name: str, parts: Iterable[str], tools: dict[str, Tool] = TOOLS) -> list[Piece]:
    reader = Reader(lambda source, emit: FORMATS[name].read(source, emit, tools))
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return merged([*pieces, *reader.end()])


# What only looks like a call is text, of which nothing is lost.
NO_CALLS = [
    ("hermes", "Write\n\n<tool_call>\n\nbefore a call and </tool_call> after it."),
    ("hermes", '<tool_call>\n{"name": 5}\n</tool_call>\n'),
    ("llama3", 'Write this:\n\n```json\n{"name": "my-app", "version": 1}\n```\nDone.'),
    ("llama3", 'Write this:\n{"name": "a"}\n\n{"name": "b"}\n'),
    ("llama3", '\n{"answer": 5}'),
    ("mistral", "Write\n[TOOL_CALLS] \nbefore a call."),
    ("mistral", "Write\n[TOOL_CALLS] before a call, then its arguments, such as {}."),
    ("qwen3-coder", "I use `<function=` there.\n\nOk."),
    ("qwen3-coder", "The syntax is\n\n<function=...\n> or <function=a b>."),
    ("qwen3-coder", "The tag\n\n<tool_call>\nand its end </tool_call> belong together."),
]


def calls(*pairs: tuple[str, str]) -> list[Piece]:
    return [piece for name, arguments in pairs for piece in (Call(name), Arguments(arguments))]


CASES: list[tuple[str, str, list[Piece]]] = [
    *((name, text, [Text(text)]) for name, text in NO_CALLS),
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>', calls(("weather", ULM))),
    (
        "hermes",
        f'I look.\n<tool_call>{{"arguments": {ULM}, "name": "weather"}}</tool_call>\n'
        '<tool_call>{"name":"now"}</tool_call>\n Done.\n',
        [Text("I look."), *calls(("weather", ULM), ("now", "{}")), Text("Done.\n")],
    ),
    ("hermes", ' 1 < 2, <tool_box> and\n{"name": "now"}\n ', [Text(' 1 < 2, <tool_box> and\n{"name": "now"}\n ')]),
    ("hermes", "<tool_call>\nno</tool_call> yes", [Text("<tool_call>\nno</tool_call> yes")]),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', [Text('<tool_call>{"name": 5}</tool_call>')]),
    ("hermes", '<tool_call>{"city": "Ulm"}</tool_call>', [Text('<tool_call>{"city": "Ulm"}</tool_call>')]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "U', calls(("weather", '{"city": "U'))),
    ("hermes", '<tool_call>{"name": "wea', [Text('<tool_call>{"name": "wea')]),
    # The gateway would not take a call without a name back.
    (
        "hermes",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        [Text('<tool_call>{"name": "", "arguments": {}}</tool_call>')],
    ),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}', calls(("now", '{"a": 1}'))),
    (
        "hermes",
        '<tool_call>{"id": 7, "name": "now", "arguments": null}}</tool_call>',
        [*calls(("now", "null")), Text("}")],
    ),
    ("hermes", '<tool_call>{"name": "n\\u00f6w", "arguments": [1, "]"]}', calls(("nöw", '[1, "]"]'))),
    (
        "hermes",
        '<tool_call>{"name": "a\\ud83d", "arguments": "\\ude00\\ud83d\\ude00"}</tool_call>',
        calls(("a\ufffd", "\ufffd\U0001f600")),
    ),
    (
        "smollm2",
        f'<tool_call>[{{"name": "weather", "arguments": {ULM}}}, {{"name": "now", "arguments": {{}}}}]</tool_call>',
        calls(("weather", ULM), ("now", "{}")),
    ),
    ("smollm2", "<tool_call>[]</tool_call>", []),
    (
        "smollm2",
        '<tool_call>[{"name": "now", "arguments": {}}, {"name": "no',
        [*calls(("now", "{}")), Text('{"name": "no')],
    ),
    ("smollm2", "<tool_call>[nothing]</tool_call>", [Text("<tool_call>[nothing]</tool_call>")]),
    ("llama3", f'{{"name": "weather", "parameters": {ULM}}}', calls(("weather", ULM))),
    (
        "llama3",
        f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {ULM}}}; {{"name": "now"}}',
        calls(("weather", ULM), ("now", "{}")),
    ),
    ("llama3", f'So: {{"name": "weather", "parameters": {ULM}}}', [Text("So:"), *calls(("weather", ULM))]),
    ("llama3", ' {"name": "Ann", "age": 5} ', [Text(' {"name": "Ann", "age": 5} ')]),
    ("llama3", '{"answer": {"name": "now", "age": 5}}', [Text('{"answer": {"name": "now", "age": 5}}')]),
    ("llama3", "<|python_tag|>print(1)", [Text("print(1)")]),
    ("mistral", f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ULM}}}]', calls(("weather", ULM))),
    (
        "mistral",
        f'Well.[TOOL_CALLS]{{"name": "weather", "arguments": {ULM}}}',
        [Text("Well."), *calls(("weather", ULM))],
    ),
    (
        "mistral-args",
        f"[TOOL_CALLS]weather[ARGS]{ULM}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{{}}[TOOL_CALLS]now{{}}",
        calls(("weather", ULM), ("now", "{}"), ("now", "{}")),
    ),
    ("mistral", "[TOOL_CALLS] nothing", [Text("[TOOL_CALLS] nothing")]),
    ("mistral", "[TOOL_CALLS]a[TOOL_CALLS]now{}", [Text("[TOOL_CALLS]a"), *calls(("now", "{}"))]),
    ("mistral", "[TOOL_CALLS]a[CALL_ID]1[TOOL_CALLS]now{}", [Text("[TOOL_CALLS]a[CALL_ID]1"), *calls(("now", "{}"))]),
    (
        "qwen3-coder",
        'Yes.\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n"{\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
        '<parameter=where>\n{"x": 1}\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=note>5</parameter>\n'
        "<parameter=more>\nTrue\n</parameter>\n</function>\n</tool_call>\n<function=now>\n</function>",
        [
            Text("Yes."),
            *calls(
                (
                    "weather",
                    '{"city": "Ulm\\n\\"{", "days": 3, "where": {"x": 1}, "unit": "C", "note": "5", "more": true}',
                ),
                ("now", "{}"),
            ),
        ],
    ),
    ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nU", calls(("weather", '{"city": "U'))),
    ("qwen3-coder", "<tool_call>none</tool_call>", [Text("<tool_call>none</tool_call>")]),
    (
        "qwen3-coder",
        "<function=weather><parameter=note>None</parameter><parameter=days>some</parameter></function>",
        calls(("weather", '{"note": null, "days": "some"}')),
    ),
    (
        "qwen3-coder",
        "Not <function=, but\n<tool_call>\n<function=now>\n<parameter=a>\nb\n</parameter>\n</tool_call>\n Done.",
        [Text("Not <function=, but"), *calls(("now", '{"a": "b"}')), Text("Done.")],
    ),
    ("qwen3-coder", "<tool_call>\n<function=now>\n</tool_call>", calls(("now", "{}"))),
    ("qwen3-coder", "<function=<function=now>\n</function>", [Text("<function="), *calls(("now", "{}"))]),
    (
        "qwen3-coder",
        "<function=weather><parameter=days>NaN</parameter></function>",
        calls(("weather", '{"days": "NaN"}')),
    ),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_an_answer_is_read_alike_however_it_is_cut(name: str, text: str, expected: list[Piece]) -> None:
    assert read(name, [text]) == expected
    assert read(name, text) == expected  # One character at a time.
    for at in range(1, len(text)):
        assert read(name, [text[:at], text[at:]]) == expected


@pytest.mark.parametrize("beginning", ["<function=", "<tool_call>", "[TOOL_CALLS]", "[TOOL_CALLS]a", '{"name": "'])
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


def test_pieces_of_one_kind_are_joined_across_empty_ones() -> None:
    pieces = [Text("a"), Arguments(""), Text("b"), Call("now"), Call("now"), Arguments("{"), Text(""), Arguments("}")]
    assert merged(pieces) == [Text("ab"), Call("now"), Call("now"), Arguments("{}")]


_PARTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", '{"name": "now", "arguments": ']
_PARTS += ["<function=weather>", "<parameter=city>", "</parameter>", "</function>", *'{}[]",:\\ \n;x', '"parameters": ']


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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "U'),
        ("llama3", '{"name": "weather", "parameters": {"city": "U'),
        ("mistral-args", '[TOOL_CALLS]weather[ARGS]{"city": "U'),
        ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nU"),
    ],
)
def test_arguments_come_as_soon_as_they_are_there(name: str, text: str) -> None:
    reader = Reader(lambda source, emit: FORMATS[name].read(source, emit, TOOLS))
    assert reader.feed(text) == [Call("weather"), Arguments('{"city": "U')]
    assert reader.feed("l") == [Arguments("l")]
    assert reader.feed("m") == [Arguments("m")]


def instance(tag: dict[str, Any], values: dict[str, Any]) -> str:
    """The text that a structural tag allows, with these values of parameters or these arguments."""
    match tag["type"]:
        case "const_string":
            return str(tag["value"])
        case "json_schema":
            return json.dumps(values) if tag["json_schema"]["type"] == "object" else "3"
        case "any_text":
            return "Ulm"
        case "sequence":
            return "".join(instance(one, values) for one in tag["elements"])
        case "or":
            return instance(tag["elements"][-1], values)
        case "tag":
            return f"{tag['begin']}{instance(tag['content'], values)}{tag['end']}"
        case "tags_with_separator":
            return str(tag["separator"]).join(instance(one, values) for one in tag["tags"])
    raise AssertionError(tag["type"])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_the_tags_allow_is_read_as_calls(name: str) -> None:
    tag = FORMATS[name].calls(list(TOOLS.values()), several=True)
    pieces = read(name, [instance(tag, {"city": "Ulm"})])
    assert [piece.name for piece in pieces if isinstance(piece, Call)] == ["weather", "now"]
    assert isinstance(pieces[1], Arguments)
    assert json.loads(pieces[1].text) == {"city": "Ulm"}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_tags_of_calls_in_free_text_begin_with_a_trigger_and_hold_the_schema_of_strict_tools(name: str) -> None:
    strict, loose = Tool("a", {"type": "object", "properties": {"x": {"type": "integer"}}}, strict=True), Tool("b")
    found = FORMATS[name].text_and_calls([strict, loose], several=False)
    assert found["type"] == "triggered_tags"
    assert found["stop_after_first"]
    assert not found["at_least_one"]
    for tag in found["tags"]:
        assert any(tag["begin"].startswith(trigger) for trigger in found["triggers"])
    assert '"integer"' in json.dumps(found["tags"])


def test_text_with_a_pattern_cannot_be_enforced_where_texts_are_no_json() -> None:
    tool = Tool("a", {"type": "object", "properties": {"x": {"type": "string", "pattern": "b+"}}}, strict=True)
    with pytest.raises(Unenforceable, match=r'tool a cannot be enforced: the schema of x, .*"pattern"'):
        FORMATS["qwen3-coder"].text_and_calls([tool], several=True)
    assert FORMATS["hermes"].text_and_calls([tool], several=True)


@pytest.mark.parametrize(
    "parameters", [{"properties": 5}, {"properties": {"a": True}}, {"properties": {"a": {"$ref": 5}}}]
)
def test_schemas_that_are_none_do_no_harm(parameters: dict[str, Any]) -> None:
    tools = {"now": Tool("now", parameters)}
    text = "<tool_call><function=now><parameter=a>1</parameter></function></tool_call>"
    assert read("qwen3-coder", [text], tools) == calls(("now", '{"a": 1}'))
    assert FORMATS["qwen3-coder"].calls(list(tools.values()), several=True)
