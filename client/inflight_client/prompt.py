"""What a model is asked: a text or tokens, or two texts."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from inflight_client.errors import InvalidRequest

Prompt: TypeAlias = str | Sequence[int]
"""Text, or token ids."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query and a document, which a reranker reads together."""

    query: str
    document: str
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Variables for a chat template that knows queries and documents, such as an instruction."""


_LARGEST_ID = 2**31 - 1
_BYTES = (bytes, bytearray, memoryview)


def checked(prompt: Prompt) -> Prompt:
    """Return a text as it is, and token ids as a list of plain numbers.

    Raises:
        TypeError: it is neither. Bytes are sequences of numbers for Python, but hardly ever token ids.
        InvalidRequest: the text contains a lone surrogate, or a token id cannot be one.
    """
    if isinstance(prompt, str):
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the prompt is no text of whole characters: {error}") from None
        return prompt
    try:
        ids = None if isinstance(prompt, _BYTES) else [operator.index(token) for token in prompt]
    except TypeError:
        ids = None  # The error below covers this case too.
    if ids is None:
        raise TypeError(f"the prompt is {_shown(prompt)}; it must be a text or a list of token ids")
    for token in ids:
        if not 0 <= token <= _LARGEST_ID:
            raise InvalidRequest(
                f"the prompt has the token id {token}; it must be at least 0 and at most {_LARGEST_ID}"
            )
    return ids


def check_several(prompts: Sequence[object]) -> None:
    """Raise TypeError if there is one prompt in place of several: each of its characters would become a request."""
    if isinstance(prompts, str | bytes):
        raise TypeError(f"prompts is {_shown(prompts)}; it must be a list of prompts")


def _shown(value: object) -> str:
    written = repr(value)
    return written if len(written) <= 100 else f"{written[:100]}..."
