"""Calls of tools reach a chat template in the form in which it writes them."""

from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from inflight import InvalidRequest
from inflight.text.call_form import calls_in_form
from inflight.text.chat import Chat, chat_ids
from tests.unit.tiny_tokenizers import byte_level

# Templates read the content and the arguments of a call in these ways.
OBJECT = "{{ m.content or '' }}[{{ c.function.arguments | tojson }}]"
OBJECT_AND_CONTENT = "{{ '?' if '!' in m.content else '' + m.content }}[{{ c.function.arguments | tojson }}]"
TEXT = "{{ m.content or '' }}[{{ '' + c.function.arguments }}]"
TEXT_AND_NULL = "{{ '' if m.content is none else '' + m.content }}[{{ '' + c.function.arguments }}]"
TEXT_AND_CONTENT = "{{ '?' if '!' in m.content else '' + m.content }}[{{ '' + c.function.arguments }}]"
PRINTED = "{{ m.content or '' }}[{{ c.function.arguments }}]"
PRINTED_AND_CONTENT = "{{ '?' if '!' in m.content else '' + m.content }}[{{ c.function.arguments }}]"
TEMPLATES = [OBJECT, OBJECT_AND_CONTENT, TEXT, TEXT_AND_NULL, TEXT_AND_CONTENT, PRINTED, PRINTED_AND_CONTENT]

ARGUMENTS = {"city": 'Ülm "<|end|>"', "days": [1, None]}
WRITTEN = '{"city": "Ülm \\"<|end|>\\"", "days": [1, null]}'


def tokenizer(of_a_call: str) -> PreTrainedTokenizerFast:
    template = (
        "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
        f"{of_a_call}{{% endfor %}}{{% else %}}{{{{ m.content }}}}{{% endif %}}<|end|>{{% endfor %}}"
    )
    made = PreTrainedTokenizerFast(tokenizer_object=byte_level(), chat_template=template)
    made.add_tokens([AddedToken("<|end|>", special=True)], special_tokens=True)
    return made


def calling(arguments: object, **content: object) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "a", "content": "It rains."}
    return [{"role": "user", "content": "Rain?"}, {"role": "assistant", **content, "tool_calls": [call]}, result]


@pytest.mark.parametrize("of_a_call", TEMPLATES)
@pytest.mark.parametrize("arguments", [ARGUMENTS, WRITTEN])
def test_every_template_writes_calls_and_their_control_tokens_stay_text(of_a_call: str, arguments: object) -> None:
    made = tokenizer(of_a_call)
    token_ids = chat_ids(made, Chat(calling(arguments, content=None)))
    assert made.decode(token_ids) == f"Rain?<|end|>[{WRITTEN}]<|end|>It rains.<|end|>"
    assert token_ids.count(made.convert_tokens_to_ids("<|end|>")) == 3


@pytest.mark.parametrize("of_a_call", TEMPLATES)
def test_a_content_beside_the_calls_is_written_too(of_a_call: str) -> None:
    made = tokenizer(of_a_call)
    token_ids = chat_ids(made, Chat(calling({}, content="I look.")))
    assert made.decode(token_ids) == "Rain?<|end|>I look.[{}]<|end|>It rains.<|end|>"


@pytest.mark.parametrize("of_a_call", TEMPLATES[2:])
def test_arguments_that_were_cut_off_stay_as_they_are(of_a_call: str) -> None:
    made = tokenizer(of_a_call)
    assert '[{"city": "Ul]' in made.decode(chat_ids(made, Chat(calling('{"city": "Ul'))))


def test_a_template_that_fails_on_all_calls_is_quoted() -> None:
    with pytest.raises(InvalidRequest, match="do not fit the model's chat template: no calls"):
        chat_ids(tokenizer("{{ raise_exception('no calls') }}"), Chat(calling(ARGUMENTS)))


def test_messages_that_a_template_takes_are_not_changed() -> None:
    messages = calling(ARGUMENTS)
    assert calls_in_form(messages, str) == messages
    assert calls_in_form(messages, lambda _: "A template that writes no calls.") == messages


def test_a_chat_without_calls_is_not_probed() -> None:
    def never(messages: list[dict[str, Any]]) -> str:
        raise AssertionError(messages)

    chat = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "No.", "tool_calls": []}]
    assert calls_in_form(chat, never) == chat
