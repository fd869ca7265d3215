"""Reads the field `embedding_request`, in vllm_backend's format with some additions.

{"input": "text" or [token ids], "pooling_params": {"dimensions": 256, "pooling": "mean", "normalize": true}}
{"input": {"query": "text", "document": "text"}, "pooling_params": {"task": "classify", "use_activation": true}}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from inflight import InvalidRequest, PoolingParams, SamplingParams, TextPair
from inflight.text.chat import Chat
from serving import values
from serving.fields import GROUPS

MAX_CHARACTERS = 2**24
_FOR_ALL = ("Prompt", "Answer", "Queue and limits", "LoRA adapters", "Tracing")
_FOR_GENERATION = {field.name for heading, group in GROUPS.items() if heading not in _FOR_ALL for field in group}
_FOR_GENERATION |= {field.name for field in dataclasses.fields(SamplingParams)}
_OF_PAIRS = ("query", "document")
_POOLING = [field.name for field in dataclasses.fields(PoolingParams)]


def read_embedding_request(fields: Mapping[str, Any]) -> tuple[str | tuple[int, ...] | TextPair | Chat, PoolingParams]:
    """Return the prompt, and what to make of it.

    Raises:
        InvalidRequest: the JSON is malformed, or the request also has a field of another kind of request.
    """
    if other := sorted(_FOR_GENERATION & fields.keys()):
        raise InvalidRequest(f"{other[0]} is given beside embedding_request; an embedding has no such field")
    decoded = values.decoded("embedding_request", fields["embedding_request"], MAX_CHARACTERS)
    _check_object("embedding_request", decoded, ("input", "pooling_params"))
    return _input(decoded.get("input")), _pooling(decoded.get("pooling_params"))


def _input(given: Any) -> str | tuple[int, ...] | TextPair | Chat:
    if given in ("", [], None):
        raise InvalidRequest("input of embedding_request is missing or empty; it must have at least 1 element")
    if isinstance(given, str):
        return values.text("input of embedding_request", given)
    if isinstance(given, dict):
        _check_object("input of embedding_request", given, _OF_PAIRS)
        query, document = (values.text(f"{name} in input of embedding_request", given.get(name)) for name in _OF_PAIRS)
        return TextPair(query, document)
    if isinstance(given, list):
        if isinstance(given[0], dict):
            return Chat(given, add_generation_prompt=False)  # As in vLLM. Reward models read whole chats.
        if isinstance(given[0], str | list):
            raise InvalidRequest("input of embedding_request is a list of prompts; a request has one")
        return values.integers("input of embedding_request", given)
    raise InvalidRequest(
        f"input of embedding_request is {given!r}; it must be a text or a list of token ids, a list of messages, or an "
        "object with query and document"
    )


def _pooling(given: Any) -> PoolingParams:
    if given is None:
        return PoolingParams()
    _check_object("pooling_params", given, tuple(_POOLING))
    found = {name: given[name] for name in _POOLING if given.get(name) is not None}
    if isinstance(dimensions := found.get("dimensions"), list):
        # vllm_backend takes a list and reads its first element.
        if len(dimensions) != 1:
            raise InvalidRequest(f"dimensions is {dimensions!r}; it must be a whole number, or a list of one")
        found["dimensions"] = dimensions[0]
    return PoolingParams(**found)


def _check_object(name: str, given: Any, known: tuple[str, ...]) -> None:
    if not isinstance(given, dict):
        raise InvalidRequest(f"{name} is {given!r}; it must be a JSON object")
    if unknown := sorted(given.keys() - set(known)):
        raise InvalidRequest(f"{name} has the unknown key {unknown[0]!r}; known are {', '.join(known)}")
