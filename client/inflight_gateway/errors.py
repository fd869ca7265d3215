"""Errors in OpenAI's format: {"error": {"message", "type", "param", "code"}}."""

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from inflight_client import (
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    ServerOverloaded,
    TransportError,
)
from inflight_gateway.chat_request import ChatRequest
from inflight_gateway.embedding_request import EmbeddingRequest
from inflight_gateway.schemas import CompletionRequest

logger = logging.getLogger(__name__)

# Value of Retry-After if the server gives none.
_RETRY_AFTER_SECONDS = 1
_LONGEST_VALUE = 100
# Types of errors about a field that is not there: pydantic's, and that of fields that some messages need.
_MISSING = ("missing", "absent")
# How the server refuses what has no room in the context or in the KV cache, with the number of tokens that have.
_NO_ROOM = re.compile(r"(?:prompt|text_input|messages|max_tokens) .*, as the (?:context is|KV cache holds) (\d+)")
_FIELDS = {name for body in (CompletionRequest, ChatRequest, EmbeddingRequest) for name in body.model_fields}


class ApiError(HTTPException):
    """An error that the gateway sends to its client.

    Args:
        status: HTTP status code.
        code: identifies the kind of error for programs.
        message: explains the error to people.
        param: the invalid field of the request, such as `messages[0].role`.
        headers: headers of the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.param = param

    def document(self) -> dict[str, object]:
        """Return the body of the response, or the event for a stream that has begun."""
        return {
            "error": {
                "message": self.detail,
                "type": _type_of(self.status_code),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """Return the whole response."""
        # `json.dumps` writes ASCII. A message can quote text that UTF-8 cannot encode.
        body = json.dumps(self.document())
        return Response(body, self.status_code, headers=self.headers, media_type="application/json")


def _type_of(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 429:
            return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def overloaded(message: str, retry_after: float | None = None) -> ApiError:
    """Return a 429 error with the seconds to wait before the next try."""
    seconds = math.ceil(retry_after or _RETRY_AFTER_SECONDS)
    return ApiError(429, "server_overloaded", message, headers={"Retry-After": str(seconds)})


def refusal(error: InvalidRequest, message: str, field: str | None) -> ApiError:
    """Return the error for a request that the server has refused. `message` says so in the words of the client's API.

    Of what has no room in the context it has OpenAI's code and the beginning of OpenAI's message: by these, programs
    know that they must shorten the chat.
    """
    if (found := _NO_ROOM.match(str(error))) is None:
        return ApiError(400, "invalid_value", message, param=field)
    text = f"This model's maximum context length is {found[1]} tokens; {message}"
    return ApiError(400, "context_length_exceeded", text, param=field)


def api_error(error: InflightError) -> ApiError:
    """Return the error for the gateway's client when a request to the server failed."""
    message = str(error)
    match error:
        case InvalidRequest():
            # If a message of the server is about a field, it begins with the field's name.
            field = message.partition(" ")[0]
            return refusal(error, message, field if field.partition("[")[0] in _FIELDS else None)
        case ServerOverloaded():
            return overloaded(message, error.retry_after)
        case ModelNotReady() | RequestCancelled():
            return ApiError(503, "server_not_ready", f"the model is not ready: {message}")
        case TransportError():
            logger.warning("the server is unreachable: %s", message)
            return ApiError(503, "server_not_ready", "the model's server is unreachable")
        case DeadlineExceeded():
            return ApiError(504, "deadline_exceeded", message)
    logger.error("the server failed: %s: %s", type(error).__name__, message)
    return ApiError(500, "server_fault", "the model's server failed; its log says why")


async def answer_inflight_error(_: Request, error: Exception) -> Response:
    """Handle `InflightError`."""
    assert isinstance(error, InflightError)
    return api_error(error).response()


async def answer_http_error(_: Request, error: Exception) -> Response:
    """Handle `ApiError` and the framework's own errors: unknown paths, wrong methods, malformed bodies."""
    assert isinstance(error, HTTPException)
    if not isinstance(error, ApiError):
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        error = ApiError(error.status_code, code, error.detail, headers=error.headers)
    return error.response()


async def answer_fault(_: Request, error: Exception) -> Response:
    """Handle every unexpected exception. The framework logs it."""
    return ApiError(500, "internal_error", "the gateway failed; its log says why").response()


async def answer_invalid_body(_: Request, error: Exception) -> Response:
    """Handle a body that does not match its schema: 400 with the first error."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = _field_name(first, error.body)
    message, code = _explain(first, field)
    return ApiError(400, code, message, param=field or None).response()


def _explain(error: dict[str, Any], field: str) -> tuple[str, str]:
    match error["type"]:
        case "json_invalid":
            return f"the body is not JSON: {error['ctx']['error']}", "invalid_json"
        case "missing":
            return f"{field or 'the body'} is missing", "missing_field"
        case "extra_forbidden":
            return f"{field} is not supported", "unsupported_field"
        case "model_attributes_type" if not field:
            return "the body must be a JSON object, sent with Content-Type: application/json", "invalid_body"
        case "union_tag_invalid":
            why = f"its {_discriminator(error)} must be one of {error['ctx']['expected_tags']}"
            return f"{field} is {_shortened(error['input'])}: {why}", "invalid_value"
        case "union_tag_not_found":
            return f"{field} is {_shortened(error['input'])}: its {_discriminator(error)} is missing", "missing_field"
    return f"{field} is {_shortened(error['input'])}: {error['msg'].removeprefix('Value error, ')}", "invalid_value"


def _discriminator(error: dict[str, Any]) -> str:
    """Return the name of the field that tells apart the kinds of what an error is about."""
    quoted: str = error["ctx"]["discriminator"]
    return quoted.strip("'")


def _shortened(value: Any) -> str:
    """Return the beginning of a value as text. Not all of a large one is written for that."""
    if isinstance(value, str | list):
        value = value[:_LONGEST_VALUE]
    elif isinstance(value, dict):
        value = dict(islice(value.items(), _LONGEST_VALUE))
    text = ascii(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _field_name(error: Mapping[str, Any], body: Any) -> str:
    """Return the path in the body of the field that a pydantic error is about, such as `messages[0].role`."""
    return _path_in(body, error["loc"][1:], may_be_missing=error["type"] in _MISSING)[0]


def _path_in(value: Any, steps: Sequence[int | str], *, may_be_missing: bool) -> tuple[str, bool]:
    """Return the steps that exist in a value, written as a path, and whether the last one is among them.

    pydantic's own path also contains the names of union members, which do not exist in the body. Such a name may be
    that of a field, too, as in a part of the type `text`. It is no field if only then all that follows exists.
    """
    if not steps:
        return "", True
    step, rest = steps[0], steps[1:]
    taken: tuple[str, bool] | None = None
    if isinstance(value, list) and isinstance(step, int):
        name, is_whole = _path_in(value[step], rest, may_be_missing=may_be_missing)
        taken = f"[{step}]{name}" if name.startswith("[") or not name else f"[{step}].{name}", is_whole
    elif isinstance(value, dict) and (step in value or (may_be_missing and not rest)):
        name, is_whole = _path_in(value.get(step), rest, may_be_missing=may_be_missing)
        taken = f"{step}{name}" if name.startswith("[") or not name else f"{step}.{name}", is_whole
    if taken is not None and taken[1]:
        return taken
    skipped = _path_in(value, rest, may_be_missing=may_be_missing) if rest else ("", False)
    return skipped if skipped[1] or taken is None else taken
