"""Samples with torch's operators, on any device. On a GPU, the host waits for the device once, for all results."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.draws import PARAMETERS
from inflight.guided_decoding.token_masks import TokenMasks
from inflight.model.sampling.apply_edits import apply_edits
from inflight.model.sampling.apply_masks import apply_masks
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.step_result import TokenLogprobs

# Up to this number, the likeliest tokens are selected. For more of them, the row is sorted.
_MAX_SELECTED = 1024


def sample(
    logits: torch.Tensor, batch: SamplingBatch, masks: TokenMasks | None = None
) -> tuple[list[int], dict[int, TokenLogprobs]]:
    """Return a token for each row of logits [S, vocabulary], or -1, and the log-probabilities of the rows that ask."""
    shaped = apply_masks(apply_edits(logits, batch.edits).float(), masks)
    # The first of the largest logits; NaN counts as larger than any number.
    largest, tokens = shaped.max(dim=-1)
    drawn = np.flatnonzero(batch.parameters[:, PARAMETERS.index("temperature")])
    if len(drawn):
        rows = torch.from_numpy(drawn).to(logits.device)
        # A logit of infinity is certain. Its probability is not a number.
        certain = largest[rows] == torch.inf
        tokens[rows] = torch.where(certain, tokens[rows], _draw(shaped[rows], batch.parameters[drawn]))
    tokens = torch.where(largest > -torch.inf, tokens, -1)
    asking = [row for row, count in enumerate(batch.num_logprobs) if count is not None]
    if not asking:
        return tokens.tolist(), {}
    rows = torch.tensor(asking, device=logits.device)
    counts = [batch.num_logprobs[row] or 0 for row in asking]
    found = _logprobs(logits[rows].float(), tokens[rows].clamp(min=0), min(max(counts), logits.shape[1]))
    return _fetch(tokens, found, asking, counts)


def logprobs(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return the log-probabilities of one token of each row of logits [R, vocabulary], and of the likeliest ones."""
    ids = torch.tensor(tokens, device=logits.device)
    rows = list(range(len(tokens)))
    _, entries = _fetch(ids, _logprobs(logits.float(), ids, min(max(counts), logits.shape[1])), rows, list(counts))
    return [entries[row] for row in rows]


def _draw(logits: torch.Tensor, parameters: NDArray[np.float64]) -> torch.Tensor:
    """Draw tokens [D] from logits [D, vocabulary], with the `PARAMETERS` [D, 5] of these rows."""
    parameters = parameters.copy()
    top_ks = parameters[:, PARAMETERS.index("top_k")]
    top_ks[top_ks >= logits.shape[1]] = 0
    columns = torch.from_numpy(parameters).to(logits.device)
    temperatures, _, _, min_ps, uniforms = columns[:, :, None].unbind(1)
    weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperatures.float()).exp()
    _limit(logits, weights, parameters, columns)
    weights = weights.masked_fill(weights < min_ps, 0)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    totals = cumulative[:, -1:]
    # Rounding must not lead behind the last token with a weight.
    wanted = (uniforms * totals).minimum(totals.nextafter(torch.zeros_like(totals)))
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0]


def _limit(logits: torch.Tensor, weights: torch.Tensor, parameters: NDArray[np.float64], columns: torch.Tensor) -> None:
    """Set the weights [D, vocabulary] of the tokens beyond top_k and top_p to 0. `columns` are the parameters."""
    vocabulary = logits.shape[1]
    top_ks, top_ps = parameters[:, PARAMETERS.index("top_k")], parameters[:, PARAMETERS.index("top_p")]
    limited = top_ks > 0

    def cut(chosen: NDArray[np.bool_], most: int) -> torch.Tensor:
        rows = torch.from_numpy(np.flatnonzero(chosen)).to(logits.device)
        kept, enough = _cut(logits[rows], weights[rows], columns[rows], most)
        weights[rows] = torch.where(enough[:, None], kept, weights[rows])
        return enough

    few = limited & (top_ks <= _MAX_SELECTED)
    if few.any():
        cut(few, int(top_ks[few].max()))
    # Whether some thousand tokens have top_p of the probability is known only on the device. A GPU sorts a row in less
    # time than the host takes to find out. A CPU sorts slowly, and knows.
    many = ~few & (limited | (top_ps < 1))
    if logits.device.type == "cpu" and vocabulary > _MAX_SELECTED:
        tried = many & ~limited
        if tried.any():
            many[tried] = ~cut(tried, _MAX_SELECTED).numpy()
    if many.any():
        cut(many, vocabulary)


