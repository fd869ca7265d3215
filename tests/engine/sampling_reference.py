"""The reference for the sampler: plain numpy, one row at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def softmax(logits: Sequence[float], temperature: float = 1.0) -> NDArray[np.float64]:
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def cut(
    probabilities: NDArray[np.float64], *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """The probabilities after top_k, top_p and min_p, applied in this order. No two tokens may be equally likely."""
    left = probabilities.copy()
    likeliest_first = np.argsort(-left)
    if top_k > 0:
        left[likeliest_first[top_k:]] = 0
    left /= left.sum()
    reached = 0.0
    for token in likeliest_first:
        if reached >= top_p:
            left[token] = 0
        reached += left[token]
    left[left < left.max() * min_p] = 0
    return left / left.sum()
