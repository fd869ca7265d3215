"""Applies the edits of logits processors with torch's operators."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from inflight.logits_processors.edits import Edit, LogitEdits


def apply_edits(logits: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
    """Return the edited logits [S, vocabulary] in float32, or the same tensor if there are no edits."""
    if not edits.edits:
        return logits
    logits = logits.to(torch.float32, copy=True)
    for each in _passes(edits.edits):
        _apply(logits, each)
    return logits


def _passes(edits: Sequence[Edit]) -> list[list[Edit]]:
    """The i-th edits of all rows form pass i, so that no logit occurs twice in a pass."""
    passes: list[list[Edit]] = []
    seen: Counter[int] = Counter()
    for edit in edits:
        if seen[edit.row] == len(passes):
            passes.append([])
        passes[seen[edit.row]].append(edit)
        seen[edit.row] += 1
    return passes


def _apply(logits: torch.Tensor, edits: Sequence[Edit]) -> None:
    counts = [len(edit.tokens) for edit in edits]
    places = np.stack((np.repeat([edit.row for edit in edits], counts), np.concatenate([e.tokens for e in edits])))
    changes = np.stack(
        (
            np.repeat(np.array([edit.penalty for edit in edits], dtype=np.float32), counts),
            np.concatenate([e.biases if len(e.biases) else np.zeros(len(e.tokens), np.float32) for e in edits]),
        )
    )
    rows, tokens = torch.from_numpy(places).to(logits.device)
    penalties, biases = torch.from_numpy(changes).to(logits.device)
    values = logits[rows, tokens]
    logits[rows, tokens] = torch.where(values > 0, values / penalties, values * penalties) + biases
