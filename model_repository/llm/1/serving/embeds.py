"""Reads the embeddings of a prompt."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from inflight import InvalidRequest

EMBEDS = {"prompt_embeds", "prompt_embedding_table"}
_NOT_WITH = ("messages", "embedding_request", "image", "return_prompt")


def read_embeds(fields: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return the embeddings [rows, width], if there are any.

    Raises:
        InvalidRequest: they come under both names or in another number than the request says, or with a field that
            does not go with them.
    """
    names = [name for name in fields if name in EMBEDS]
    if not names:
        if fields.get("prompt_vocab_size"):
            raise InvalidRequest("prompt_vocab_size is given without prompt_embedding_table")
        return None
    if len(names) > 1:
        raise InvalidRequest("prompt_embeds and prompt_embedding_table are both given; give one of them")
    for name in _NOT_WITH:
        if fields.get(name):
            raise InvalidRequest(f"{names[0]} is given with {name}; give one of them")
    embeds: NDArray[Any] = fields[names[0]]
    if (rows := fields.get("prompt_vocab_size", len(embeds))) != len(embeds):
        raise InvalidRequest(f"prompt_vocab_size is {rows}; it must be the {len(embeds)} rows of {names[0]}")
    return embeds
