"""Converts chat messages to a prompt with the model's own chat template."""

import re
from typing import Any

import jinja2

from inflight.errors import InvalidRequest
from inflight.text.unicode import check_unicode

_REQUIRED = ("role", "content")
_KEYS = (*_REQUIRED, "name", "reasoning_content")
"""The keys of a message. Templates may ignore the optional ones."""

MAX_MESSAGES = 4096

# Templates write roles into control tokens, such as `<|user|>`, so a role must not bring markup of its own.
_ROLE = re.compile(r"[\w-]{1,64}")


def chat_text(tokenizer: Any, messages: object) -> str:
    """Return the text of a conversation, including the header of the assistant's next message.

    It shows how long the conversation is. Only `chat_ids` may tokenize it, because messages can hold control tokens.

    Args:
        tokenizer: a transformers tokenizer.
        messages: a list of objects with the texts `role` and `content`; `name` and `reasoning_content` are optional.

    Raises:
        InvalidRequest: the messages are malformed, or the model has no chat template or refuses them.
    """
    if tokenizer.chat_template is None:
        raise InvalidRequest("messages is given, but the model has no chat template; give text_input")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list of at least 1 message")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages has {len(messages)} messages; it must have at most {MAX_MESSAGES}")
    for index, message in enumerate(messages):
        _check(index, message)
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except jinja2.TemplateError as error:
        raise InvalidRequest(f"messages do not fit the model's chat template: {error}") from error
    except Exception as error:
        # Templates are code of the model's authors, and what it raises depends on the messages.
        reason = f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"messages do not fit the model's chat template: {reason}") from error


def chat_ids(tokenizer: Any, messages: object) -> list[int]:
    """Return the tokens of a conversation that `chat_text` has accepted.

    All control tokens come from the template. Those that a message spells out are encoded as ordinary text, so that
    nobody can end a turn from within it, or begin one in another role.

    Raises:
        InvalidRequest: the tokenizer makes a control token of ordinary text.
    """
    try:
        token_ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, sanitize_control_tokens=True
        )
    except ValueError as error:
        raise InvalidRequest(f"messages hold a control token: {error}") from error
    return token_ids


def _check(index: int, message: object) -> None:
    if not isinstance(message, dict):
        raise InvalidRequest(f"messages[{index}] is {message!r}; it must be an object with role and content")
    for name in message:
        if name not in _KEYS:
            raise InvalidRequest(f"messages[{index}] has the key {name!r}; it must have only {', '.join(_KEYS)}")
    for name in _KEYS:
        if name in message or name in _REQUIRED:
            if not isinstance(message.get(name), str):
                raise InvalidRequest(f"messages[{index}].{name} is {message.get(name)!r}; it must be a text")
            check_unicode(f"messages[{index}].{name}", message[name])
    if not _ROLE.fullmatch(message["role"]):
        raise InvalidRequest(
            f"messages[{index}].role is {message['role']!r}; it must be 1 to 64 letters, digits, '_' and '-'"
        )
