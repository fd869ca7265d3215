"""Grammars for tokenizers that differ from the plain kinds: added tokens, normalizers, no end token."""

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from inflight import StructuredOutputs
from inflight.guided_decoding.grammar_state import GrammarState
from inflight.guided_decoding.grammars import Grammars
from inflight_gateway.reasoning import REASONING_FORMATS
from inflight_gateway.structural_tags import ANY_TEXT, json_value, tag, text_with, whole
from inflight_gateway.tool_formats import FORMATS, Tool
from tests.unit.tiny_tokenizers import byte_level

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [Tool("weather", SCHEMA, strict=True)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
THINK = REASONING_FORMATS["think"]
MARKERS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def start(tokenizer: Tokenizer, **wanted: Any) -> GrammarState:
    ends = [token_id] if (token_id := tokenizer.token_to_id("<end>")) is not None else []
    return Grammars(tokenizer, tokenizer.get_vocab_size(), ends).compile(StructuredOutputs(**wanted)).result().begin()


def is_allowed(tokenizer: Tokenizer, tag: Any, text: str) -> bool:
    """Whether the tokens that the tokenizer makes of a text are a complete output."""
    state = start(tokenizer, structural_tag=whole(tag))
    for token_id in tokenizer.encode(text).ids:
        if not state.forced and not state.num_legal([token_id]):
            return False
        if state.forced and state.forced[0] != token_id:
            return False
        state.accept(token_id)
    return state.ended or bool(state.num_legal([tokenizer.token_to_id("<end>")]))


def forced_text(tokenizer: Tokenizer, **wanted: Any) -> str:
    """The only text that a constraint allows."""
    state = start(tokenizer, **wanted)
    tokens: list[int] = []
    while not state.ended:
        tokens.append(state.forced[0])
        state.accept(tokens[-1])
    return str(byte_level().decode(tokens, skip_special_tokens=False))


@pytest.mark.parametrize("special", [False, True, None])
def test_markers_of_tools_and_thoughts_may_be_tokens_of_any_kind(special: bool | None) -> None:
    """Qwen's are added tokens that are not special. Other models have none, and write them as text."""
    tokenizer = byte_level()
    if special is not None:
        tokenizer.add_tokens([AddedToken(text, special=special, normalized=False) for text in MARKERS])
    hermes = FORMATS["hermes"]
    assert is_allowed(tokenizer, hermes.calls(TOOLS, several=False), CALL)
    assert is_allowed(tokenizer, hermes.text_and_calls(TOOLS, several=True), f"Sure. {CALL}")
    thought = THINK.before(json_value(SCHEMA), opened=True)
    assert is_allowed(tokenizer, thought, '\nhm\n</think>\n\n{"city": "Ulm"}')
    assert not is_allowed(tokenizer, thought, '\nhm\n</think>\n\n{"town": "Ulm"}')


def test_text_may_have_what_a_marker_begins_with_before_its_control_token() -> None:
    """As in <｜DSML｜function_calls> of DeepSeek V3.2, where only what is between the brackets is a control token."""  # noqa: RUF002
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["|D|"])
    answer = text_with(["<|D|call>"], [tag("<|D|call>", json_value(SCHEMA), "</|D|call>")], several=True)
    called = '<|D|call>{"city": "Ulm"}</|D|call>'
    for text in ("If 1 < 2 </b>.", called, f"If 1 < 2, <b>{called}"):
        assert is_allowed(tokenizer, answer, text)
    for text in (called.replace("city", "town"), "1 < 2 <|D|other>"):
        assert not is_allowed(tokenizer, answer, text)
    marked = tag("<", ANY_TEXT, "</|D|>")
    assert is_allowed(tokenizer, marked, "<a </b> c</|D|>")


@pytest.mark.parametrize(
    "normalizer",
    [normalizers.NFC(), normalizers.NFKC(), normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])],
)
@pytest.mark.parametrize("text", ["Jose\u0301", "5 k\u2126", "\uff1c A"])
def test_forced_text_is_not_normalized(normalizer: normalizers.Normalizer, text: str) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    assert forced_text(tokenizer, choice=[text]) == text
    assert json.loads(forced_text(tokenizer, json={"const": text})) == text


ADDS_SPACE = pre_tokenizers.ByteLevel(add_prefix_space=True)


@pytest.mark.parametrize(
    "pre_tokenizer",
    [ADDS_SPACE, pre_tokenizers.Sequence([pre_tokenizers.Digits(), ADDS_SPACE])],
    ids=["alone", "in a sequence"],
)
def test_forced_text_gets_no_space_before_it(pre_tokenizer: pre_tokenizers.PreTokenizer) -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizer
    assert forced_text(tokenizer, choice=["not bad"]) == "not bad"
    assert json.loads(forced_text(tokenizer, json={"const": "not bad"})) == "not bad"


def test_an_output_of_a_model_without_an_end_token_ends_with_one_that_does_not_show() -> None:
    tokenizer = byte_level()
    grammars = Grammars(tokenizer, tokenizer.get_vocab_size(), [])
    state = grammars.compile(StructuredOutputs(regex="[ab]{1,3}")).result().begin()
    state.accept(tokenizer.token_to_id("a"))
    end = tokenizer.token_to_id("<end>")
    assert [token_id for token_id in (0, end) if state.num_legal([token_id])] == [end]
