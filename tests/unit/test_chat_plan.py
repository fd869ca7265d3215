"""Errors of a chat name fields that the request has and that its API knows."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from inflight_client import AsyncClient, Message, ModelDescription
from inflight_gateway.answer_form import AnswerForm
from inflight_gateway.chat_plan import ChatAsk, ChatPlan, plan_chat
from inflight_gateway.errors import ApiError
from inflight_gateway.formats import AUTO, NONE, Formats
from inflight_gateway.pieces import Arguments, Call, Piece, Text, Thought, merged
from inflight_gateway.reasoning import REASONING_FORMATS
from inflight_gateway.tool_formats import FORMATS, Tool
from inflight_gateway.tool_use import ToolUse
from tests.unit.tool_formats.markers import DEEPSEEK_CALLS, KIMI_CALLS, deepseek_v3, deepseek_v31, kimi

MODEL = ModelDescription(
    model="llm",
    vocab_size=10,
    max_model_len=10,
    chat_template="{{ messages }}{{ tools }}<think><tool_call>",
    template_variables=("messages", "tools"),
    special_tokens={},
    eos_token_ids=(),
    max_draft_input_ids=0,
    lora_modules=(),
)
USER: list[Message] = [{"role": "user", "content": "one"}]
FORM = AnswerForm("response_format", "json_object", True)
TOOLS = ToolUse((Tool("f"),), (Tool("f"),), required=False, several=True)


def plan(ask: ChatAsk, reasoning: str, model: ModelDescription = MODEL) -> ChatPlan:
    """No server is asked."""

    async def planned() -> ChatPlan:
        async with AsyncClient("127.0.0.1:1") as client:
            return await plan_chat(client, Formats.of(model, AUTO, reasoning), ask)

    return asyncio.run(planned())


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (ChatAsk(USER, FORM, TOOLS, {"a": 1}), "response_format"),
        (ChatAsk(USER, FORM, replace(TOOLS, required=True)), "tools"),
        (ChatAsk(USER, FORM, replace(TOOLS, callable=(Tool("f", strict=True),))), "response_format or tools"),
        (ChatAsk(USER, None, TOOLS, {"a": 1}), "tools"),
        (ChatAsk(USER, None, None, {"a": 1}), "chat_template_kwargs"),
        (ChatAsk(USER, None, None), None),
    ],
)
def test_parameters_that_are_too_large_are_named_as_a_field_of_the_request(ask: ChatAsk, field: str | None) -> None:
    assert plan(ask, NONE).names.get("sampling_parameters") == field


@pytest.mark.parametrize(
    ("form", "field"),
    [(None, "tools"), (AnswerForm("response_format", "json", {"a": "x"}), "response_format or tools")],
)
def test_a_form_that_the_server_would_refuse_for_its_length_is_not_sent(form: AnswerForm | None, field: str) -> None:
    """A few MiB of definitions beside each of many parameters would be gigabytes."""

    def with_definitions(length: int) -> ToolUse:
        properties = {f"p{i}": {"type": "integer"} for i in range(8)}
        tool = Tool("f", {"properties": properties, "$defs": {"a": {"title": "x" * length}}}, strict=True)
        return ToolUse((tool,), (tool,), required=False, several=True)

    model = replace(MODEL, chat_template="{{ messages }}{{ tools }}<function=")
    assert plan(ChatAsk(USER, form, with_definitions(3_000)), NONE, model).request["structured_outputs"]
    with pytest.raises(ApiError, match=f"{field}: the answer's form takes over 65536 characters") as caught:
        plan(ChatAsk(USER, form, with_definitions(8_192)), NONE, model)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("named", "param", "advice"),
    [
        ({}, "continue_final_message", "give thoughts as reasoning_content"),
        ({"continued_by": "messages", "thoughts_as": "blocks"}, "messages", "give thoughts as blocks"),
    ],
)
def test_a_thought_that_cannot_be_continued(named: dict[str, Any], param: str, advice: str) -> None:
    messages: list[Message] = [*USER, {"role": "assistant", "content": "<think> So"}]
    ask = ChatAsk(messages, None, None, chat_end={"continue_final_message": True}, **named)
    with pytest.raises(ApiError) as caught:
        plan(ask, AUTO)
    assert caught.value.param == param
    assert caught.value.detail == f"{param}: the last message must have no <think> and </think>; {advice}"


@pytest.mark.parametrize(
    ("name", "calls", "called"),
    [
        ("deepseek-v3", f"{DEEPSEEK_CALLS}{deepseek_v3('f', '{}')}", True),
        ("deepseek-v3.1", deepseek_v31("f", "{}"), True),
        ("kimi-k2", f"{KIMI_CALLS}{kimi('functions.f:0', '{}')}", True),
        ("apertus", '<|tools_prefix|>[{"f": {}}]', True),
        # A model may think of a text that is no control token.
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', False),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_a_call_ends_a_thought_where_it_cannot_be_part_of_it(name: str, calls: str, called: bool, step: int) -> None:
    form, thinking = FORMATS[name], REASONING_FORMATS["think"]
    reader = ChatPlan({}, {"f": Tool("f")}, form, thinking, opened=False, names={}).reader()
    text = f"<think>\nSo. {calls}"
    fed = [piece for at in range(0, len(text), step) for piece in reader.feed(text[at : at + step])]
    pieces = merged([*fed, *reader.end()])
    assert pieces == ([Thought("So."), Call("f"), Arguments("{}")] if called else [Thought(f"So. {calls}")])


_ANSWERS = [
    ("granite3.3", "<think>\nSo.\n</think>\n<response>\nIt rains.\n</response>\n", [Thought("So."), Text("It rains.")]),
    ("granite3.3", "<think>So.</think><response>It rains.", [Thought("So."), Text("It rains.")]),
    ("granite3.3", "<think>So.</think> It rains. ", [Thought("So."), Text("It rains. ")]),
    ("granite3.3", "<think></think><response> 1 < 2\n\n </resp", [Text("1 < 2\n\n </resp")]),
    ("granite3.3", "<think></think><response>a </response> b</response>", [Text("a  b</response>")]),
    # Without a thought, the texts are what the user has asked for.
    ("granite3.3", "<response>It rains.</response>", [Text("<response>It rains.</response>")]),
    (
        "granite3.3",
        '<think>So.</think><response>I look. <\n</response>\n<|tool_call|>[{"name": "f"}] Done.</response>',
        [Thought("So."), Text("I look. <"), Call("f"), Arguments("{}"), Text("Done.")],
    ),
    (
        "granite3.3",
        '<think></think><response>a <|tool_call|>[{"name": "f"}]</response>',
        [Text("a"), Call("f"), Arguments("{}")],
    ),
    (
        "granite3.2",
        "Here is my thought process:\nSo. Here is it.\n\nHere is my response:\n\nIt rains.\n",
        [Thought("So. Here is it."), Text("It rains.\n")],
    ),
    (
        "apriel",
        "Here are my reasoning steps:\nSo.\n[BEGIN FINAL RESPONSE]\nIt rains.\n[END FINAL RESPONSE]\n",
        [Thought("So."), Text("It rains.")],
    ),
    ("apriel", "Here are my reasoning steps:\nSo. [BEGIN FINAL RESPONSE] It [END", [Thought("So."), Text("It [END")]),
    (
        "granite3.2",
        "Here's my thought process:\nSo.\nHere's my response:\nIt rains.",
        [Thought("So."), Text("It rains.")],
    ),
    (
        "granite3.2",
        "Here is my thought process:\nHere's it.\nHere's my response:\nIt rains.",
        [Thought("Here's it."), Text("It rains.")],
    ),
    ("granite3.2", "Here is my thought: it rains.", [Text("Here is my thought: it rains.")]),
    ("granite3.2", "\nHere is my thought process: So", [Thought("So")]),
    (
        "ernie-4.5",
        '<think>\nSo.\n</think>\n<response>\nI look.\n</response>\n\n\n<|tool_call|>[{"name": "f"}]',
        [Thought("So."), Text("I look."), Call("f"), Arguments("{}")],
    ),
    ("ernie-4.5", '<think>So.</think>\n\n<|tool_call|>[{"name": "f"}]', [Thought("So."), Call("f"), Arguments("{}")]),
    ("hunyuan", "<think>\nSo.\n</think>\n<answer>\nIt rains.\n</answer>", [Thought("So."), Text("It rains.")]),
    ("hunyuan", "<think>\n\n</think>\n<answer>\nIt rains.", [Text("It rains.")]),
    ("think", "<think>So.</think><response>a</response>", [Thought("So."), Text("<response>a</response>")]),
]


@pytest.mark.parametrize(("name", "text", "expected"), _ANSWERS)
def test_an_answer_with_a_thought_is_read_alike_however_it_is_cut(name: str, text: str, expected: list[Piece]) -> None:
    granite = ChatPlan({}, {"f": Tool("f")}, FORMATS["granite3"], REASONING_FORMATS[name], opened=False, names={})
    plans = [granite] if Call("f") in expected else [granite, replace(granite, tool_format=None)]
    for one in plans:
        for parts in ([text], text, *((text[:at], text[at:]) for at in range(1, len(text)))):
            reader = one.reader()
            fed = [piece for part in parts for piece in reader.feed(part)]
            assert merged([*fed, *reader.end()]) == expected


def test_an_enforced_answer_begins_only_after_the_words_that_are_enforced() -> None:
    thinking = REASONING_FORMATS["granite3.2"].of_enforced_answers()
    text = "Here is my thought process: Here's my response: Here is my response: {}"
    reader = ChatPlan({}, {}, None, thinking, opened=False, names={}).reader()
    assert [*reader.feed(text), *reader.end()] == [Thought("Here's my response:"), Text("{}")]


@pytest.mark.parametrize(
    ("prompt_end", "is_open"),
    [
        ("assistant\n<seed:think><seed:cot_budget_reflect>", True),
        ("assistant\n<seed:think>\n", True),
        ("<seed:cot_budget_reflect>", False),
        ("assistant\n", False),
    ],
)
def test_the_prompt_may_begin_what_seed_oss_writes_about_its_thought(prompt_end: str, is_open: bool) -> None:
    assert REASONING_FORMATS["seed-oss"].is_open(prompt_end) == is_open
    assert not REASONING_FORMATS["seed-oss"].is_closed(prompt_end)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>\nIt rains.\n</answer>", [Text("It rains.")]),
        ("\n<answer>It rains.", [Text("It rains.")]),
        (" It rains. ", [Text(" It rains. ")]),
        ("<think>So.</think>", [Text("<think>So.</think>")]),
    ],
)
def test_an_answer_is_enclosed_also_where_the_prompt_has_ended_the_thought(text: str, expected: list[Piece]) -> None:
    plan = ChatPlan({}, {}, None, REASONING_FORMATS["hunyuan"], opened=False, names={}, closed=True)
    for parts in ([text], text):
        reader = plan.reader()
        assert merged([piece for part in parts for piece in reader.feed(part)] + reader.end()) == expected


def test_an_enclosed_answer_comes_as_soon_as_it_is_there() -> None:
    reader = ChatPlan({}, {}, None, REASONING_FORMATS["granite3.3"], opened=True, names={}).reader()
    parts = ["So.", "</think>\n<resp", "onse>", "It", " rains", ".</", "p></response", ">"]
    fed = [reader.feed(part) for part in parts]
    rains = [[Text("It")], [Text(" rains")], [Text(".")], [Text("</p>")], []]
    assert fed == [[Thought("So.")], [], [], *rains]
    assert reader.end() == []


def test_what_the_answer_may_not_call_is_text_in_it() -> None:
    model = replace(MODEL, chat_template="{{ messages }}{{ tools }}[func_name1()]")
    use = ToolUse((Tool("f"), Tool("g")), (Tool("f"),), required=False, several=True)
    reader = plan(ChatAsk(USER, None, use), NONE, model).reader()
    assert [*reader.feed("[g()] or [f()]"), *reader.end()] == [Text("[g()] or"), Call("f"), Arguments("{}")]
    # Nor what only looks like a call to the grammar that enforces calls.
    free = ToolUse((Tool("f"),), (Tool("f"),), required=False, several=True)
    for each, expected in ((use, [Text("f()")]), (free, [Call("f"), Arguments("{}")])):
        reader = plan(ChatAsk(USER, None, each), NONE, model).reader()
        assert [*reader.feed("f()"), *reader.end()] == expected
