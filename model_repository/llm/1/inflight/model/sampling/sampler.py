"""Chooses a token per row of logits, each row by its own request's parameters.

A row's choice depends on its logits, its request's seed and its position alone, never on its neighbours: the one random
number that it takes is its own, see `SamplingBatch.uniforms`.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.model.sampling.apply_edits import apply_edits
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.step_result import StepResult, TokenLogprobs

# Up to this k the likeliest tokens are selected, above it all are sorted.
_MAX_SELECTED = 1024


def sample(logits: torch.Tensor, batch: SamplingBatch) -> list[StepResult]:
    """A new token, and log-probabilities if asked for, for each row of logits [S, vocabulary].

    A row in which something is not a number gives no token.
    """
    if not batch.num_rows:
        return []
    shaped = apply_edits(logits, batch.edits)
    tokens = _largest(shaped)
    # NaN counts as the largest of all.
    spoiled = set(shaped.gather(1, tokens[:, None])[:, 0].isnan().nonzero()[:, 0].tolist())
    # The same random number means one token among those in order of likelihood and another among all: which order it
    # is must be up to a row itself, so the two kinds go apart.
    ranked = ((batch.top_ks > 0) & (batch.top_ks < logits.shape[1])) | (batch.top_ps != 1)
    for is_ranked in (False, True):
        some = (ranked == is_ranked).nonzero()[0]
        if len(some):
            rows = torch.from_numpy(batch.drawn[some]).to(logits.device)
            tokens[rows] = _draw(shaped[rows].float(), batch, some, ranked=is_ranked)
    return [
        StepResult(()) if row in spoiled else StepResult((token,), _logprobs(logits[row], token, count))
        for row, (token, count) in enumerate(zip(tokens.tolist(), batch.num_logprobs, strict=True))
    ]


def _largest(logits: torch.Tensor) -> torch.Tensor:
    """The place of the largest of each row; NaN is larger than all."""
    if logits.dtype == torch.bfloat16 and logits.device.type == "cpu" and hasattr(torch.ops.inflight, "argmax"):
        places: torch.Tensor = torch.ops.inflight.argmax(logits)
        return places
    # On the CPU torch finds the largest of half-precision numbers several times faster among floats.
    return logits.float().argmax(dim=-1)


def _draw(logits: torch.Tensor, batch: SamplingBatch, some: NDArray[np.int64], *, ranked: bool) -> torch.Tensor:
    """Draw from softmax(logits / temperature) [N, vocabulary] cut down by top_k, top_p and min_p.

    `some` [N] says which of the batch's drawn rows these are.
    """
    device, vocabulary = logits.device, logits.shape[1]

    def column(values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values[some]).to(device)[:, None]

    logits = logits / column(batch.temperatures)
    tokens = None
    if ranked:
        top_ks = np.where(batch.top_ks > 0, np.minimum(batch.top_ks, vocabulary), vocabulary)
        tokens = _likeliest(logits, int(top_ks[some].max()))
        logits = logits.gather(1, tokens)
        ranks = torch.arange(logits.shape[1], device=device)
        logits = logits.masked_fill(ranks >= column(top_ks), -torch.inf)
    probabilities = logits.double().softmax(dim=-1)
    if ranked:
        # A token stays while those before it fall short of p; the likeliest always does.
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= column(batch.top_ps), 0)
    smallest = probabilities.amax(dim=-1, keepdim=True) * column(batch.min_ps)
    probabilities = probabilities.masked_fill(probabilities < smallest, 0)
    places = _place(probabilities, column(batch.uniforms))
    return places if tokens is None else tokens.gather(1, places[:, None])[:, 0]


def _likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The tokens of the `count` largest logits of each row, best first.

    Of equal ones, frequent in half precision, the smaller token comes first, so that `count`, which the neighbours have
    a say in, changes nothing.
    """
    if count > _MAX_SELECTED:
        return logits.argsort(dim=-1, descending=True, stable=True)
    bits = (logits + 0.0).view(torch.int32)  # Makes of -0.0 the 0.0 that it equals.
    # Whole numbers in the order of the floats; the token in the lower half makes them all different.
    rising = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    return ((rising << 32) - torch.arange(logits.shape[1], device=logits.device)).topk(count).indices


def _place(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """[N], where each uniform number [N, 1] in [0, 1) falls in its row's cumulated probabilities, whose sum may differ
    from 1."""
    cumulated = probabilities.cumsum(dim=-1)
    wanted = uniforms * cumulated[:, -1:]
    return torch.searchsorted(cumulated, wanted, right=True)[:, 0].clamp(max=probabilities.shape[1] - 1)


def _logprobs(logits: torch.Tensor, token: int, count: int | None) -> tuple[TokenLogprobs, ...]:
    if count is None:
        return ()
    row = logits.float().log_softmax(dim=-1)
    values, tokens = row.topk(min(count, row.shape[0]))
    chosen = row[token]
    return (
        TokenLogprobs(
            chosen=chosen.item(),
            rank=int((row > chosen).sum()) + 1,
            top=dict(zip(tokens.tolist(), values.tolist(), strict=True)),
        ),
    )
