"""Changes to logits that come before the choice: penalties, and no early end."""

from collections.abc import Sequence

import numpy as np
import torch

from inflight.request import Request


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
        or request.num_output < params.min_tokens
    )


def _penalise(logits: torch.Tensor, request: Request) -> None:
    """In place, on one request's row."""
    params = request.params
    if params.repetition_penalty not in (None, 1.0):
        seen = torch.tensor(np.unique(request.token_ids), device=logits.device)
        penalty = params.repetition_penalty
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    if params.presence_penalty or params.frequency_penalty:
        tokens, counts = np.unique(request.token_ids[len(request.prompt_ids) :], return_counts=True)
        used = torch.tensor(tokens, dtype=torch.long, device=logits.device)
        times = torch.tensor(counts, device=logits.device)
        logits[used] -= params.presence_penalty + params.frequency_penalty * times
    if request.num_output < params.min_tokens:
        ends = [token for token in request.stop_token_ids if token < logits.shape[0]]
        logits[ends] = -torch.inf
