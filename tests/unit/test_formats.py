"""Which formats a model uses is found from its chat template."""

from collections.abc import Sequence
from typing import Any

import pytest

from inflight_client import InvalidRequest, Message, ModelDescription
from inflight_gateway.chat_request import Effort
from inflight_gateway.errors import ApiError
from inflight_gateway.formats import Formats
from inflight_gateway.messages_api.request import Thinking
from inflight_gateway.messages_api.thinking import thinking_variables
from inflight_gateway.reasoning_effort import effort_variables
from inflight_gateway.shown_chat import shown_chat
from inflight_gateway.tool_formats import Tool
from tests.unit.tool_formats.dsml import DSML
from tests.unit.tool_formats.markers import DEEPSEEK_CALLS, DEEPSEEK_CALLS_END, DEEPSEEK_SEP, deepseek_v3, deepseek_v31

_QWEN = (
    "{% if tools %}<tools>{% endif %}<tool_call>{{ messages[0].tool_calls }}{% if enable_thinking %}<think>{% endif %}"
)
_DEEPSEEK = f"{{% for c in message.tool_calls %}}{{{{ c.function.name + '{DEEPSEEK_SEP}' }}}}{{% endfor %}}"
_SMOLLM2 = "{% if messages[0].role != 'system' %}You are a helpful AI assistant named SmolLM, trained by HF{% endif %}"


def formats(template: str | None, *variables: str, tools: str = "auto", reasoning: str = "auto") -> Formats:
    description = ModelDescription("m", 100, 100, template, variables, {5: "[TOOL_CALLS]"}, (2,))
    return Formats.of(description, tools, reasoning)