def _cut(
    logits: torch.Tensor, weights: torch.Tensor, columns: torch.Tensor, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights [R, vocabulary], 0 beyond top_k and top_p, and for each row [R] whether this is right.

    It is wrong if more than `most` tokens are left. No row may have a larger top_k.
    """
    temperatures, top_ks, top_ps, _, _ = columns[:, :, None].unbind(1)
    vocabulary = logits.shape[1]
    values = (logits.topk(most) if most <= _MAX_SELECTED else logits.sort(dim=-1, descending=True)).values
    ranks = torch.arange(values.shape[1], device=logits.device)
    in_top_k = (ranks < top_ks) | (top_ks == 0)
    top = ((values - values[:, :1]) / temperatures.float()).exp().masked_fill(~in_top_k, 0)
    before = top.cumsum(dim=-1, dtype=torch.float64)
    totals = torch.where(top_ks > 0, before[:, -1:], weights.sum(dim=-1, keepdim=True, dtype=torch.float64))
    before -= top
    kept = in_top_k & ((before < top_ps * totals) | (ranks == 0) | (top_ps == 1))
    count = kept.sum(dim=-1, keepdim=True)
    last = values.gather(1, count - 1)
    # Of the tokens with the smallest logit that is kept, the first are kept.
    ties = (kept & (values == last)).sum(dim=-1, keepdim=True)
    equal = logits == last
    keep = (logits > last) | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= ties))
    return weights.masked_fill(~keep, 0), ((count < most) | (count == top_ks) | (most == vocabulary))[:, 0]


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, most: int) -> tuple[torch.Tensor, ...]:
    """The log-probability [R] and the rank [R] of one token of each row of logits [R, vocabulary].

    Then come the `most` likeliest tokens [R, most] and their log-probabilities [R, most].
    """
    sums = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, tokens[:, None])
    top = _likeliest(logits, most)
    ranks = (logits > chosen).sum(dim=-1) + 1
    return (chosen - sums)[:, 0], ranks, top, logits.gather(1, top) - sums


def _likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The tokens of the `count` largest logits of each row, likeliest first, of equal ones the smaller id first."""
    bits = (logits + 0.0).view(torch.int32)  # The addition turns -0.0 into 0.0.
    # Integers in the same order as the floats. The token id in the lower half makes them distinct.
    rising = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    return ((rising << 32) - torch.arange(logits.shape[1], device=logits.device)).topk(count).indices


def _fetch(
    tokens: torch.Tensor, found: tuple[torch.Tensor, ...], asking: list[int], counts: list[int]
) -> tuple[list[int], dict[int, TokenLogprobs]]:
    """Copy the results to the host in one piece, as float64, in which every token id and float32 is exact."""
    tensors = (tokens, *found)
    flat = torch.cat([each.double().flatten() for each in tensors]).cpu()
    pieces = torch.split(flat, [each.numel() for each in tensors])
    tokens, chosen, ranks, top, values = (piece.view(each.shape) for piece, each in zip(pieces, tensors, strict=True))
    ids = tokens.long().tolist()
    results = (each.tolist() for each in (chosen, ranks.long(), top.long(), values))
    return ids, {
        row: TokenLogprobs.of(logprob, rank, likeliest[:count], logprobs[:count])
        for row, count, logprob, rank, likeliest, logprobs in zip(asking, counts, *results, strict=True)
        if ids[row] >= 0
    }
