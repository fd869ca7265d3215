"""The input of a batch: a line of JSON for each request."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from inflight_client import InvalidRequest, Message, Prompt, Sampling

# A line of the output has one answer, and only its text.
_FIELDS = Sampling.__optional_keys__ - {"n", "logprobs", "sampling_parameters"}


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line of the file, checked by nobody yet."""

    index: int
    """From 0."""
    text: bytes
    digest: str
    """Of the line and of what else decides on its answer."""


def read_lines(path: Path, model: str, defaults: Sampling) -> Iterator[InputLine]:
    """The lines of a batch that asks `model`, with `defaults` for what the lines don't say."""
    common = json.dumps([model, defaults], sort_keys=True).encode()
    with path.open("rb") as file:
        for index, text in enumerate(map(bytes.strip, file)):
            yield InputLine(index, text, hashlib.sha256(common + b"\n" + text).hexdigest()[:16])


def parse_object(text: bytes) -> dict[str, Any]:
    """The JSON object that a line holds.

    Raises:
        InvalidRequest: it holds none.
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the line is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"the line is not a JSON object, but {type(document).__name__}")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def take_id(document: dict[str, Any]) -> str | int | None:
    """Take the `id` out of a line, None where there is none.

    Raises:
        InvalidRequest: it is neither text nor a whole number.
    """
    value = document.pop("id", None)
    if value is not None and type(value) not in (str, int):
        raise InvalidRequest("id must be text or a whole number")
    return cast("str | int | None", value)


def parse_request(document: dict[str, Any], defaults: Sampling) -> tuple[Prompt | None, list[Message] | None, Sampling]:
    """Prompt, messages and sampling of a line that has no `id` any more; values are left to the server to judge.

    Raises:
        InvalidRequest: a field that does not exist, or not exactly one of `prompt` and `messages`.
    """
    sampling = dict(document)
    prompt, messages = sampling.pop("prompt", None), sampling.pop("messages", None)
    if (prompt is None) == (messages is None):
        raise InvalidRequest("the line must have either prompt or messages")
    if not (prompt is None or isinstance(prompt, str) or _is_token_ids(prompt)):
        raise InvalidRequest("prompt must be text or a list of token ids")
    if not (messages is None or isinstance(messages, list)):
        raise InvalidRequest("messages must be a list")
    if unknown := sampling.keys() - _FIELDS:
        raise InvalidRequest(f"no such field: {', '.join(sorted(unknown))}")
    return prompt, messages, cast(Sampling, {**defaults, **sampling})


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)