@pytest.mark.parametrize(
    ("template", "variables", "tool_format", "reasoning_format"),
    [
        (_QWEN, ("messages", "tools"), "hermes", "think"),
        ("<|channel|>analysis<|message|>{{ messages[0].tool_calls }}", ("tools",), "harmony", "harmony"),
        ("<|tool_call>{{ messages[0].tool_calls }}<|channel>", ("tools",), "gemma4", "gemma4"),
        ("<start_function_call>call:{{ name }}{<escape>", ("tools",), "functiongemma", None),
        ("<tool_calls>[{{ calls }}]</tool_calls>", ("tools",), "jamba", None),
        ("<tool_calls>[]</tool_calls> [BEGIN FINAL RESPONSE]", ("tools",), "jamba", "apriel"),
        ("When using tools, make calls in a single JSON array: <|start_header_id|>", ("tools",), "xlam", None),
        ("<tool_call>{{ name }}<arg_key></think>", ("tools",), "glm", None),
        ("<tool_call>{{ name }}<arg_key>{{ key }}</arg_key><arg_value></think>", ("tools",), "glm-4.7", None),
        ("[gMASK]<sop>{{ message.get('metadata') }}<|observation|>", ("tools",), "glm4", None),
        ("[gMASK]<sop>{{ item['tools'] }}{{ item['metadata'] }}", ("messages",), "glm4", None),
        ("<|thought_start|><|tool_call_start|>\n```python\nfunc1()\n```", ("tools",), "minicpm3", "minicpm3"),
        ("<tool_calls><tool_call>{{ name }}<tool_sep><arg_key></think>", ("tools",), "hy3", None),
        ("system name=<|plugin|> {{ tools }}<|action_start|><|plugin|>", ("tools",), "internlm", None),
        ("<|tool_list_start|>", ("tools",), "lfm2", None),
        ("'List of tools: [' {{ tools }}{{ content.split(\"</think>\")[-1] }}", ("tools",), "lfm2", "think"),
        ("<functions>{{ tools }}</functions><function_calls>", ("tools",), "olmo3", None),
        ("Write [func_name1(params_name1=params_value1), func_name2(params)]", ("tools",), "pythonic", None),
        ("<tool_call>\n<function=", ("tools",), "qwen3-coder", None),
        ("<seed:tool_call>\n<function=a>\n<parameter=b><seed:think>", ("tools",), "seed-oss", "seed-oss"),
        ('Write <function=example_function_name>{"a": "b"}</function>', ("tools",), "llama3-functions", None),
        ("[TOOL_CALLS] [", ("tools",), "mistral", None),
        ("[TOOL_CALLS][ARGS][THINK]", ("tools",), "mistral-args", "mistral"),
        ('<|python_tag|>{"name": function name, "parameters": d}', ("tools",), "llama3", None),
        ("<tools></tools><tool_call>", ("xml_tools",), "hermes", None),
        ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|><think></think>", ("tools",), "kimi-k2", "think"),
        # Most templates of DeepSeek know no tools, but write calls.
        (f"{_DEEPSEEK}```json<think>", ("messages",), "deepseek-v3", "think"),
        (f"{_DEEPSEEK}```json{{% set a = content.split('</think>')[-1] %}}", ("tools",), "deepseek-v3", "think"),
        (f"{_DEEPSEEK}{{% if thinking %}}<think>{{% endif %}}", ("thinking",), "deepseek-v3.1", "think"),
        (_DEEPSEEK, ("tools",), "deepseek-v3.1", None),
        ("{{ messages }} respond only with <|tool_call|> and a list; or <think>", ("tools",), "granite3", "think"),
        ("with <|tool_call|>; or <think></think> and <response></response>", ("tools",), "granite3", "granite3.3"),
        ("with <|tool_call|>; or after 'Here is my thought process:'", ("tools",), "granite3", "granite3.2"),
        ("<minimax:tool_call><response>{{ result }}</response><think>", ("tools",), "minimax-m2", "think"),
        # These templates put their markers together from a control token and the rest.
        (f"{{% set token = '{DSML}' %}}<{{{{ token }}}}function_calls><think>", ("tools",), "deepseek-v3.2", "think"),
        (f"{{% set token = '{DSML}' %}}<{{{{ token }}}}tool_calls><think>", ("tools",), "deepseek-v4", "think"),
        (f"{{% set token = '{DSML}' %}}<{{{{ token }}}} calls><think>", ("tools",), "deepseek-v4.1", "think"),
        (
            "{% set namespace = ']<]minimax[>[' %}{{ namespace + '<tool_call>' }}<mm:think>",
            ("tools",),
            None,
            "minimax-m3",
        ),
        ("<global_setting>think_mode=True<tool_call><think><response>", ("tools",), "hermes", "ernie-4.5"),
        ("<|extra_0|><tool_calls>[]</tool_calls><think>\n\n</think>", ("tools",), "jamba", "hunyuan"),
        ("<｜hy_User｜><｜hy_Assistant｜><think>", ("messages",), "hermes", "hunyuan"),  # noqa: RUF001
        ("<|extra_0|>", ("messages",), "hermes", None),
        ("{{ message['tools'] }}<|/tool|>", ("tools",), "phi4-mini", None),
        ("<|tool_call|>{{ call | tojson }}<|/tool_call|>", ("tools",), "phi4-mini", None),
        ("Begin calls with functools[{...}]", ("tools",), "functools", None),
        ("<|START_THINKING|>{{ plan }}<|END_THINKING|><|START_ACTION|>[", ("tools",), "cohere", "cohere"),
        ("<|inner_prefix|><|inner_suffix|><|tools_prefix|>[", ("tools",), "apertus", "apertus"),
        ("<AVAILABLE_TOOLS>[{{ tools }}<TOOLCALL>[<think>", ("tools",), "nemotron", "think"),
        ("<|tool_call_of_another_kind|>", ("tools",), None, None),
        (_SMOLLM2, ("messages",), "smollm2", None),
        ("<|start_header_id|>", ("messages",), "llama3", None),
        ("[INST]", (), "mistral", None),
        ("", (), "hermes", None),
        (None, (), "hermes", None),
    ],
)
def test_formats_of_templates(
    template: str | None, variables: tuple[str, ...], tool_format: str | None, reasoning_format: str | None
) -> None:
    found = formats(template, *variables)
    assert (found.tool_format and found.tool_format.name) == tool_format
    assert (found.reasoning_format and found.reasoning_format.name) == reasoning_format


def test_internlm_is_known_by_its_special_tokens_as_its_templates_say_nothing_of_tools() -> None:
    for variables, expected in ((("messages",), "internlm"), (("messages", "tools"), "hermes")):
        description = ModelDescription("m", 100, 100, "<|im_start|><tool_call>", variables, {5: "<|plugin|>"}, (2,))
        found = Formats.of(description, "auto", "auto").tool_format
        assert found is not None
        assert found.name == expected


