"""Requests and answers of OpenAI's /v1/completions, in the form that our gateway, vLLM and llama.cpp's server
understand."""

import json
from collections.abc import Sequence

from httpx_sse._decoders import SSEDecoder

from load_tests.failures import RequestFailed
from load_tests.prompts import PlannedRequest

_SHOWN_CHARACTERS = 500


def completion_body(model: str, request: PlannedRequest, prompt: str | Sequence[int]) -> dict[str, object]:
    """The body that asks for a streamed answer to a prompt. An empty `tenant` and a `priority` of 0 are left out."""
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": request.output_tokens,
        **request.sampling,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tenant:
        body["user"] = request.tenant
    if request.priority:
        body["priority"] = request.priority
    return body


def refusal(status: int, text: str) -> RequestFailed:
    """The failure for a response whose status is not 200."""
    return RequestFailed(f"Status{status}", f"the server answered {status}: {text[:_SHOWN_CHARACTERS]}")


class TokenCounts:
    """Counts the tokens of one streamed answer.

    A piece of text counts as one token, unless the server sends the number of tokens so far with it. If tokens arrive
    together, the total count that follows the last piece corrects the number for that piece.
    """

    def __init__(self) -> None:
        self._events = SSEDecoder()
        self._seen = 0
        self._ended = self._counted = False

    def read(self, line: str) -> int:
        """Return the number of new tokens in the event that this line of the stream ends.

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
        """Raise RequestFailed if the stream ended without the count, which means that it was cut off."""
        if not (self._ended and self._counted):
            raise RequestFailed("CutStream", "the stream ended before the answer and the count of its tokens")
