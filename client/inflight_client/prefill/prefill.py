"""Which prompts go to another server first, and the two calls of such a request, as vLLM has them. Does no I/O."""

import json
from collections import Counter
from dataclasses import dataclass, replace

from inflight_client.errors import InflightError, RequestCancelled
from inflight_client.options import TimeLimits
from inflight_client.request import Request
from inflight_client.response import Reply

FIELD = "kv_transfer_params"
OFFERED = "offered"
"""The server for prompts has computed it, and the other one may fetch it."""
NOT_OFFERED = "not_offered"
"""The server for prompts has computed it, but has no room to keep it."""
FAILED = "failed"
OUTCOMES = (OFFERED, NOT_OFFERED, FAILED)

_CHARACTERS_PER_TOKEN = 4
# What decides about the prompt and its place in the queue. All else concerns the answer.
_KEPT = frozenset(
    (
        *("priority", "tenant", "request_class", "cache_salt", "client_request_id", "traceparent", "tracestate"),
        *("deadline_ms", "timeout", "target_ttft_ms", "tools", "chat_template_kwargs"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """Servers that compute prompts for the servers of a client.

    Raises:
        ValueError: a value is out of its bounds.
    """

    url: str
    """Their URL, in the format of the client's own."""
    min_tokens: int = 256
    """Shorter prompts do not go there. A text or a chat counts as a token for 4 characters."""
    timeout: float = 10.0
    """Seconds after which the prompt is left to the client's own servers."""

    def __post_init__(self) -> None:
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens is {self.min_tokens}; it must be at least 0")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}; it must be over 0 seconds")

    def is_for(self, request: Request) -> bool:
        """Return whether the prompt of a request is computed elsewhere. Scores of a prompt are not transferred."""
        if request.flags or request.prompt_field == "embedding_request":
            return False
        if FIELD in request.parameters or "prompt_logprobs" in request.parameters:
            return False
        length = len(request.prompt)
        tokens = length // _CHARACTERS_PER_TOKEN if isinstance(request.prompt, str) else length
        return tokens >= self.min_tokens

    def first_call(self, request: Request, limits: TimeLimits) -> tuple[Request, TimeLimits]:
        """Return the request that computes the prompt, and its time limits."""
        kept = {name: value for name, value in request.parameters.items() if name in _KEPT}
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        seconds = min(self.timeout, limits.total)
        first = replace(
            request, parameters={**kept, "max_tokens": 1, "temperature": 0, FIELD: asked}, stream=False, schema=None
        )
        return first, TimeLimits(seconds, limits.gap, seconds)


def second_call(request: Request, limits: TimeLimits, offer: str, seconds: float) -> tuple[Request, TimeLimits]:
    """Return the request that continues the prompt, and the limits left after `seconds`.

    `offer`: the output of the first call; empty or `null` if the prompt has to be computed.
    """
    left = max(0.001, limits.total - seconds)
    request = request.after(seconds)
    params = json.loads(offer or "null")
    if params is not None:
        request = replace(request, parameters={**request.parameters, FIELD: params})
    return request, TimeLimits(min(limits.first, left), limits.gap, left)


class FirstCall:
    """Follows a call that computes a prompt."""

    def __init__(self, outcomes: "Counter[str]") -> None:
        self._outcomes = outcomes
        self.offer = ""

    def take(self, reply: Reply) -> None:
        """Take a response."""
        self.offer = reply.kv_transfer_params or self.offer

    def end(self, error: InflightError | None) -> None:
        """Count the call. Raises RequestCancelled if that is how it ended; after any other error, the prompt is left
        to the second call."""
        if isinstance(error, RequestCancelled):
            raise error
        if error is not None:
            self.offer = ""
            self._outcomes[FAILED] += 1
        else:
            self._outcomes[NOT_OFFERED if self.offer in ("", "null") else OFFERED] += 1