def test_formats_can_be_named() -> None:
    found = formats(_QWEN, "tools", tools="llama3", reasoning="none")
    assert found.tool_format is not None
    assert (found.tool_format.name, found.reasoning_format) == ("llama3", None)
    assert formats("", reasoning="think").reasoning_format is not None
    assert formats("", tools="mistral").are_special(("[TOOL_CALLS]",))


@pytest.mark.parametrize(
    ("variables", "effort", "found"),
    [
        ("reasoning_effort", "low", {"reasoning_effort": "low"}),
        ("reasoning_effort", "none", {"reasoning_effort": "none"}),
        ("reasoning_effort enable_thinking", "none", {"reasoning_effort": "none", "enable_thinking": False}),
        ("reasoning_effort enable_thinking", "low", {"reasoning_effort": "low"}),
        ("enable_thinking", "none", {"enable_thinking": False}),
        ("enable_thinking", None, {}),
        ("thinking", "none", {"thinking": False}),
        ("thinking enable_thinking", "none", {"enable_thinking": False}),
        ("thinking", "low", "effort is 'low'; it must be 'none' or absent, as the model knows no levels"),
        ("messages", None, {}),
        ("enable_thinking", "low", "effort is 'low'; it must be 'none' or absent, as the model knows no levels"),
        ("messages", "none", "effort is 'none'; it must be absent, as the model's chat template does not use it"),
    ],
)
def test_the_effort_is_what_the_template_has_for_it(
    variables: str, effort: Effort | None, found: dict[str, Any] | str
) -> None:
    model = formats("", *variables.split())
    if isinstance(found, dict):
        assert effort_variables(effort, "effort", model) == found
    else:
        with pytest.raises(ApiError) as raised:
            effort_variables(effort, "effort", model)
        assert (raised.value.status_code, raised.value.detail, raised.value.param) == (400, found, "effort")


@pytest.mark.parametrize(
    ("template", "switch"),
    [("<think>", "enable_thinking"), ("<think>", "thinking"), ("<|START_THINKING|>", "reasoning")],
)
def test_thinking_is_turned_on_and_off_with_the_variable_of_the_template(template: str, switch: str) -> None:
    model = formats(template, switch)
    assert thinking_variables(Thinking(type="enabled"), model) == {switch: True}
    assert thinking_variables(Thinking(type="disabled"), model) == {switch: False}


def test_a_variable_named_reasoning_is_a_switch_only_beside_the_thoughts_of_command() -> None:
    assert formats("<think>", "reasoning").thinking_switch is None
    assert effort_variables("none", "effort", formats("<|START_THINKING|>", "reasoning")) == {"reasoning": False}


TOOL = Tool("now", description="Tells the time.")
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
MESSAGES: Any = [
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "5"},
    {"role": "tool", "tool_call_id": "call_2", "content": "6"},
]


def test_a_template_that_knows_tools_gets_them() -> None:
    shown = shown_chat(MESSAGES, [TOOL], {"a": 1}, formats(_QWEN, "tools"))
    assert (shown.messages, shown.tools, shown.template_kwargs) == (MESSAGES, [TOOL.shown()], {"a": 1})


def test_smollm3_gets_tools_in_its_own_variable() -> None:
    shown = shown_chat(MESSAGES, [TOOL], {"a": 1}, formats("<tool_call>", "xml_tools"))
    assert (shown.tools, shown.template_kwargs) == (None, {"xml_tools": [TOOL.shown()], "a": 1})


def test_messages_say_what_a_template_does_not_know() -> None:
    shown = shown_chat(MESSAGES, [TOOL], {}, formats(_SMOLLM2))
    assert shown.tools is None
    system, question, call, results = shown.messages
    assert system["role"] == "system"
    assert "Tells the time." in str(system["content"])
    assert question == MESSAGES[0]
    written = '<tool_call>[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]</tool_call>'
    assert call == {"role": "assistant", "content": f"I look.\n{written}"}
    result = "<tool_response>\n5\n</tool_response>\n<tool_response>\n6\n</tool_response>"
    assert results == {"role": "user", "content": result}
    with_system: Any = [{"role": "system", "content": "Be brief."}, MESSAGES[0]]
    (system, _) = shown_chat(with_system, [TOOL], {}, formats(_SMOLLM2)).messages
    assert str(system["content"]).startswith("Be brief.\n\nYou are an expert")
    assert shown_chat(with_system, [], {}, formats(_SMOLLM2)).messages == with_system


