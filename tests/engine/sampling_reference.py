"""The reference for the sampler: plain numpy in float64, one row at a time."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.logits_processors.edits import LogitEdits
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest
from tests.unit.builders import make_request

UNCUT = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def asking(seed: int = 0, position: int = 1, **params: Any) -> Request:
    """A request whose next token has this position, with every sampling field set."""
    return make_request("r", range(position), seed=seed, **{**UNCUT, **params})


def batch_of(requests: Sequence[Request]) -> SamplingBatch:
    """The sampling parameters of these requests for their next tokens."""
    return SamplingBatch.of([ScheduledRequest.next_of(request, request.num_uncomputed) for request in requests])


def batch_with(uniforms: Sequence[float], logprobs: int | None = None, **params: float) -> SamplingBatch:
    """Rows with the same parameters, but each with a random number of its own."""
    *fixed, _ = asking(**params).draws.at(1)
    parameters = np.array([[*fixed, uniform] for uniform in uniforms])
    return SamplingBatch(LogitEdits(), [logprobs] * len(uniforms), parameters)


@cache
def uniforms_of_seeds(count: int) -> tuple[float, ...]:
    """The random numbers of requests with the seeds 0, 1, 2, ... for their first token."""
    return tuple(asking(seed).draws.at(1)[-1] for seed in range(count))


def cut(
    logits: Sequence[float] | torch.Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> NDArray[np.float64]:
    """The probabilities of all tokens after top_k, top_p and min_p, which apply in this order."""
    exact = np.asarray(logits, dtype=np.float64)
    left = np.exp((exact - exact.max()) / temperature)
    # Of equally likely tokens, the smaller id comes first.
    likeliest_first = np.argsort(-exact, kind="stable")
    if top_k > 0:
        left[likeliest_first[top_k:]] = 0
    left /= left.sum()
    if top_p < 1:
        ranked = left[likeliest_first]
        before = np.concatenate(([0.0], np.cumsum(ranked)[:-1]))
        left[likeliest_first[before >= top_p]] = 0
    left[left < left.max() * min_p] = 0
    return left / left.sum()


def middles(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each token, the random number in the middle of those with which the token is drawn."""
    return np.cumsum(probabilities) - probabilities / 2
