"""Chooses a token per row of logits, each row by its own request's parameters.

A row's choice depends on its logits, its request's seed and its position alone, never on its neighbours: the one random
number that it takes comes from a counter-based generator keyed with seed and position (Philox, SC'11).
"""

from collections.abc import Sequence

import numpy as np
import torch

from inflight.model.sampling.penalties import apply_penalties
from inflight.outputs import TokenLogprobs
from inflight.request import Request
from inflight.sampling_params import SamplingParams

# Up to this k the likeliest tokens are selected, above it all are sorted.
_MAX_SELECTED = 1024
# Temperatures below this are greedy: dividing by them would overflow.
_GREEDY_BELOW = 1e-5
# Above this all tokens are as likely as each other; far above it float32 ends.
_HOTTEST = 1e9


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[tuple[int | None, TokenLogprobs | None]]:
    """A token, and log-probabilities if asked for, for each request from its row of logits [S, vocabulary].

    A row in which something is not a number gives no token.
    """
    if not requests:
        return []
    wants_logprobs = any(request.params.logprobs is not None for request in requests)
    shaped = apply_penalties(logits, requests)
    tokens = _largest(shaped)
    # NaN counts as the largest of all.
    spoiled = shaped.gather(1, tokens[:, None])[:, 0].isnan().nonzero()[:, 0].tolist()
    drawn = [row for row, request in enumerate(requests) if (request.params.temperature or 0) >= _GREEDY_BELOW]
    # The same random number means one token among those in order of likelihood and another among all: which order it
    # is must be up to a row itself, so the two kinds go apart.
    for ranked in (False, True):
        some = [row for row in drawn if _is_ranked(requests[row].params, logits.shape[1]) == ranked]
        if some:
            rows = torch.tensor(some, device=logits.device)
            tokens[rows] = _draw(shaped[rows].float(), [requests[row] for row in some], ranked=ranked)
    chosen: list[int | None] = tokens.tolist()
    for row in spoiled:
        chosen[row] = None
    if not wants_logprobs:
        return [(token, None) for token in chosen]
    return [
        (token, None if token is None else _logprobs(row, token, request.params.logprobs))
        for row, token, request in zip(logits, chosen, requests, strict=True)
    ]


def _largest(logits: torch.Tensor) -> torch.Tensor:
    """The place of the largest of each row; NaN is larger than all."""
    if logits.dtype == torch.bfloat16 and logits.device.type == "cpu" and hasattr(torch.ops.inflight, "argmax"):
        places: torch.Tensor = torch.ops.inflight.argmax(logits)
        return places
    # On the CPU torch finds the largest of half-precision numbers several times faster among floats.
    return logits.float().argmax(dim=-1)


def _is_ranked(params: SamplingParams, vocabulary: int) -> bool:
    """Whether its tokens must be put in order of likelihood."""
    return 0 < (params.top_k or 0) < vocabulary or params.top_p != 1


def _draw(logits: torch.Tensor, requests: Sequence[Request], *, ranked: bool) -> torch.Tensor:
    """Draw from softmax(logits / temperature) [S, vocabulary] cut down by top_k, top_p and min_p."""
    params = [request.params for request in requests]
    device = logits.device
    temperatures = [float(min(p.temperature or 0, _HOTTEST)) for p in params]
    logits = logits / torch.tensor(temperatures, device=device)[:, None]
    vocabulary = logits.shape[1]
    top_ks = [min(p.top_k, vocabulary) if p.top_k and p.top_k > 0 else vocabulary for p in params]
    tokens = None
    if ranked:
        tokens = _likeliest(logits, max(top_ks))
        logits = logits.gather(1, tokens)
        ranks = torch.arange(logits.shape[1], device=device)
        logits = logits.masked_fill(ranks >= torch.tensor(top_ks, device=device)[:, None], -torch.inf)
    probabilities = logits.double().softmax(dim=-1)
    if ranked:
        # A token stays while those before it fall short of p; the likeliest always does.
        before = probabilities.cumsum(dim=-1) - probabilities
        top_ps = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
        probabilities = probabilities.masked_fill(before >= top_ps[:, None], 0)
    min_ps = torch.tensor([p.min_p for p in params], device=device)
    least = probabilities.amax(dim=-1) * min_ps
    probabilities = probabilities.masked_fill(probabilities < least[:, None], 0)
    places = _place(probabilities, torch.tensor([_uniform(r) for r in requests], device=device))
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
    """Where each uniform number in [0, 1) falls in its row's cumulated probabilities, which need not sum to 1."""
    cumulated = probabilities.cumsum(dim=-1)
    wanted = uniforms * cumulated[:, -1]
    return torch.searchsorted(cumulated, wanted[:, None], right=True)[:, 0].clamp(max=probabilities.shape[1] - 1)


def _uniform(request: Request) -> float:
    """A number in [0, 1) for the request's next position."""
    bits = int(np.random.Philox(key=request.seed, counter=len(request.token_ids)).random_raw())
    return (bits >> 11) * 2.0**-53


def _logprobs(logits: torch.Tensor, token: int, count: int | None) -> TokenLogprobs | None:
    if count is None:
        return None
    row = logits.float().log_softmax(dim=-1)
    values, tokens = row.topk(min(count, row.shape[0]))
    chosen = row[token]
    return TokenLogprobs(
        chosen=chosen.item(),
        rank=int((row > chosen).sum()) + 1,
        top=dict(zip(tokens.tolist(), values.tolist(), strict=True)),
    )
