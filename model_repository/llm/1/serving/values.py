"""Reads single values in each form that clients send: tensors, JSON, and JSON with numbers as text.

Every reader takes the field's name for its error message, and raises `InvalidRequest` if the value is invalid.
"""

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight import InvalidRequest
from inflight.sampling_params import NEVER
from inflight.text.unicode import check_unicode

LAST = "last"
IDS = "ids"
LEFT, RIGHT = "left", "right"
MAX_JSON_CHARACTERS = 2**20
MAX_FILES_CHARACTERS = 2**25
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def text(name: str, value: Any) -> str:
    """Read text, or bytes that hold UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            bad = value[error.start]
            raise InvalidRequest(f"{name} is not valid UTF-8: byte {error.start} is {bad:#04x}") from None
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r}; it must be a text")
    check_unicode(name, value)
    return value


def integer(name: str, value: Any) -> int:
    """Read a whole number, given as a number or as text."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    if isinstance(value, int | np.integer | str) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass  # The error below covers this case too.
    raise InvalidRequest(f"{name} is {value!r}; it must be a whole number")


def logprobs(name: str, value: Any) -> int | None:
    """Read a whole number. With false, which releases of Triton's OpenAI frontend before 25.12 send, there are none."""
    return None if value is False else integer(name, value)


def number(name: str, value: Any) -> float:
    """Read a finite number, given as a number or as text."""
    if isinstance(value, int | float | np.number | str) and not isinstance(value, bool):
        try:
            read = float(value)
        except (ValueError, OverflowError):
            pass  # The error below covers this case too.
        else:
            if math.isfinite(read):
                return read
            raise InvalidRequest(f"{name} is {read}; it must be finite")
    raise InvalidRequest(f"{name} is {value!r}; it must be a number")


def matrix(name: str, value: Any) -> NDArray[Any]:
    """Read rows of numbers of the same length, given as an array or as lists. An array may be a batch of one such."""
    if not isinstance(value, np.ndarray):
        try:
            value = np.array(value, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):
            value = np.empty(0)  # The error below covers this case too.
    elif value.ndim == 3 and len(value) == 1:
        value = value[0]
    if value.ndim != 2:
        raise InvalidRequest(f"{name} must be one list of rows, which are lists of numbers of the same length")
    rows: NDArray[Any] = value
    return rows


def truth(name: str, value: Any) -> bool:
    """Read true or false, given as a boolean, as 0 or 1, or as text."""
    known = _TRUTHS.get(str(value).lower())
    if known is None:
        raise InvalidRequest(f"{name} is {value!r}; it must be true or false")
    return known


def which_responses(name: str, value: Any) -> bool | str:
    """Read true, false or "last". "last" means: only in responses that end a sample."""
    return LAST if value in (LAST, LAST.encode()) else truth(name, value)


def prompt_parts(name: str, value: Any) -> bool | str:
    """Read true, false or "ids"."""
    return IDS if value in (IDS, IDS.encode()) else truth(name, value)


def early_stopping(name: str, value: Any) -> bool | str:
    """Read true, false or "never"."""
    return NEVER if value in (NEVER, NEVER.encode()) else truth(name, value)


def side(name: str, value: Any) -> str:
    """Read "left" or "right"."""
    if (given := text(name, value)) not in (LEFT, RIGHT):
        raise InvalidRequest(f"{name} is {given!a}; it must be left or right")
    return given


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Read one text or a list of texts."""
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(text(name, item) for item in items)


def words(name: str, value: Any) -> tuple[str, ...]:
    """Read one text or a list of texts. Leave out empty ones: clients of TensorRT-LLM send them where they want none,
    and fill up the rows of a batch with them."""
    return tuple(item for item in texts(name, value) if item)


def seed(name: str, value: Any) -> int | None:
    """Read a seed. -1 stands for a random one, as in vLLM."""
    found = integer(name, value)
    return None if found == -1 else found


def files(name: str, value: Any) -> tuple[str | bytes, ...]:
    """Read one file or a list of files, still in base64: decoding them takes time."""
    items = value if isinstance(value, list | tuple) else [value]
    for item in items:
        if not isinstance(item, str | bytes):
            raise InvalidRequest(f"{name} is {item!r}; it must be a file as base64")
    if (size := sum(map(len, items))) > MAX_FILES_CHARACTERS:
        raise InvalidRequest(f"{name} has {size} characters of base64; it must have at most {MAX_FILES_CHARACTERS}")
    return tuple(items)


def integers(name: str, value: Any) -> tuple[int, ...]:
    """Read one whole number or a list of whole numbers."""
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(integer(name, item) for item in items)


def decoded(name: str, value: str, most: int = MAX_JSON_CHARACTERS) -> Any:
    """Decode JSON of a bounded size: decoding and checking take time on the only thread that accepts requests."""
    if len(value) > most:
        raise InvalidRequest(f"{name} has {len(value)} characters; it must have at most {most}")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is {value!r}; it must be valid JSON: {error}") from None


def document(name: str, value: Any) -> Any:
    """Read JSON, given as text or decoded already."""
    return decoded(name, text(name, value)) if isinstance(value, str | bytes) else value


def json_list(name: str, value: Any) -> list[Any]:
    """Read a list, decoded already or as JSON."""
    found = document(name, value)
    if not isinstance(found, list):
        raise InvalidRequest(f"{name} is {found!r}; it must be a list")
    return found


def json_object(name: str, value: Any) -> dict[str, Any]:
    """Read an object, decoded already or as JSON."""
    found = document(name, value)
    if not isinstance(found, dict):
        raise InvalidRequest(f"{name} is {found!r}; it must be an object")
    return found


def token_lists(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Read a decoded JSON list of lists of token ids."""
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise InvalidRequest(f"{name} is {value!r}; it must be a list of lists of token ids")
    return tuple(integers(name, item) for item in value)


def token_weights(name: str, value: Any) -> dict[int, float]:
    """Read a decoded JSON object that maps token ids to numbers."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} is {value!r}; it must be an object of token ids and numbers")
    return {
        integer(f"{name} token", token): number(f"{name} of token {token}", weight) for token, weight in value.items()
    }
