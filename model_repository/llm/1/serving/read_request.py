"""Collects the fields of a Triton request from its sources."""

import logging
from collections.abc import Mapping
from typing import Any

from inflight import InvalidRequest
from inflight.sampling_params import MAX_STOP_TOKENS, ROOM_FOR_ALL
from serving import values
from serving.embeds import EMBEDS
from serving.read_fields import KNOWN, read_fields

logger = logging.getLogger(__name__)

MAX_KEYS = 128
MAX_KEY_CHARACTERS = 128
_MAX_WARNINGS = 100
_warned_of: set[str] = set()


def read_request(request: Any, max_model_len: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a `pb_utils.InferenceRequest` under their own names, and its request parameters as they are.

    A field can come as a tensor, in the JSON of `sampling_parameters`, or as a request parameter. If several of them
    hold the field, the first in this order is used.

    Raises:
        InvalidRequest: the message names the field and what it must be.
    """
    most = max(max_model_len, MAX_STOP_TOKENS)
    tensors = {tensor.name(): _tensor_value(tensor, most) for tensor in request.inputs()}
    parameters = values.decoded("the JSON of all request parameters", request.parameters() or "{}")
    _check_keys("request parameters", parameters)
    inline = _sampling_json(tensors.get("sampling_parameters", parameters.get("sampling_parameters")))
    return {**read_fields(parameters), **read_fields(inline), **read_fields(tensors)}, parameters


def _tensor_value(tensor: Any, most: int) -> Any:
    """The element of a tensor that has exactly one, otherwise the list of all elements. Embeddings stay an array."""
    array = tensor.as_numpy()
    if tensor.name() in EMBEDS:
        return array
    # Only a model with a batch dimension gets tensors of more than one.
    if array.ndim > 1 and len(array) != 1:
        raise InvalidRequest(
            f"{tensor.name()} has the batch size {len(array)}; it must be 1, as a request has one prompt (the model "
            "`completion` takes several)"
        )
    if array.size > most:
        raise InvalidRequest(f"{tensor.name()} has {array.size} elements; it must have at most {most}")
    items = array.reshape(-1).tolist()
    return items[0] if len(items) == 1 else items


def _sampling_json(written: Any) -> dict[str, Any]:
    if written is None:
        return {}
    decoded = values.decoded("sampling_parameters", values.text("sampling_parameters", written))
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"sampling_parameters is {decoded!r}; it must be a JSON object")
    _check_keys("sampling_parameters", decoded)
    if "max_tokens" in decoded and decoded["max_tokens"] is None:
        decoded["max_tokens"] = ROOM_FOR_ALL  # As in vLLM.
    for name in sorted(decoded.keys() - KNOWN):
        _warn_of_unknown(name)
    return decoded


def _check_keys(what: str, given: Mapping[str, Any]) -> None:
    if len(given) > MAX_KEYS:
        raise InvalidRequest(f"{what} have {len(given)} keys; there must be at most {MAX_KEYS}")
    longest = max(map(len, given), default=0)
    if longest > MAX_KEY_CHARACTERS:
        raise InvalidRequest(f"{what} have a key of {longest} characters; each must have at most {MAX_KEY_CHARACTERS}")


def _warn_of_unknown(name: str) -> None:
    """Warn once per name, because a client sends the same names with every request, and of so many names in all."""
    if name in _warned_of or len(_warned_of) == _MAX_WARNINGS:
        return
    _warned_of.add(name)
    last = "; no other unknown keys will be logged" if len(_warned_of) == _MAX_WARNINGS else ""
    logger.warning("sampling_parameters has the unknown key %a%s", name, last)
