"""What the gateway asks of an answer with calls or thoughts is what the grammar of the server enforces."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from transformers import AutoTokenizer

from inflight.guided_decoding.grammars import Grammars
from inflight.structured_outputs import StructuredOutputs
from inflight_gateway.pieces import Call, Text, merged
from inflight_gateway.reader import Reader
from inflight_gateway.reasoning import REASONING_FORMATS
from inflight_gateway.structural_tags import json_value, whole
from inflight_gateway.tool_formats import FORMATS, Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ListFormat
from scripts.launch.default_model import default_model
from tests.unit.tool_formats.all_cases import CASES
from tests.unit.tool_formats.instance import instance

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", SCHEMA, strict=True), Tool("now", strict=True)]
ARGUMENTS = '{"city": "Ulm", "days": 3}'

Accepts = Callable[[dict[str, Any], str], bool]


def acceptor(tokenizer: Any, eos_token_ids: list[int]) -> Accepts:
    """Whether a structural tag allows a text."""
    grammars = Grammars(tokenizer, vocab_size=tokenizer.get_vocab_size(), eos_token_ids=eos_token_ids)

    def accepts(tag: dict[str, Any], text: str) -> bool:
        grammar = grammars.compile(StructuredOutputs(structural_tag=whole(tag))).result()
        matcher = grammar._fresh_matcher()
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    return accepts


@pytest.fixture(scope="module")
def accepts() -> Accepts:
    return acceptor(AutoTokenizer.from_pretrained(default_model()).backend_tokenizer, [2])


def acceptor_with_control_tokens(markers: Sequence[str], ends: Sequence[str]) -> Accepts:
    """For a model whose markers are control tokens, and whose output ends with one of `ends`."""
    tokenizer = AutoTokenizer.from_pretrained(default_model()).backend_tokenizer
    tokenizer.add_special_tokens([*dict.fromkeys((*markers, *ends))])
    return acceptor(tokenizer, [tokenizer.token_to_id(end) for end in ends])


@pytest.fixture(scope="module")
def harmony_accepts() -> Accepts:
    return acceptor_with_control_tokens(FORMATS["harmony"].markers, ["<|return|>", "<|call|>"])


@pytest.fixture(scope="module")
def gemma_accepts() -> Accepts:
    markers = (*FORMATS["gemma4"].markers, "<|channel>", "<channel|>")
    return acceptor_with_control_tokens(markers, ["<turn|>"])


def call(name: str) -> str:
    """A call as the format writes it."""
    return instance(FORMATS[name].calls(TOOLS[:1], several=False), {"city": "Ulm", "days": 3})


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("several", [True, False])
def test_calls_are_enforced(accepts: Accepts, name: str, several: bool) -> None:
    calls = FORMATS[name].calls(TOOLS, several=several)
    both = instance(FORMATS[name].calls([TOOLS[0], TOOLS[0]], several=True), {"city": "Ulm", "days": 3})
    assert accepts(calls, call(name))
    assert accepts(calls, both) == (several and name != "harmony"), "a call of Harmony ends the answer"
    for other in ("text", call(name).replace("city", "town"), call(name).replace("weather", "rain"), ""):
        assert not accepts(calls, other)


# Without markers, only the name of a tool tells a call from a text; see below.
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"glm4", "harmony", "pythonic", "xlam"}))
@pytest.mark.parametrize("several", [True, False])
def test_calls_within_text_are_enforced_from_their_first_word_on(accepts: Accepts, name: str, several: bool) -> None:
    free = FORMATS[name].text_and_calls(TOOLS, several=several)
    for text in ("", "Text.", call(name), f"Text.\n{call(name)}"):
        assert accepts(free, text)
    for text in (call(name).replace("city", "town"), f"Text. {call(name).replace('weather', 'rain')}"):
        assert not accepts(free, text)
    if not several:
        assert not accepts(free, f"{call(name)} {call(name)}")


# Ways of writing calls in which models leave out or add something.
LOOSE = [
    ("deepseek-v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>"),  # noqa: RUF001
    ("deepseek-v3", "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"),  # noqa: RUF001
    ("deepseek-v3.1", "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"),  # noqa: RUF001
    ("kimi-k2", "<|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>"),
    ("llama3", '{"type": "function", "name": "weather", "parameters": {ARGUMENTS}}'),
    ("llama3", '{"name": "now", "parameters": {}}; {"parameters": {ARGUMENTS}, "name": "weather"}'),
    ("qwen3-coder", "<function=weather>\n<parameter=city>\nUlm\n</parameter>\n</function>"),
    ("qwen3-coder", "<function=weather><parameter=city>Ulm</parameter></function>"),
]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_is_read_as_a_call_within_text_was_enforced(accepts: Accepts, name: str) -> None:
    form = FORMATS[name]
    free = form.text_and_calls(TOOLS, several=True)
    texts = [text for known, text, *_ in (*CASES, *LOOSE) if known == name]
    for text in {text.replace("{ARGUMENTS}", each) for text in texts for each in (ARGUMENTS, '{"city": 3}')}:
        if accepts(free, text):
            reader = Reader(partial(form.of_enforced_answers().read, tools={tool.name: tool for tool in TOOLS}))
            pieces = merged([*reader.feed(text), *reader.end()])
            for one, arguments in pairwise(pieces):
                if isinstance(one, Call):
                    assert set(json.loads(arguments.text)) == ({"city", "days"} if one.name == "weather" else set())


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS.keys() - {"harmony"}))
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


def test_messages_of_harmony_are_enforced_with_their_headers(harmony_accepts: Accepts) -> None:
    accepts = harmony_accepts
    form, calls = REASONING_FORMATS["harmony"], FORMATS["harmony"]
    thought = "<|channel|>analysis<|message|>Is it {x}?<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>"
    answer = form.before(form.final(json_value(SCHEMA)), opened=False)
    for beginning in (thought, ""):
        assert accepts(answer, f"{beginning}{final}{ARGUMENTS}")
        assert not accepts(answer, f"{beginning}{final}no")
        assert not accepts(answer, f"{beginning}{ARGUMENTS}")
        required = form.before(calls.calls(TOOLS, several=True), opened=False)
        assert accepts(required, beginning + call("harmony"))
        assert not accepts(required, f"{beginning}{final}Text.")
        free = form.before(calls.text_and_calls(TOOLS, several=True), opened=False)
        assert accepts(free, beginning + call("harmony"))
        assert accepts(free, f"{beginning}{final}Text.")
        assert not accepts(free, beginning + call("harmony").replace("city", "town"))
        told = f"{beginning}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        assert accepts(free, told + call("harmony"))
        assert not accepts(free, told + call("harmony").replace("weather", "rain"))
        first = f"{beginning} to=functions.weather<|channel|>commentary json<|message|>"
        assert accepts(free, first + ARGUMENTS)
        assert not accepts(free, first + "{}")


NESTED = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "city": {"type": "string"},
        "days": {"type": ["integer", "null"]},
        "places": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
    },
    "required": ["days"],
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}


def test_arguments_of_gemma_4_are_enforced_with_its_control_tokens(gemma_accepts: Accepts) -> None:
    form, thinking = FORMATS["gemma4"], REASONING_FORMATS["gemma4"]
    strict, loose = Tool("strict", NESTED, strict=True), Tool("loose")
    required = form.calls([strict], several=True)
    free = thinking.before(form.text_and_calls([strict, loose], several=True), opened=False)
    good = (
        "{days:3}",
        '{city:<|"|>Ulm {}<|"|>,days:null}',
        '{days:3,places:[],unit:<|"|>C<|"|>}',
        "{days:3,places:[{x:1.5},{x:2}]}",
    )
    bad = ("{}", '{days:<|"|>3<|"|>}', '{days:3,unit:<|"|>K<|"|>}', "{days:3,places:[{}]}", '{days:3,city:<|"|>a<|"|>}')
    for arguments in (*good, *bad):
        call = f"<|tool_call>call:strict{arguments}<tool_call|>"
        assert gemma_accepts(required, call) == (arguments in good), arguments
        assert gemma_accepts(free, f"<|channel>thought\nSo.<channel|>I look.{call}") == (arguments in good), arguments
    assert gemma_accepts(required, "<|tool_call>call:strict{days:3}<tool_call|>" * 2)
    any_object = '{a:[1,<|"|>b<|"|>],c:{d:true}}'
    assert gemma_accepts(free, "<|tool_call>call:loose{}<tool_call|>") == (not loose.parameters["properties"])
    anything = form.calls([Tool("map", {"type": "object"})], several=False)
    assert gemma_accepts(anything, f"<|tool_call>call:map{any_object}<tool_call|>")


@pytest.mark.parametrize("are_control_tokens", [True, False])
def test_calls_of_glm_are_enforced_whatever_its_markers_are(accepts: Accepts, are_control_tokens: bool) -> None:
    form = FORMATS["glm"]
    if are_control_tokens:
        accepts = acceptor_with_control_tokens(form.markers, ["<|user|>"])
    strict, loose = Tool("strict", SCHEMA, strict=True), Tool("loose")
    free = form.text_and_calls([strict, loose], several=True)
    city, days = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in (("city", "Ulm"), ("days", 3))
    )
    assert accepts(free, f"I look.\n<tool_call>strict\n{city}{days}</tool_call>\n<tool_call>loose\n</tool_call>")
    assert accepts(free, f"<tool_call>loose\n{days}{city}</tool_call>")
    for arguments in (city, f"{city}{days.replace('3', 'x')}", f"{city}{city}"):
        assert not accepts(free, f"<tool_call>strict\n{arguments}</tool_call>")


def test_calls_of_lfm2_have_the_constants_of_python(accepts: Accepts) -> None:
    flag = {"type": "object", "properties": {"on": {"type": "boolean"}, "why": {"type": "string", "pattern": "b+"}}}
    free = FORMATS["lfm2"].text_and_calls([Tool("strict", flag, strict=True), Tool("loose", flag)], several=True)
    for arguments in ("", "on=True", 'on=False, why="bb"', 'why="b"'):
        assert accepts(free, f"I look.<|tool_call_start|>[strict({arguments}), loose({arguments})]<|tool_call_end|>")
    for arguments in ("on=1", 'why="a"', "off=True"):
        assert not accepts(free, f"<|tool_call_start|>[strict({arguments})]<|tool_call_end|>")
    assert accepts(free, '<|tool_call_start|>[loose(on=1, why="a")]<|tool_call_end|>')


@pytest.mark.parametrize("are_control_tokens", [True, False])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.1", "kimi-k2"])
def test_sections_of_calls_are_enforced_whatever_their_markers_are(
    accepts: Accepts, name: str, are_control_tokens: bool
) -> None:
    form, thinking = FORMATS[name], REASONING_FORMATS["think"]
    if are_control_tokens:
        accepts = acceptor_with_control_tokens((*form.markers, *thinking.markers), ["<|end|>"])
    strict, loose = Tool("strict", SCHEMA, strict=True), Tool("loose")
    written = [WrittenCall("strict", {"city": 'Ulm "{', "days": 3}), WrittenCall("loose", {"a": [{}]})]
    both, one, bad = (form.written(calls) for calls in (written, written[:1], [WrittenCall("strict", {"city": "Ulm"})]))
    required = form.calls([strict, loose], several=True, enforced=False)
    free = form.text_and_calls([strict, loose], several=True)
    thoughtful = thinking.before(free, opened=False)
    for calls in (both, one, bad):
        is_good = calls != bad
        assert accepts(required, calls) == is_good
        assert accepts(free, f"I look.\n\n{calls}") == is_good
        assert accepts(thoughtful, f"<think>So.</think>I look.{calls}") == is_good
        assert not accepts(required, f"I look.{calls}")
    assert accepts(form.text_and_calls([strict, loose], several=False), one)
    assert not accepts(form.text_and_calls([strict, loose], several=False), both)


@pytest.mark.parametrize("are_control_tokens", [True, False])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v4", "deepseek-v4.1", "hy3", "minimax-m2"])
def test_sections_of_invocations_are_enforced_whatever_their_markers_are(
    accepts: Accepts, name: str, are_control_tokens: bool
) -> None:
    form = FORMATS[name]
    if are_control_tokens:
        accepts = acceptor_with_control_tokens(form.markers, ["<|end|>"])
    strict, loose = Tool("strict", SCHEMA, strict=True), Tool("loose")
    free = form.text_and_calls([strict, loose], several=True)
    # What the markers begin with is also in texts.
    city = WrittenCall("strict", {"city": "<b>Ulm</b> < 3", "days": 3})
    anything = WrittenCall("loose", {"a": "</p>", "b": [{"c": None}], "d": 1.5})
    both = form.written([city, anything])
    assert accepts(free, "Is 1 < 2, and </b> an end?")
    assert accepts(free, f"If 1 < 2 </b>, I look.\n\n{both}")
    assert accepts(form.calls([strict, loose], several=True, enforced=False), both)
    assert not accepts(form.text_and_calls([strict, loose], several=False), both)
    for arguments in ({"city": "Ulm"}, {"city": "Ulm", "days": "x"}, {"days": 3, "city": "Ulm"}):
        assert not accepts(free, form.written([WrittenCall("strict", arguments)]))


@pytest.mark.parametrize("number", ["0", "12", "x", ""])
def test_calls_of_kimi_k2_are_numbered(accepts: Accepts, number: str) -> None:
    written = FORMATS["kimi-k2"].written([WrittenCall("now", {})]).replace(":0", f":{number}")
    assert accepts(FORMATS["kimi-k2"].calls([Tool("now")], several=False), written) == number.isdigit()


@pytest.mark.parametrize("several", [True, False])
def test_pythonic_calls_within_text_are_enforced_from_the_name_of_a_tool_on(accepts: Accepts, several: bool) -> None:
    free = FORMATS["pythonic"].text_and_calls(TOOLS, several=several)
    weather = call("pythonic")
    assert weather == '[weather(city="Ulm", days=3)]'
    for text in ("", "Text [1], (2), [rain()] and [nowhere(3)].", weather, f"Text.\n{weather}", "[now()]"):
        assert accepts(free, text)
    for text in (weather.replace("city", "town"), weather.replace("3", "x"), "Text. [now(3)]", "[weather()]"):
        assert not accepts(free, text)
    for two in (f"{weather} {weather}", '[now(), weather(city="Ulm", days=3)]'):
        assert accepts(free, two) == several
        assert not accepts(free, two.replace("days", "nights"))


@pytest.mark.parametrize("several", [True, False])
def test_calls_of_xlam_within_text_are_enforced_from_the_name_of_a_tool_on(accepts: Accepts, several: bool) -> None:
    free = FORMATS["xlam"].text_and_calls(TOOLS, several=several)
    weather, now = call("xlam"), '[{"name": "now", "arguments": {}}]'
    assert weather == '[{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}]'
    for text in ("", 'Text [1], [{"name": "rain"}] and [{"name": "now"}].', weather, f"Text.\n{weather}", now):
        assert accepts(free, text)
    for text in (
        weather.replace("city", "town"),
        weather.replace("3", '"x"'),
        f"Text. {weather.replace('Ulm', '')[:-3]}]",
    ):
        assert not accepts(free, text)
    for two in (f"{weather} {weather}", f"{now[:-1]}, {weather[1:]}"):
        assert accepts(free, two) == several
        assert not accepts(free, two.replace("days", "nights"))


@pytest.mark.parametrize("are_control_tokens", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_answers_of_glm_4_are_calls_or_a_text_after_a_line_break(
    accepts: Accepts, several: bool, are_control_tokens: bool
) -> None:
    form = FORMATS["glm4"]
    if are_control_tokens:
        accepts = acceptor_with_control_tokens(form.markers, ["<|observation|>"])
    free = form.text_and_calls(TOOLS, several=several)
    weather = call("glm4")
    assert weather == 'weather\n{"city": "Ulm", "days": 3}'
    for text in ("", "\nText.", "\nThe weather\n{} is not called so.", weather, "now\n{}"):
        assert accepts(free, text)
    for text in ("Text.", "rain\n{}", weather.replace("city", "town"), "weather\n{}", f"{weather} Done."):
        assert not accepts(free, text)
    assert accepts(free, f"{weather}<|assistant|>now\n{{}}") == several
    reader = Reader(partial(form.of_enforced_answers().read, tools={tool.name: tool for tool in TOOLS}))
    assert merged([*reader.feed("\nText.\nweather\n{}"), *reader.end()]) == [Text("\nText.\nweather\n{}")]


def test_calls_of_olmo_3_have_the_constants_of_json(accepts: Accepts) -> None:
    flag = {"type": "object", "properties": {"on": {"type": "boolean"}, "why": {"type": "string", "pattern": "b+"}}}
    free = FORMATS["olmo3"].text_and_calls([Tool("strict", flag, strict=True), Tool("loose", flag)], several=True)
    for arguments in ("", "on=true", 'on=false, why="bb"', 'why="b"'):
        assert accepts(free, f"I look.<function_calls>strict({arguments})\nloose({arguments})</function_calls>")
    for arguments in ("on=1", 'why="a"', "off=true"):
        assert not accepts(free, f"<function_calls>strict({arguments})</function_calls>")
    assert accepts(free, '<function_calls>loose(on=1, why="a")</function_calls>')


@pytest.mark.parametrize("name", ["apertus", "granite3", "nemotron", "phi4-mini", "lfm2"])
def test_lists_of_calls_between_control_tokens_are_enforced(name: str) -> None:
    """Also where a model spells out what stands around them."""
    form = FORMATS[name]
    assert isinstance(form, ListFormat)
    accepts = acceptor_with_control_tokens(form.markers, ["<|end|>"])
    weather, (opening, closing) = call(name), (form.opening, form.closing)
    assert weather.startswith(opening)
    two = f"{weather.removesuffix(closing)}, {weather.removeprefix(opening)}"
    required, free = form.calls(TOOLS, several=True), form.text_and_calls(TOOLS, several=True)
    for text in (weather, two):
        assert accepts(required, text)
        assert accepts(free, f"I look. {text}")
        for other in (text.replace("weather", "rain"), text.replace("days", "nights"), text.replace("3", "x")):
            assert not accepts(required, other)
            assert not accepts(free, other)
    assert not accepts(form.calls(TOOLS, several=False), two)
    for other_opening, other_closing in form.also_read:
        other = f"{other_opening}{weather.removeprefix(opening).removesuffix(closing)}{other_closing}"
        assert accepts(free, f"I look. {other}")
        assert not accepts(free, other.replace("days", "nights"))
        assert not accepts(required, other)


@pytest.mark.parametrize("are_control_tokens", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_answers_of_cohere_are_enforced_with_their_tokens(
    accepts: Accepts, are_control_tokens: bool, several: bool
) -> None:
    form, thinking = FORMATS["cohere"], REASONING_FORMATS["cohere"]
    if are_control_tokens:
        accepts = acceptor_with_control_tokens((*form.markers, *thinking.markers), ["<|END_OF_TURN_TOKEN|>"])
    weather = call("cohere")
    second = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}'
    two = weather.replace("\n]", f",\n    {second}\n]")
    free = thinking.before(form.text_and_calls(TOOLS, several=several), opened=False)
    required = thinking.before(form.calls(TOOLS, several=several), opened=True)
    thought = "<|START_THINKING|>Is it {x}?<|END_THINKING|>"
    for text in ("<|START_RESPONSE|>It rains.<|END_RESPONSE|>", "<|START_TEXT|>So.<|END_TEXT|>", "So.", weather):
        assert accepts(free, text)
        assert accepts(free, thought + text)
        assert accepts(required, f"So.<|END_THINKING|>{text}") == (text == weather)
    assert accepts(free, two) == several
    for text in (weather, two):
        for other in (text.replace("weather", "rain"), text.replace("days", "nights"), text.replace("Ulm", 'U"')):
            assert not accepts(free, thought + other)
            assert not accepts(required, f"So.<|END_THINKING|>{other}")
