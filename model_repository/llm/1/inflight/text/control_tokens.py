"""Finds control tokens in what a client wrote, where transformers would not keep them as text."""

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from inflight.errors import InvalidRequest
from inflight.text.json_tree import keys_and_texts

Render = Callable[..., str]
# What begins no control token, nor is a part of one.
_HARMLESS = "x"
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_control_tokens(
    tokenizer: Any, template: str, parts: dict[str, Any], render: Render, check_size: Callable[[str], object]
) -> None:
    """Refuse a chat whose control tokens would not stay text.

    transformers puts marks around the control tokens in the texts of messages and tools, and encodes what is between
    marks as text. That is not enough:

    - It does not mark the keys of objects.
    - A template that writes a Python object, as SmolLM3's writes tools, escapes the marks, which then mark nothing.
    - A template may put a control token together, from parts of a content or by taking `/think` out of it.
    - A template may write a role into a control token, such as `<|user|>`.
    - A tokenizer that normalizes characters may make one of others that look like it.

    Args:
        tokenizer: a transformers tokenizer.
        template: its chat template.
        parts: the client's values by field.
        render: renders parts, given as keyword arguments.
        check_size: called with a text that has no control tokens of the client. As text, these are longer.

    Raises:
        InvalidRequest: the message names the field.
    """
    # Not at the top: the text of the engine can be used without transformers.
    from transformers.utils.chat_template_utils import mark_control_tokens

    added = tokenizer.added_tokens_decoder.values()
    special = [token.content for token in added if token.special]
    # What transformers takes for control tokens: all special ones, and those that the template writes.
    written = [token.content for token in added if token.content in template and not token.content.isspace()]
    tokens = _any_of({*special, *written})
    found = _find(tokens, parts)
    _check_normalized(tokenizer, _any_of(special), parts)
    _check_roles(parts["messages"], template, special)
    harmless = _without({token[0] for token in special if not token[0].isalnum()}, parts)
    if found is None and harmless == parts:
        return
    marked, plain = render(**mark_control_tokens(parts, tokens)), render(**harmless)
    start, _, end = mark_control_tokens("x", re.compile("x"))
    if found is not None and (repr(start)[1:-1] in marked or json.dumps(start)[1:-1] in marked):
        name, token = found
        raise InvalidRequest(f"{name} holds the control token {token!r}, which would not stay text")
    check_size(plain)
    outside = re.sub(f"{start}.*?{end}", start, marked, flags=re.DOTALL)
    if len(_any_of(special).findall(outside)) > len(_any_of(special).findall(plain)):
        raise InvalidRequest("messages hold parts of a control token, which would become one")


def _any_of(tokens: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # `(?!)` never matches.


def _find(tokens: re.Pattern[str], parts: dict[str, Any]) -> tuple[str, str] | None:
    """Return a field with a control token in it, and that token. Refuse one in a key."""
    found = None
    for name, part in parts.items():
        for text, is_key in keys_and_texts(part):
            if (match := tokens.search(text)) is None:
                continue
            if is_key:
                raise InvalidRequest(f"{name} has the key {text!r}; it must not hold the control token {match[0]!r}")
            found = name, match[0]
    return found


def _check_roles(messages: list[dict[str, Any]], template: str, special: list[str]) -> None:
    """A role must not be what makes a control token of its surroundings, except for those that templates expect."""
    for index, message in enumerate(messages):
        role = message["role"]
        if role in _ROLES or f"'{role}'" in template or f'"{role}"' in template:
            continue
        if (token := next((token for token in special if role in token), None)) is not None:
            raise InvalidRequest(f"messages[{index}].role is {role!r}, a part of the control token {token!r}")


def _check_normalized(tokenizer: Any, special: re.Pattern[str], parts: dict[str, Any]) -> None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.normalizer is None:
        return
    for name, part in parts.items():
        for text, _ in keys_and_texts(part):
            after = special.findall(backend.normalizer.normalize_str(text))
            if len(after) > len(special.findall(text)):
                raise InvalidRequest(f"{name} holds a text that would become the control token {after[0]!r}")


def _without(openings: set[str], value: Any) -> Any:
    """Return a value in whose texts no control token begins."""
    if isinstance(value, str):
        return value.translate(dict.fromkeys(map(ord, openings), _HARMLESS))
    if isinstance(value, dict):
        return {key: _without(openings, each) for key, each in value.items()}
    return [_without(openings, each) for each in value] if isinstance(value, list) else value
