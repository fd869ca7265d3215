"""Which prompts go to another server first, and the two calls of such a request, as vLLM has them. Does no I/O."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from inflight_client.errors import DeadlineExceeded, InflightError, RequestCancelled, TransportError
from inflight_client.options import TimeLimits
from inflight_client.request import Request
from inflight_client.response import Reply

FIELD = "kv_transfer_params"
OFFERED = "offered"
"""The server for prompts has computed it, and the other one may fetch it."""
NOT_OFFERED = "not_offered"
"""The server for prompts has computed it, but has no room to keep it."""
FAILED = "failed"
SKIPPED = "skipped"
"""It was not asked, because it has not answered before."""
OUTCOMES = (OFFERED, NOT_OFFERED, FAILED, SKIPPED)

_PAUSE_SECONDS = 10.0

_CHARACTERS_PER_TOKEN = 4
# What decides about the prompt and its place in the queue. All else concerns the answer.
_KEPT = frozenset(
    (
        *("priority", "tenant", "request_class", "cache_salt", "client_request_id", "traceparent", "tracestate"),
        *("deadline_ms", "timeout", "target_ttft_ms", "tools", "chat_template_kwargs", "add_generation_prompt"),
        *("continue_final_message", "truncate_prompt_tokens", "truncation_side"),
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
        """Return whether the prompt of a request is computed elsewhere. Scores, images and embeddings of a prompt are
        not transferred."""
        if request.flags or request.images or request.embeds or request.prompt_field == "embedding_request":
            return False
        if request.parameters.keys() & {FIELD, "prompt_logprobs", "prompt_embeds", "prompt_embedding_table"}:
            return False
        if request.parameters.get("truncate_prompt_tokens") == -1:
            return False  # How much of the prompt is left depends on the call's own `max_tokens`.
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


def second_call(
    request: Request, limits: TimeLimits, offer: Mapping[str, object] | None, seconds: float
) -> tuple[Request, TimeLimits]:
    """Return the request that continues the prompt, and the limits left after `seconds`.

    `offer`: the output of the first call; None if the prompt has to be computed.
    """
    left = max(0.001, limits.total - seconds)
    request = request.after(seconds)
    if offer is not None:
        request = replace(request, parameters={**request.parameters, FIELD: offer})
    return request, TimeLimits(min(limits.first, left), limits.gap, left)


class PrefillServers:
    """What a client knows of the servers for prompts. Any thread may use it.

    When they do not answer, they are not asked for a while, so that not every request waits for them. Then one request
    asks, and the others go on without them until it has an answer.
    """

    def __init__(self, prefill: Prefill, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefill = prefill
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._clock = clock
        self._lock = threading.Lock()
        self._silent_until: float | None = None
        """When to ask again. None: they answer. The lock guards it."""

    def begin(self) -> "FirstCall | None":
        """Return the first call of a request, whose `end` must follow; None if the servers are not to be asked."""
        now = self._clock()
        with self._lock:
            if self._silent_until is not None:
                if now < self._silent_until:
                    self.outcomes[SKIPPED] += 1
                    return None
                self._silent_until = now + _PAUSE_SECONDS
        return FirstCall(self, now)

    def ended(self, outcome: str, error: InflightError | None, begun: float) -> None:
        """Take note of a call."""
        now = self._clock()
        # A request may have less time than the servers may take.
        is_silent = isinstance(error, TransportError) or (
            isinstance(error, DeadlineExceeded) and now - begun >= self.prefill.timeout
        )
        with self._lock:
            self.outcomes[outcome] += 1
            if is_silent:
                self._silent_until = now + _PAUSE_SECONDS
            elif not isinstance(error, DeadlineExceeded):
                self._silent_until = None


class FirstCall:
    """Follows a call that computes a prompt."""

    def __init__(self, servers: PrefillServers, begun: float) -> None:
        self._servers, self._begun = servers, begun
        self._said = ""

    def take(self, reply: Reply) -> None:
        """Take a response."""
        self._said = reply.kv_transfer_params or self._said

    def end(self, error: InflightError | None) -> Mapping[str, object] | None:
        """Count the call, and return what it offers. Raises RequestCancelled if that is how it ended; after any other
        error, the prompt is left to the second call."""
        if isinstance(error, RequestCancelled):
            raise error
        outcome, offer = FAILED, None
        if error is None:
            outcome, offer = _read(self._said)
        self._servers.ended(outcome, error, self._begun)
        return offer


def _read(said: str) -> tuple[str, Mapping[str, object] | None]:
    """Return the outcome of a call, and what it offers."""
    try:
        offer = json.loads(said or "null")
    except ValueError:
        return FAILED, None
    if offer is None:
        return NOT_OFFERED, None
    return (OFFERED, offer) if isinstance(offer, dict) else (FAILED, None)
