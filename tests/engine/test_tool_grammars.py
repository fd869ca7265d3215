"""What the gateway asks of an answer with calls or thoughts is what the grammar of the server enforces."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoTokenizer

from inflight.guided_decoding.grammars import Grammars
from inflight.structured_outputs import StructuredOutputs
from inflight_gateway.reasoning import REASONING_FORMATS
from inflight_gateway.structural_tags import json_value, whole
from inflight_gateway.tool_formats import FORMATS, Tool
from scripts.launch.default_model import default_model
from tests.unit.test_tool_formats import instance

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", SCHEMA, strict=True), Tool("now", strict=True)]
ARGUMENTS = '{"city": "Ulm", "days": 3}'

Accepts = Callable[[dict[str, Any], str], bool]


@pytest.fixture(scope="module")
def accepts() -> Accepts:
    """Whether a structural tag allows a text."""
    tokenizer = AutoTokenizer.from_pretrained(default_model()).backend_tokenizer
    grammars = Grammars(tokenizer, vocab_size=49152, eos_token_ids=[2])

    def accepts(tag: dict[str, Any], text: str) -> bool:
        grammar = grammars.compile(StructuredOutputs(structural_tag=whole(tag))).result()
        matcher = grammar._fresh_matcher()
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    return accepts


def call(name: str) -> str:
    """A call as the format writes it."""
    return instance(FORMATS[name].calls(TOOLS[:1], several=False), {"city": "Ulm", "days": 3})


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("several", [True, False])
def test_calls_are_enforced(accepts: Accepts, name: str, several: bool) -> None:
    calls = FORMATS[name].calls(TOOLS, several=several)
    both = instance(FORMATS[name].calls([TOOLS[0], TOOLS[0]], several=True), {"city": "Ulm", "days": 3})
    assert accepts(calls, call(name))
    assert accepts(calls, both) == several
    for other in ("text", call(name).replace("city", "town"), call(name).replace("weather", "rain"), ""):
        assert not accepts(calls, other)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("several", [True, False])
def test_calls_within_text_are_enforced_from_their_first_word_on(accepts: Accepts, name: str, several: bool) -> None:
    free = FORMATS[name].text_and_calls(TOOLS, several=several)
    for text in ("", "Text.", call(name), f"Text.\n{call(name)}"):
        assert accepts(free, text)
    for text in (call(name).replace("city", "town"), f"Text. {call(name).replace('weather', 'rain')}"):
        assert not accepts(free, text)
    if not several:
        assert not accepts(free, f"{call(name)} {call(name)}")


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
@pytest.mark.parametrize("opened", [True, False])
def test_what_is_enforced_begins_after_the_thought(accepts: Accepts, name: str, opened: bool) -> None:
    form = REASONING_FORMATS[name]
    thought = f"{'' if opened else form.begin}\nIs it {{x}}?\n{form.end}"
    answer = form.before(json_value(SCHEMA), opened=opened)
    assert accepts(answer, f"{thought}\n\n{ARGUMENTS}")
    assert accepts(answer, ARGUMENTS) != opened
    assert not accepts(answer, f"{thought}\n\nno")
    calls = form.before(FORMATS["hermes"].text_and_calls(TOOLS, several=True), opened=opened)
    assert accepts(calls, f"{thought}\n\nText. {call('hermes')}")
    assert not accepts(calls, f"{thought}\n\nText. {call('hermes').replace('city', 'town')}")
    # A thought may speak of calls.
    assert accepts(calls, f"{'' if opened else form.begin}A <tool_call>?{form.end}Text. {call('hermes')}")
