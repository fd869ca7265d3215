"""Samples one token for each row of logits, with the parameters of the row's request.

The token depends only on the row's logits and parameters, the request's seed and the position, never on other rows.
Each row uses one random number of its own, see `SamplingBatch.uniforms`.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.model.sampling.apply_edits import apply_edits
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.step_result import StepResult, TokenLogprobs

# Up to this k, the likeliest tokens are selected. Above it, all tokens are sorted.
_MAX_SELECTED = 1024


def sample(logits: torch.Tensor, batch: SamplingBatch) -> list[StepResult]:
    """Return a new token, and log-probabilities if requested, for each row of logits [S, vocabulary].

    A row gives no token if it has NaN in it, or if logits processors forbid all tokens.
    """
    if not batch.num_rows:
        return []
    shaped = apply_edits(logits, batch.edits)
    tokens = _argmax(shaped)
    # argmax treats NaN as the largest value, and NaN is not larger than anything.
    largest = shaped.gather(1, tokens[:, None])[:, 0].tolist()
    unusable = {row for row, logit in enumerate(largest) if not logit > -math.inf}
    if len(batch.drawn):
        _draw_all(shaped, batch, tokens)
    return [
        StepResult(()) if row in unusable else StepResult((token,), _logprobs(logits[row], token, count))
        for row, (token, count) in enumerate(zip(tokens.tolist(), batch.num_logprobs, strict=True))
    ]


def _draw_all(logits: torch.Tensor, batch: SamplingBatch, tokens: torch.Tensor) -> None:
    """Replace the tokens [S] of all rows that are not greedy by random ones."""
    # One random number selects different tokens from a ranked and an unranked vocabulary. A row's own parameters must
    # decide between the two, not those of its neighbours, so both kinds of rows are drawn separately.
    ranked = ((batch.top_ks > 0) & (batch.top_ks < logits.shape[1])) | (batch.top_ps != 1)
    for is_ranked in (False, True):
        selected = (ranked == is_ranked).nonzero()[0]
        if len(selected):
            rows = torch.from_numpy(batch.drawn[selected]).to(logits.device)
            tokens[rows] = _draw(logits[rows].float(), batch, selected, ranked=is_ranked)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The token with the largest logit of each row. NaN counts as larger than any number."""
    if logits.dtype == torch.bfloat16 and logits.device.type == "cpu" and hasattr(torch.ops.inflight, "argmax"):
        tokens: torch.Tensor = torch.ops.inflight.argmax(logits)
        return tokens
    # On the CPU, torch's argmax is several times faster in float32 than in half precision.
    return logits.float().argmax(dim=-1)


def _draw(logits: torch.Tensor, batch: SamplingBatch, selected: NDArray[np.int64], *, ranked: bool) -> torch.Tensor:
    """Draw tokens [N] from softmax(logits / temperature) [N, vocabulary], limited by top_k, top_p and min_p.

    `selected` [N] has the indices of these rows in `SamplingBatch.drawn`.
    """
    device, vocabulary = logits.device, logits.shape[1]

    def column(values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values[selected]).to(device)[:, None]

    logits = logits / column(batch.temperatures)
    tokens = None
    if ranked:
        top_ks = np.where(batch.top_ks > 0, np.minimum(batch.top_ks, vocabulary), vocabulary)
        tokens = _likeliest(logits, int(top_ks[selected].max()))
        logits = logits.gather(1, tokens)
        ranks = torch.arange(logits.shape[1], device=device)
        logits = logits.masked_fill(ranks >= column(top_ks), -torch.inf)
    probabilities = logits.double().softmax(dim=-1)
    if ranked:
        # A token stays if the probabilities of all likelier tokens add up to less than p. The likeliest always stays.
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= column(batch.top_ps), 0)
    smallest = probabilities.amax(dim=-1, keepdim=True) * column(batch.min_ps)
    probabilities = probabilities.masked_fill(probabilities < smallest, 0)
    columns = _invert_cdf(probabilities, column(batch.uniforms))
    return columns if tokens is None else tokens.gather(1, columns[:, None])[:, 0]


def _likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The tokens of the `count` largest logits of each row, likeliest first.

    Of equal logits, which are frequent in half precision, the smaller token id comes first. So the order does not
    depend on `count`, which other rows influence.
    """
    if count > _MAX_SELECTED:
        return logits.argsort(dim=-1, descending=True, stable=True)
    bits = (logits + 0.0).view(torch.int32)  # The addition turns -0.0 into 0.0.
    # Integers in the same order as the floats. The token id in the lower half makes them distinct.
    rising = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    return ((rising << 32) - torch.arange(logits.shape[1], device=logits.device)).topk(count).indices


def _invert_cdf(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the first column of each row whose cumulative probability exceeds the row's uniform number.

    `uniforms` [N, 1] are in [0, 1). The probabilities [N, columns] of a row need not add up to 1. Returns [N].
    """
    cumulative = probabilities.cumsum(dim=-1)
    wanted = uniforms * cumulative[:, -1:]
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0].clamp(max=probabilities.shape[1] - 1)


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
