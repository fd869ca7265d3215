"""Converts a chat to a prompt with the model's own chat template."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jinja2

from inflight.errors import InvalidRequest
from inflight.text.call_form import calls_in_form
from inflight.text.chat_messages import checked_messages
from inflight.text.chat_tools import checked_tools
from inflight.text.content_parts import reads_parts, with_parts
from inflight.text.control_tokens import check_control_tokens
from inflight.text.json_tree import check_tree
from inflight.text.message_order import in_order
from inflight.text.thoughts import with_thoughts_apart
from inflight.text.tools_in_message import with_tools
from inflight.text.unknown_text import unknown_text_refused

MAX_TEMPLATE_KWARGS = 32
_MAX_NAME_CHARACTERS = 64
_DOCUMENTS = "documents"
"""A variable that has a parameter of its own in transformers, but no field here."""


@dataclass(frozen=True)
class Chat:
    """A conversation as a client sends it: values that were decoded from JSON."""

    messages: object
    """See `checked_messages`."""
    tools: object | None = None
    """See `checked_tools`."""
    template_kwargs: object = field(default_factory=dict)
    """Variables for the template, such as `enable_thinking`."""
    add_generation_prompt: bool | None = None
    """Whether the header of the assistant's next message follows. Default: unless the last message is continued."""
    continue_final_message: bool = False
    """Whether the output continues the last message, which is the assistant's."""


def chat_ids(tokenizer: Any, chat: Chat, check_size: Callable[[str], object] = len) -> list[int]:
    """Return the tokens of a conversation, and of the header of the assistant's next message where one begins.

    All control tokens come from the template. Those that a message or a tool spells out are encoded as ordinary text,
    so that nobody can end a turn from within it, or begin one in another role.

    Args:
        tokenizer: a transformers tokenizer.
        chat: the conversation.
        check_size: called with the text of the conversation before it is tokenized; it may raise InvalidRequest.

    Raises:
        InvalidRequest: the chat is malformed, or the model has no chat template or refuses it, or a control token
            cannot be kept as text.
    """
    if tokenizer.chat_template is None:
        raise InvalidRequest("messages is given, but the model has no chat template; give text_input")
    messages = checked_messages(chat.messages)
    end = _checked_end(chat, messages[-1])
    in_form = with_parts if _reads_parts(tokenizer) else list
    messages = in_order(messages, lambda probe: tokenizer.apply_chat_template(in_form(probe), tokenize=False))
    tools = None if chat.tools is None else checked_tools(chat.tools)
    messages = calls_in_form(
        messages, lambda probe: tokenizer.apply_chat_template(in_form(probe), tools=tools, tokenize=False)
    )
    template = _template(tokenizer, tools)
    if not chat.continue_final_message:
        messages = with_thoughts_apart(messages, template)
    messages = with_tools(messages, tools, template)
    parts: dict[str, Any] = {
        "messages": in_form(messages),
        "tools": tools,
        "chat_template_kwargs": _checked_kwargs(tokenizer, chat.template_kwargs),
    }

    def render(
        messages: Any, tools: Any, chat_template_kwargs: dict[str, Any], *, tokenize: bool = False, **options: Any
    ) -> Any:
        return tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=tokenize, **end, **options, **chat_template_kwargs
        )

    try:
        check_size(render(**parts))
        check_control_tokens(tokenizer, template, parts, render, check_size)
    except InvalidRequest:
        raise
    except jinja2.TemplateError as error:
        raise InvalidRequest(f"messages do not fit the model's chat template: {error}") from error
    except Exception as error:
        # Templates are code of the model's authors, and what it raises depends on the messages.
        if chat.continue_final_message and "continue_final_message" in str(error):
            raise InvalidRequest(
                "continue_final_message is true, but the model's chat template changes the last message"
            ) from error
        reason = f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"messages do not fit the model's chat template: {reason}") from error
    with unknown_text_refused("messages"):
        try:
            token_ids: list[int] = render(**parts, tokenize=True, return_dict=False, sanitize_control_tokens=True)
        except ValueError as error:
            raise InvalidRequest(f"messages hold a control token: {error}") from error
    return token_ids


def _template(tokenizer: Any, tools: Any) -> str:
    try:
        return str(tokenizer.get_chat_template(tools=tools))
    except ValueError as error:  # There are several, and none for such a chat.
        raise InvalidRequest(f"messages do not fit the model's chat templates: {error}") from error


def _reads_parts(tokenizer: Any) -> bool:
    return reads_parts(partial(tokenizer.apply_chat_template, tokenize=False))


def _checked_end(chat: Chat, last: dict[str, Any]) -> dict[str, bool]:
    """Return how the conversation ends, as `apply_chat_template` takes it."""
    if not chat.continue_final_message:
        return {"add_generation_prompt": chat.add_generation_prompt is not False}
    if chat.add_generation_prompt:
        raise InvalidRequest("add_generation_prompt is true; it must be false where continue_final_message is true")
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise InvalidRequest(
            "continue_final_message is true; the last message must be one of the assistant, without tool_calls"
        )
    if not isinstance(last["content"], str):
        raise InvalidRequest("continue_final_message is true; the last message must be a text, without images")
    if not last["content"].strip():
        raise InvalidRequest("continue_final_message is true; the last message must have a content to continue")
    return {"continue_final_message": True}


def _checked_kwargs(tokenizer: Any, given: object) -> dict[str, Any]:
    """Return variables for the template. None may replace what the engine itself gives to the template."""
    if not isinstance(given, dict):
        raise InvalidRequest(f"chat_template_kwargs is {given!r}; it must be an object")
    if len(given) > MAX_TEMPLATE_KWARGS:
        raise InvalidRequest(f"chat_template_kwargs has {len(given)} keys; it must have at most {MAX_TEMPLATE_KWARGS}")
    check_tree("chat_template_kwargs", given)
    taken = {"messages", "conversations", *inspect.signature(tokenizer.apply_chat_template).parameters} - {_DOCUMENTS}
    for name in given:
        if not name.isidentifier() or len(name) > _MAX_NAME_CHARACTERS:
            raise InvalidRequest(
                f"chat_template_kwargs has the key {name!r}; it must be a variable's name of at most "
                f"{_MAX_NAME_CHARACTERS} characters"
            )
        if name in taken:
            raise InvalidRequest(f"chat_template_kwargs has the key {name!r}, which only the server or a field gives")
    return given
