"""Which formats a model uses is found from its chat template."""

from typing import Any

import pytest

from inflight_client import ModelDescription
from inflight_gateway.chat_request import Effort
from inflight_gateway.errors import ApiError
from inflight_gateway.formats import Formats
from inflight_gateway.reasoning_effort import effort_variables
from inflight_gateway.shown_chat import shown_chat
from inflight_gateway.tool_formats import Tool

_QWEN = (
    "{% if tools %}<tools>{% endif %}<tool_call>{{ messages[0].tool_calls }}{% if enable_thinking %}<think>{% endif %}"
)
_SMOLLM2 = "{% if messages[0].role != 'system' %}You are a helpful AI assistant named SmolLM, trained by HF{% endif %}"


def formats(template: str | None, *variables: str, tools: str = "auto", reasoning: str = "auto") -> Formats:
    description = ModelDescription("m", 100, 100, template, variables, {5: "[TOOL_CALLS]"}, (2,))
    return Formats.of(description, tools, reasoning)


@pytest.mark.parametrize(
    ("template", "variables", "tool_format", "reasoning_format"),
    [
        (_QWEN, ("messages", "tools"), "hermes", "think"),
        ("<tool_call>\n<function=", ("tools",), "qwen3-coder", None),
        ("[TOOL_CALLS] [", ("tools",), "mistral", None),
        ("[TOOL_CALLS][ARGS][THINK]", ("tools",), "mistral-args", "mistral"),
        ('<|python_tag|>{"name": function name, "parameters": d}', ("tools",), "llama3", None),
        ("<tools></tools><tool_call>", ("xml_tools",), "hermes", None),
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
