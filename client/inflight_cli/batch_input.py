"""The input of a batch: one line of JSON per request."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from inflight_client import InvalidRequest, Message, Prompt, Sampling
from inflight_client.request import make_request

# Without these parameters: a line of the output holds one answer, and only its text.
_FIELDS = Sampling.__optional_keys__ - {"n", "logprobs", "sampling_parameters", "images", "prompt_embeds"}


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line of the input file, not yet checked."""

    index: int
    """Line number, from 0."""
    text: bytes
    digest: str
    """Digest of everything that the answer depends on: the line, the model and the default sampling parameters."""


def read_lines(path: Path, model: str, defaults: Sampling) -> Iterator[InputLine]:
    """Read the lines of a batch for `model`. `defaults` are the sampling parameters of lines without their own."""
    common = json.dumps([model, defaults], sort_keys=True).encode()
    with path.open("rb") as file:
        for index, text in enumerate(map(bytes.strip, file)):
            yield InputLine(index, text, hashlib.sha256(common + b"\n" + text).hexdigest()[:16])


def parse_object(text: bytes) -> dict[str, Any]:
    """Read the JSON object of a line.

    Raises:
        InvalidRequest: the line is not a JSON object.
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the line is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"the line is not a JSON object, but {type(document).__name__}")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def take_id(document: dict[str, Any]) -> str | int | None:
    """Remove the `id` from a line and return it, or None if there is none.

    Raises:
        InvalidRequest: it is neither text nor a whole number.
    """
    value = document.pop("id", None)
    if value is not None and type(value) not in (str, int):
        raise InvalidRequest("id must be text or a whole number")
    return cast("str | int | None", value)


def parse_request(document: dict[str, Any], defaults: Sampling) -> tuple[Prompt | None, list[Message] | None, Sampling]:
    """Return the prompt, the messages and the sampling parameters of a line without its `id`.

    The server checks the values of the parameters.

    Raises:
        InvalidRequest: a field is unknown or has the wrong type, or the line has both or neither of `prompt` and
            `messages`.
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
    merged = cast(Sampling, {**defaults, **sampling})
    try:
        make_request("", prompt, messages, merged, stream=False)
    except TypeError as error:  # To a caller in Python, it is a mistake in the program. Here it is one in the line.
        raise InvalidRequest(str(error)) from None
    return prompt, messages, merged


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)
