"""Finds control tokens in what a client wrote, where transformers would not keep them as text."""

import json
import re
from collections.abc import Callable
from typing import Any

from inflight.errors import InvalidRequest
from inflight.text.json_tree import keys_and_texts


def check_control_tokens(tokenizer: Any, template: str, parts: dict[str, Any], render: Callable[..., str]) -> None:
    """Refuse a chat whose control tokens would not stay text.

    transformers puts marks around the control tokens in the texts of messages and tools, and encodes what is between
    marks as text. It does not mark the keys of objects. And a template that writes a Python object, as SmolLM3's writes
    tools, escapes the marks, which then mark nothing.

    Args:
        tokenizer: a transformers tokenizer.
        template: its chat template.
        parts: the client's values by field.
        render: renders parts, given as keyword arguments.

    Raises:
        InvalidRequest: the message names the field.
    """
    # Not at the top: the text of the engine can be used without transformers.
    from transformers.utils.chat_template_utils import mark_control_tokens

    tokens = _control_tokens(tokenizer, template)
    found = None
    for name, part in parts.items():
        for text, is_key in keys_and_texts(part):
            if (match := tokens.search(text)) is None:
                continue
            if is_key:
                raise InvalidRequest(f"{name} has the key {text!r}; it must not hold the control token {match[0]!r}")
            found = name, match[0]
    if found is None:
        return
    mark = mark_control_tokens("x", re.compile("x"))[0]
    rendered = render(**mark_control_tokens(parts, tokens))
    if repr(mark)[1:-1] in rendered or json.dumps(mark)[1:-1] in rendered:
        name, token = found
        raise InvalidRequest(f"{name} holds the control token {token!r}, which would not stay text")


def _control_tokens(tokenizer: Any, template: str) -> re.Pattern[str]:
    """The tokens that transformers takes for control tokens: all special ones, and those that the template writes."""
    added = tokenizer.added_tokens_decoder.values()
    contents = [
        token.content for token in added if token.special or (token.content in template and not token.content.isspace())
    ]
    longest_first = sorted(contents, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # `(?!)` never matches.
