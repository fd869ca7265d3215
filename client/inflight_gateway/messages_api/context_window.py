"""How Anthropic's API treats conversations for which the model's context is too short.

Programs such as Claude Code ask for more tokens than a small model's context has room for, and shorten a conversation
when an error says in Anthropic's words that it is too long.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from inflight_client import InvalidRequest
from inflight_gateway.asked_form import invalid

EXCEEDED = "model_context_window_exceeded"
"""The stop reason of an answer that has filled the context."""

# How the server refuses a prompt by its tokens, because of the context or the KV cache, and by its characters before it
# makes tokens of them.
_TOKENS = re.compile(r"prompt has (\d+) tokens; it must have at most (\d+)")
_CACHED = re.compile(r"prompt and max_tokens are (\d+) and 1 tokens; .* as the KV cache holds (\d+)")
_TEXT = re.compile(r"messages (is|has) .* (characters|bytes|tokens)\b.* as the context is ")
# How the server refuses `max_tokens` because of the context, and because of the KV cache.
_NO_ROOM = ("max_tokens is ", "prompt and max_tokens are ")


def is_too_much(error: InvalidRequest) -> bool:
    """Whether the server refused `max_tokens` because there is less room after the prompt."""
    return str(error).startswith(_NO_ROOM)


@contextmanager
def naming_length() -> Iterator[None]:
    """Refuse a prompt that is too long as Anthropic does. Raises ApiError for it."""
    try:
        yield
    except InvalidRequest as error:
        if (counts := _TOKENS.match(str(error)) or _CACHED.match(str(error))) is not None:
            text = f"prompt is too long: {counts[1]} tokens > {counts[2]} maximum"
        elif _TEXT.match(str(error)):
            text = f"prompt is too long: {error}"
        else:
            raise
        raise invalid("messages", text) from error
