"""Applies the edits of logits processors."""

import torch

from inflight.logits_processors.edits import LogitEdits


def apply_edits(logits: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
    """Return the edited logits [S, vocabulary] in float32, or the same tensor if there are no edits."""
    passes = edits.gather()
    if not passes:
        return logits
    logits = logits.to(torch.float32, copy=True)
    for edit in passes:
        rows, tokens, penalties, biases = (torch.from_numpy(array).to(logits.device) for array in edit)
        values = logits[rows, tokens]
        logits[rows, tokens] = torch.where(values > 0, values / penalties, values * penalties) + biases
    return logits
