"""The object that describes a message, and errors in Anthropic's format."""

import uuid
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from inflight_client import Usage

_THREAD = "thread"
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessageDocument(TypedDict):
    """A whole answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"] | None
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(TypedDict):
    """How many tokens a conversation has."""

    input_tokens: int


class ErrorDetail(TypedDict):
    """What is wrong."""

    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class ErrorDocument(TypedDict):
    """An error."""

    type: Literal["error"]
    error: ErrorDetail


def new_message(model: str, usage: Usage) -> MessageDocument:
    """Return an answer that has just begun."""
    return {
        "id": f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_count(usage),
    }


def usage_count(usage: Usage) -> dict[str, int]:
    """Return the usage in Anthropic's format, where cached tokens are not among those of the input."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def error_document(status: int, message: str, param: str | None = None) -> ErrorDocument:
    """Return the body of a response with this status, or an event. `param` is the field that the error is about."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error: ErrorDetail = {"type": kind, "message": message}
    if param == _THREAD:
        # Anthropic's own libraries then send whole conversations, without threads.
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": [_THREAD]}
    return {"type": "error", "error": error}
