"""Lines in the form of OpenAI's Batch API: each names an endpoint of a gateway, and the body of a request to it."""

import asyncio
import itertools
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from inflight_client import (
    AccessDenied,
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RetryPolicy,
    ServerOverloaded,
    Timeouts,
    TransportError,
)

_FIELDS = ("custom_id", "method", "url", "body")
_OF_ALL = (401, 403, 429, 502, 503)
"""Statuses that other requests would get, too."""
# A proxy that the environment names, such as in `http_proxy`, would look for these on its own host.
_LOOPBACK = ("all://localhost", "all://127.0.0.1", "all://[::1]")


def is_for_gateway(document: Mapping[str, Any]) -> bool:
    """Whether the line is in OpenAI's form."""
    return "url" in document or "custom_id" in document


class Gateway:
    """Sends requests to a gateway, and sends them again if it is busy, not ready or unreachable.

    Args:
        url: where the gateway is. It may end in `/v1`, as OpenAI's clients have it.
        headers: headers of every request.
        certificates: PEM file of certificates to trust instead of the system's.
        retry: how often and when a request is sent again.
    """

    def __init__(self, url: str, headers: Mapping[str, str], certificates: Path | None, retry: RetryPolicy) -> None:
        self._url, self._retry = url.rstrip("/").removesuffix("/v1"), retry
        seconds = Timeouts()
        self._client = httpx.AsyncClient(
            headers=headers,
            verify=True if certificates is None else ssl.create_default_context(cafile=certificates),
            timeout=httpx.Timeout(seconds.total, connect=seconds.connect),
            limits=httpx.Limits(max_connections=None),
            mounts=dict.fromkeys(_LOOPBACK),  # None: without a proxy.
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._client.__aexit__(*exception)

    async def answer(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `response` and the `error` of an output line. One of them is None.

        Raises:
            InvalidRequest: a field of the line is missing, unknown or has a wrong value.
            InflightError: another one, if no answer came.
        """
        url, body = _checked(document)
        for attempt in itertools.count(1):
            try:
                response = await self._post(url, body)
                break
            except InflightError as error:
                wait = self._retry.wait_after(error, attempt)
                if wait is None:
                    raise
                await asyncio.sleep(wait)
        content = _content(response)
        return {
            "response": {
                "status_code": response.status_code,
                "request_id": response.headers.get("X-Request-Id"),
                "body": content,
            },
            "error": None if response.is_success else _error_in(content, response.status_code),
        }

    async def _post(self, url: str, body: object) -> httpx.Response:
        try:
            response = await self._client.post(
                self._url + url,
                # ASCII: the line may have halves of surrogate pairs, which the gateway refuses.
                content=json.dumps(body),
                headers={"Content-Type": "application/json"},
            )
        except httpx.ReadTimeout:
            raise DeadlineExceeded(f"nothing came within {Timeouts().total} s") from None
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise TransportError(f"no answer from the gateway at {self._url}: {why}") from None
        if response.status_code in _OF_ALL:
            message = _error_in(_content(response), response.status_code)["message"]
            raise _error_of_all(response, f"the gateway at {self._url}: {message}")
        return response


def _checked(document: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a line. The gateway checks the body."""
    if unknown := document.keys() - set(_FIELDS):
        raise InvalidRequest(f"no such field in a line of OpenAI's Batch API: {', '.join(sorted(unknown))}")
    if missing := [name for name in _FIELDS if name not in document]:
        raise InvalidRequest(f"a line of OpenAI's Batch API must also have {', '.join(missing)}")
    identifier, method, url, body = (document[name] for name in _FIELDS)
    if not isinstance(identifier, str):
        raise InvalidRequest("custom_id must be text")
    if method != "POST":
        raise InvalidRequest("method must be POST")
    if not (isinstance(url, str) and url.startswith("/v1/") and url.isascii() and url.isprintable()):
        raise InvalidRequest("url must be the path of an endpoint, such as /v1/chat/completions")
    if not isinstance(body, dict):
        raise InvalidRequest("body must be a JSON object")
    if body.get("stream"):
        raise InvalidRequest("body.stream must be false or absent: a line of the output holds the whole answer")
    return url, body


def _content(response: httpx.Response) -> Any:
    """Return the body: what its JSON means, or its text if it has none, as from a proxy."""
    try:
        return response.json()
    except ValueError:
        return response.text


def _error_in(content: Any, status: int) -> dict[str, Any]:
    """Return the error of a body in OpenAI's format, which always has a type and a message."""
    error = content.get("error") if isinstance(content, dict) else None
    told = error if isinstance(error, dict) else {}
    return {**told, "type": told.get("type", "error"), "message": told.get("message", f"status {status}")}


def _error_of_all(response: httpx.Response, message: str) -> InflightError:
    """Return the error for an answer whose status is one of `_OF_ALL`."""
    match response.status_code:
        case 429:
            seconds = response.headers.get("Retry-After", "")
            return ServerOverloaded(message, retry_after=float(seconds) if seconds.isdecimal() else None)
        case 502 | 503:
            return ModelNotReady(message)
    return AccessDenied(message)
