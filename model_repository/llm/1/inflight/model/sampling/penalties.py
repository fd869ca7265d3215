"""Changes to logits that come before the choice: penalties, biases, forbidden words, no early end."""

from collections.abc import Sequence

import numpy as np
import torch

from inflight.request import Request

# A repetition penalty beyond this, or below its inverse, could take logits out of the range of float32.
_STRONGEST = 1e9


def apply_penalties(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """Logits [S, vocabulary] with each request's penalties; the same tensor if nobody asks for any."""
    affected = [(row, request) for row, request in enumerate(requests) if _asks(request)]
    if not affected:
        return logits
    logits = logits.float().clone() if logits.dtype != torch.float32 else logits.clone()
    for row, request in affected:
        _penalise(logits[row], request)
    return logits


def _asks(request: Request) -> bool:
    params = request.params
    return (
        params.repetition_penalty not in (None, 1.0)
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
        or bool(params.logit_bias)
        or bool(request.bad_words)
        or request.num_output < params.min_tokens
    )


def _penalise(logits: torch.Tensor, request: Request) -> None:
    """In place, on one request's row."""
    params = request.params
    if params.repetition_penalty not in (None, 1.0):
        seen = torch.tensor(np.unique(request.token_ids), device=logits.device)
        penalty = float(min(max(params.repetition_penalty or 1, 1 / _STRONGEST), _STRONGEST))
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    if params.presence_penalty or params.frequency_penalty:
        tokens, counts = np.unique(request.output_ids, return_counts=True)
        used = torch.tensor(tokens, dtype=torch.long, device=logits.device)
        times = torch.tensor(counts, device=logits.device)
        logits[used] -= params.presence_penalty + params.frequency_penalty * times
    if params.logit_bias:
        biased = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[biased] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
    output = request.output_ids if request.bad_words else []
    for *beginning, last in request.bad_words:
        if beginning == output[len(output) - len(beginning) :]:
            logits[last] = -torch.inf
    if request.num_output < params.min_tokens:
        ends = [token for token in request.stop_token_ids if token < logits.shape[0]]
        logits[ends] = -torch.inf
