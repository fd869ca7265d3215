"""Log-probabilities of many rows of logits, computed in pieces: in full, they would take much memory."""

from collections.abc import Callable, Sequence

import torch

from inflight.model.sampling.sampler import logprobs
from inflight.step_result import TokenLogprobs

PIECE = 64
"""How many rows are computed at once. Matrix products with more rows take hardly less time for each."""


def piecewise_logprobs(
    logits_of: Callable[[slice], torch.Tensor], tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Return the log-probabilities of one token and of the `counts` likeliest tokens for each of R rows.

    Args:
        logits_of: computes the logits [rows, vocabulary] of a part of the rows.
        tokens: R token ids.
        counts: R numbers of likeliest tokens.
    """
    found: list[TokenLogprobs] = []
    for first in range(0, len(tokens), PIECE):
        piece = slice(first, min(first + PIECE, len(tokens)))
        found += logprobs(logits_of(piece), tokens[piece], counts[piece])
    return found