@pytest.mark.parametrize(
    ("template", "role", "written"),
    [
        (
            "<|tool_call|>",
            "tool_response",
            '<|tool_call|>[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
        ),
        (
            "<|/tool|>",
            "tool",
            '<|tool_call|>[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]<|/tool_call|>',
        ),
        ("List of tools: <|tool_list_start|>[", "tool", "<|tool_call_start|>[now(), now()]<|tool_call_end|>"),
        ("[gMASK]<sop>{{ metadata }}", "observation", "now\n{}\nnow\n{}"),
        (
            "<|action_start|><|plugin|>",
            "environment",
            '<|action_start|><|plugin|>\n{"name": "now", "parameters": {}}<|action_end|>' * 2,
        ),
    ],
)
def test_results_have_a_role_of_their_own_where_the_model_knows_one(template: str, role: str, written: str) -> None:
    shown = shown_chat(MESSAGES, [TOOL], {}, formats(template, "tools"))
    assert shown.tools == [TOOL.shown()]
    question, call, *results = shown.messages
    assert (question, call) == (MESSAGES[0], {"role": "assistant", "content": f"I look.\n{written}"})
    assert results == [{"role": role, "content": "5"}, {"role": role, "content": "6"}]


def test_calls_that_nobody_can_write_are_refused_and_not_left_out() -> None:
    unknown = formats("<|tool_call_of_another_kind|>", "tools")
    with pytest.raises(
        InvalidRequest, match=r"^messages\[1\]\.tool_calls cannot be shown to the model: .*--tool-format"
    ):
        shown_chat(MESSAGES, [], {}, unknown)
    assert shown_chat(MESSAGES[:1], [], {}, unknown).messages == MESSAGES[:1]
    writes = formats("<|tool_call_of_another_kind|>{{ messages[0].tool_calls }}", "tools")
    assert shown_chat(MESSAGES, [], {}, writes).messages == MESSAGES


def test_harmony_shows_one_call_in_a_message_and_its_result_after_it() -> None:
    form = formats("<|channel|>analysis<|message|>{{ messages[0].tool_calls }}", "tools")
    calls = [{**CALL, "id": name} for name in ("one", "two")]
    question, result = MESSAGES[0], {"role": "tool", "content": "5"}
    asked: Any = {"role": "assistant", "content": "I look.", "reasoning_content": "So.", "tool_calls": calls}
    first, second = ({**result, "tool_call_id": name} for name in ("one", "two"))
    shown = shown_chat([question, asked, second, first, question], [TOOL, Tool("other")], {}, form)
    assert [tool["function"]["description"] for tool in shown.tools or ()] == ["Tells the time.", ""]
    assert shown.messages == [
        question,
        {"role": "assistant", "reasoning_content": "So.\nI look.", "tool_calls": calls[:1]},
        first,
        {"role": "assistant", "tool_calls": calls[1:]},
        second,
        question,
    ]
    alone: Any = {"role": "assistant", "content": None, "tool_calls": calls[:1]}
    shown = shown_chat([question, alone, first], [TOOL], {}, form)
    assert shown.messages == [question, {"role": "assistant", "tool_calls": calls[:1]}, first]


def test_functiongemma_is_told_whose_result_it_is() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"id": "one", "type": "function", "function": {"name": name, "arguments": "{}"}}

    form = formats("<start_function_call>{{ messages[0].tool_calls }}", "tools")
    asked: Any = {"role": "assistant", "content": None, "tool_calls": [call("now"), call("rain")]}
    results: Any = [{"role": "tool", "tool_call_id": "one", "content": content} for content in ("5", "wet")]
    *_, first, second = shown_chat([MESSAGES[0], asked, *results], [TOOL], {}, form).messages
    assert [(one["name"], one["content"]) for one in (first, second)] == [("now", "5"), ("rain", "wet")]


def test_templates_of_deepseek_write_calls_but_are_told_of_tools_by_the_gateway() -> None:
    shown = shown_chat(MESSAGES, [TOOL], {}, formats(_DEEPSEEK, "messages"))
    system, *others = shown.messages
    assert (shown.tools, others) == (None, MESSAGES)
    assert "Tells the time." in str(system["content"])
    assert deepseek_v31("NAME", "ARGUMENTS") in str(system["content"])


