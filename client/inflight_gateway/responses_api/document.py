"""The object that describes a response: its settings, its state and its output."""

import time
import uuid
from typing import Any, Literal

from typing_extensions import TypedDict

from inflight_client import Usage
from inflight_gateway.responses_api.output import INCOMPLETE
from inflight_gateway.responses_api.request import FunctionToolItem, NamespaceItem, ResponsesRequest, WebSearchItem


class ResponseDocument(TypedDict):
    """The main fields of a response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class InputTokens(TypedDict):
    """The answer to POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Document:
    """Makes the object from the request. What the request leaves out has the value that was used."""

    def __init__(self, body: ResponsesRequest, model: str) -> None:
        tools = [_offered(tool) for tool in body.tools or () if not isinstance(tool, WebSearchItem)]
        form = body.text.format if body.text is not None and body.text.format is not None else None
        choice: Any = body.tool_choice if body.tool_choice is not None else "auto"
        self._fields: dict[str, Any] = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "error": None,
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "model": model,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": tools,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "background": False,
            "max_output_tokens": body.max_output_tokens,
            "previous_response_id": None,
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            "store": False,
            "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)},
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled",
            "user": body.user,
        }

    def of(self, status: str, output: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        """Return the object in a state."""
        return {
            **self._fields,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "output": output,
            "usage": None if usage is None else _usage(usage),
        }


def _offered(tool: FunctionToolItem | NamespaceItem) -> dict[str, Any]:
    if isinstance(tool, NamespaceItem):
        return {**tool.model_dump(), "tools": [_offered(function) for function in tool.tools]}
    return {**tool.model_dump(), "strict": tool.strict is not False}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
