"""The structural tag of each tool format allows what the format reads as calls."""

import contextlib
import json
from typing import Any

import pytest

from inflight_gateway.pieces import Arguments, Call
from inflight_gateway.tool_formats import FORMATS, Tool, Unenforceable
from tests.unit.tool_formats.case import calls
from tests.unit.tool_formats.instance import instance
from tests.unit.tool_formats.reading import TOOLS, read


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_the_tags_allow_is_read_as_calls(name: str) -> None:
    tag = FORMATS[name].calls(list(TOOLS.values()), several=True)
    pieces = read(name, [instance(tag, {"city": "Ulm"})])
    assert [piece.name for piece in pieces if isinstance(piece, Call)] == ["weather", "now"]
    assert isinstance(pieces[1], Arguments)
    assert json.loads(pieces[1].text) == {"city": "Ulm"}


# Harmony's texts have headers, and GLM 4's a line break, so no text is free; see the tests of their grammars.
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"harmony", "glm4"}))
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
    for name in (
        "qwen3-coder",
        "seed-oss",
        "glm",
        "hy3",
        "minimax-m2",
        "deepseek-v3.2",
        "deepseek-v4",
        "deepseek-v4.1",
    ):
        with pytest.raises(Unenforceable, match=r'tool a cannot be enforced: the schema of x, .*"pattern"'):
            FORMATS[name].text_and_calls([tool], several=True)
    with pytest.raises(Unenforceable, match=r'tool a cannot be enforced: its schema has pattern "b\+", which Gemma 4'):
        FORMATS["gemma4"].text_and_calls([tool], several=True)
    assert FORMATS["hermes"].text_and_calls([tool], several=True)


@pytest.mark.parametrize("strict", [True, False])
def test_a_schema_that_refers_to_itself_makes_no_endless_tag(strict: bool) -> None:
    part = {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}
    tool = Tool("a", {"type": "object", "properties": {"x": part}, "$defs": {"A": part}}, strict=strict)
    if strict:
        with pytest.raises(Unenforceable, match="its schema is nested more than 16 deep, which Gemma 4's format"):
            FORMATS["gemma4"].text_and_calls([tool], several=True)
    else:
        assert FORMATS["gemma4"].text_and_calls([tool], several=True)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": 5},
        {"properties": {"a": True}},
        {"properties": {"a": {"$ref": 5}}},
        {"properties": {"a": {"type": ["integer", "null"]}}},
        {"properties": {"a": {"type": {}}}},
        {"properties": {"a": {"type": "array", "items": 5}}, "required": 5},
    ],
)
def test_schemas_that_are_none_do_no_harm(parameters: dict[str, Any]) -> None:
    tools = {"now": Tool("now", parameters)}
    text = "<tool_call><function=now><parameter=a>1</parameter></function></tool_call>"
    assert read("qwen3-coder", [text], tools) == calls(("now", '{"a": 1}'))
    for form in FORMATS.values():
        with contextlib.suppress(Unenforceable):
            assert form.calls(list(tools.values()), several=True)
        assert form.text_and_calls(list(tools.values()), several=True)


@pytest.mark.parametrize("name", ["lfm2", "minicpm3", "olmo3", "pythonic"])
def test_a_tag_that_would_grow_with_the_square_of_the_parameters_is_bounded(name: str) -> None:
    properties = {f"p{i}": {"type": "integer"} for i in range(33)}
    tool = Tool("a", {"type": "object", "properties": properties})
    for enforced in (True, False):
        with pytest.raises(Unenforceable, match=r"of its 33 parameters, 33 may be the first .* must be at most 1024"):
            FORMATS[name].tag(tool, enforced=enforced)
    first_needed = Tool("a", {"type": "object", "properties": properties, "required": ["p0"]})
    assert FORMATS[name].tag(first_needed, enforced=True)