def test_a_template_that_writes_calls_only_beside_null_gets_them_as_text() -> None:
    template = (
        f"{{% if message['role'] == 'assistant' and message['content'] is none %}}{_DEEPSEEK}```json{{% endif %}}"
    )
    _, _, call, results = shown_chat(MESSAGES, [TOOL], {}, formats(template, "messages")).messages
    assert "tool_calls" not in call
    written = deepseek_v3("now", "{}")
    assert call["content"] == f"I look.\n{DEEPSEEK_CALLS}{written}\n{written}{DEEPSEEK_CALLS_END}"
    assert results["role"] == "user"


def test_kimi_k2_gets_ids_that_name_the_function_and_number_the_calls_of_the_conversation() -> None:
    def calls(*pairs: tuple[str, str]) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
                for call_id, name in pairs
            ],
        }

    def results(*call_ids: str) -> list[dict[str, Any]]:
        return [{"role": "tool", "tool_call_id": call_id, "content": "5"} for call_id in call_ids]

    question, form = MESSAGES[0], formats("<|tool_call_argument_begin|>{{ messages[0].tool_calls }}", "tools")
    # Results come in any order, and a client may use an id again.
    sent: Any = [question, calls(("a", "now"), ("b", "look.up")), *results("b", "a"), question, calls(("a", "now"))]
    first, second, third = "functions.now:0", "functions.look.up:1", "functions.now:2"
    assert shown_chat([*sent, *results("a")], [TOOL], {}, form).messages == [
        question,
        calls((first, "now"), (second, "look.up")),
        *results(second, first),
        question,
        calls((third, "now")),
        *results(third),
    ]
    # Several calls of a message may have one id.
    same: Any = [question, calls(("a", "now"), ("b", "now"), ("a", "look.up")), *results("a", "b", "a", "a")]
    first, second, third = "functions.now:0", "functions.now:1", "functions.look.up:2"
    assert shown_chat(same, [TOOL], {}, form).messages == [
        question,
        calls((first, "now"), (second, "now"), (third, "look.up")),
        *results(first, second, third, third),
    ]
    # Its own ids stay as they are, and so does one that belongs to no call.
    own: Any = [question, calls((first, "now")), *results(first), *results("c")]
    assert shown_chat(own, [TOOL], {}, form).messages == own


def ids_of(messages: Sequence[Message]) -> list[str | list[str]]:
    return [
        [call["id"] for call in message["tool_calls"]] if "tool_calls" in message else message["tool_call_id"]
        for message in messages
    ]


def calling(*call_ids: str) -> Any:
    return {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": call_id} for call_id in call_ids]}


def results(*call_ids: str) -> list[Any]:
    return [{"role": "tool", "tool_call_id": call_id, "content": "5"} for call_id in call_ids]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ([calling("a", "b"), *results("b", "a", "c")], [["a", "b"], "b", "a", "c"]),
        ([calling("a", "b", "a"), *results("a", "b", "a", "a")], [["a", "b", "a-1"], "a", "b", "a-1", "a-1"]),
        ([calling("a"), *results("a"), calling("a"), *results("a")], [["a"], "a", ["a-1"], "a-1"]),
        # The results of the first two calls never came.
        (
            [calling("a", "a"), calling("a-1", "a"), *results("a", "a-1")],
            [["a", "a-1"], ["a-1-1", "a-2"], "a-2", "a-1-1"],
        ),
    ],
    ids=["own", "in one message", "in two messages", "in both"],
)
def test_a_result_belongs_to_one_call_even_if_several_have_its_id(sent: Any, shown: list[str | list[str]]) -> None:
    """Command's templates number calls, and look for the number of a result by the id of its call."""
    form = formats("<|START_ACTION|>{{ messages[0].tool_calls }}", "tools")
    assert ids_of(shown_chat(sent, [TOOL], {}, form).messages) == shown


def test_a_message_that_is_no_result_gets_no_id() -> None:
    form = formats("<|START_ACTION|>{{ messages[0].tool_calls }}", "tools")
    assert shown_chat([calling(""), *results(""), MESSAGES[0]], [TOOL], {}, form).messages[2] == MESSAGES[0]


def test_harmony_shows_the_result_of_each_call_once_even_if_they_have_one_id() -> None:
    form = formats("<|channel|>analysis<|message|>{{ messages[0].tool_calls }}", "tools")
    shown = shown_chat([calling("a", "a"), *results("a", "a")], [TOOL], {}, form)
    assert ids_of(shown.messages) == [["a"], "a", ["a-1"], "a-1"]
