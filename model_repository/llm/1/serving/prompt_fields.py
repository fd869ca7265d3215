"""Reads the prompt of a request, in each of its forms, and refuses what does not go together with it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from inflight import InvalidRequest, PoolingParams, TextPair
from inflight.text.chat import Chat
from serving import values
from serving.embedding_request import read_embedding_request
from serving.embeds import EMBEDS

MAX_MESSAGES_CHARACTERS = 2**24
_PROMPTS = ("text_input", "messages", "input_ids", "embedding_request")
_OF_CHATS = {
    "tools": "tools",
    "chat_template_kwargs": "template_kwargs",
    "add_generation_prompt": "add_generation_prompt",
    "continue_final_message": "continue_final_message",
}
"""The fields that need messages, and their names in `Chat`."""


Prompt: TypeAlias = str | tuple[int, ...] | TextPair


def read_prompt(fields: Mapping[str, Any]) -> tuple[Prompt | None, Chat | None, PoolingParams | None]:
    """Return the prompt or the chat, and what to make of it if that is an embedding or a classification.

    Raises:
        InvalidRequest: there is not exactly one prompt, or it is empty, or a field of chats is given without one.
    """
    given = [name for name in _PROMPTS if name in fields]
    if not given and fields.keys() & EMBEDS:
        return None, None, None
    if given == ["text_input", "embedding_request"] and not fields["text_input"]:
        given = ["embedding_request"]  # Clients of vllm_backend, which requires both, leave the text empty.
    if len(given) != 1:
        raise InvalidRequest(
            f"exactly one of {', '.join(_PROMPTS[:-1])} and {_PROMPTS[-1]} must be given, "
            f"not {' and '.join(given) or 'none'}"
        )
    value = fields[given[0]]
    if not value:
        raise InvalidRequest(f"{given[0]} is empty; it must have at least 1 element")
    pooling = None
    if given[0] == "messages":
        value = Chat(values.decoded("messages", value, MAX_MESSAGES_CHARACTERS))
    elif given[0] == "embedding_request":
        value, pooling = read_embedding_request(fields)
    of_chat = {mine: fields[name] for name, mine in _OF_CHATS.items() if name in fields}
    if isinstance(value, Chat):
        return None, replace(value, **of_chat), pooling
    if isinstance(value, TextPair) and of_chat.keys() == {"template_kwargs"}:
        return replace(value, **of_chat), None, pooling
    for name in _OF_CHATS:
        if name in fields:
            raise InvalidRequest(f"{name} is given with {given[0]}; it needs messages")
    return value, None, pooling


def prompt_images(fields: Mapping[str, Any], pooling: PoolingParams | None) -> tuple[str | bytes, ...]:
    """Return the images of the prompt, as base64. Raises InvalidRequest if an embedding of it is asked for."""
    images: tuple[str | bytes, ...] = fields.get("image", ())
    if images and pooling is not None:
        raise InvalidRequest("image is given with embedding_request; it needs a prompt to generate from")
    return images


def prompt_truncation(fields: Mapping[str, Any], chat: Chat | None) -> int | None:
    """Return how many tokens of the prompt to keep, if the request says: at most so many, or -1.

    Raises:
        InvalidRequest: the number is too small, or the prompt is one that cannot be cut.
    """
    most: int | None = fields.get("truncate_prompt_tokens")
    if most is None:
        return None
    if fields.keys() & EMBEDS:
        raise InvalidRequest("truncate_prompt_tokens is given with prompt_embeds; such a prompt cannot be cut")
    if fields.get("image"):
        raise InvalidRequest("truncate_prompt_tokens is given with image; a prompt with images cannot be cut")
    if chat is not None:
        raise InvalidRequest("truncate_prompt_tokens is given with messages; it needs a prompt without a chat template")
    if most < 1 and most != -1:
        raise InvalidRequest(f"truncate_prompt_tokens is {most}; it must be at least 1, or -1")
    return most
