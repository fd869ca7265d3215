"""Requests and answers of OpenAI's /v1/completions, as our gateway, vLLM and llama.cpp's server understand them."""

import json
from collections.abc import Sequence

from httpx_sse._decoders import SSEDecoder

from load_tests.failures import RequestFailed

_SHOWN_CHARACTERS = 500


def completion_body(
    model: str, prompt: Sequence[int], max_tokens: int, tenant: str, priority: int
) -> dict[str, object]:
    """The body for a streamed answer of so many tokens; an empty `tenant` and a `priority` of 0 are left out."""
    body: dict[str, object] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tenant:
        body["user"] = tenant
    if priority:
        body["priority"] = priority
    return body


def refusal(status: int, text: str) -> RequestFailed:
    """The failure that another status than 200 stands for."""
    return RequestFailed(f"Status{status}", f"the server answered {status}: {text[:_SHOWN_CHARACTERS]}")


class TokenCounts:
    """Counts the tokens of one streamed answer.

    A piece of text counts as one token, unless the server says with it how many there are so far. Tokens that came
    together are made up for in the last piece, by the count that follows it at once.
    """

    def __init__(self) -> None:
        self._events = SSEDecoder()
        self._seen = 0
        self._ended = self._counted = False

    def read(self, line: str) -> int:
        """How many new tokens a line of the stream brings: those of the event that it ends.

        Raises:
            RequestFailed: the event is an error.
        """
        sent = self._events.decode(line.rstrip("\r\n"))
        if sent is None or not sent.data.startswith("{"):
            return 0
        event = json.loads(sent.data)
        if "error" in event:
            raise RequestFailed("ErrorEvent", str(event["error"])[:_SHOWN_CHARACTERS])
        choices = event["choices"]
        self._ended = self._ended or any(choice["finish_reason"] for choice in choices)
        if (usage := event.get("usage")) is not None:
            new = max(0, int(usage["completion_tokens"]) - self._seen)
            self._counted = True
        else:
            new = int(not self._ended and any(choice["text"] for choice in choices))
        self._seen += new
        return new

    def check_end(self) -> None:
        """Raise RequestFailed where the stream has ended without a count, and so before its end."""
        if not (self._ended and self._counted):
            raise RequestFailed("CutStream", "the stream ended before the answer and the count of its tokens")
