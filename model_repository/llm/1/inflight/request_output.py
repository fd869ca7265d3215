"""The output of a request so far, for callers that use `Engine` directly."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.outputs import Beam, Delta
from inflight.request import Request
from inflight.step_result import TokenLogprobs


@dataclass(slots=True, eq=False)
class RequestOutput:
    """The output of one request. It grows from step to step until `finish_reason` is set."""

    request_id: str
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """`stop`, `length`, `deadline`, `cancelled`, `expired` (the time limit passed before the first step), `shed` (the
    queue gave it up), `invalid` (the grammar turned out to be too complex) or `error`."""
    stop_reason: str | int | None = None
    """Which stop string or token of `stop_token_ids` ended it, if one did."""
    error: str | None = None
    """Why the request ended, if the finish reason is `error`, `invalid`, `expired` or `shed`."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each of `token_ids` if the request asked for them, else None."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One entry for each of `prompt_ids` if the request asked for them, else None. The first token has none."""
    embedding: NDArray[np.float32] | None = None
    """[dimensions], at the end of a request for an embedding."""
    beams: list[Beam] | None = None
    """The outputs of a beam search, best first, at its end. Text and tokens are those of the best one."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    num_drafted: int = 0
    """Tokens that were drafted and computed."""
    num_accepted: int = 0
    """Those of them that were right."""
    kv_transfer_params: KVTransferParams | None = None
    """Where another engine finds the keys and values of the prompt, if it was computed for one."""
    pieces: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> "RequestOutput":
        """Return an empty output for a request."""
        logprobs: list[TokenLogprobs] | None = None if request.params.logprobs is None else []
        scores: list[TokenLogprobs | None] | None = None if request.params.prompt_logprobs is None else [None]
        return cls(request.request_id, request.prompt_ids, logprobs=logprobs, prompt_logprobs=scores)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def add(self, delta: Delta) -> None:
        """Add what a step produced."""
        self.token_ids += delta.token_ids
        if self.logprobs is not None:
            self.logprobs += delta.logprobs
        if self.prompt_logprobs is not None:
            self.prompt_logprobs += delta.prompt_logprobs
        self.embedding = delta.embedding
        self.beams = delta.beams or None
        if delta.text:
            self.pieces.append(delta.text)
        self.num_cached_tokens = delta.request.num_cached
        self.num_drafted, self.num_accepted = delta.request.num_drafted, delta.request.num_accepted
        self.kv_transfer_params = delta.request.kv_transfer_params
        self.finish_reason, self.error = delta.finish_reason, delta.error
        self.stop_reason = delta.stop_reason
