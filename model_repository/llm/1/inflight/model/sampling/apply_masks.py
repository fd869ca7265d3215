"""Applies the masks of guided requests with torch's operators."""

import torch

from inflight.guided_decoding.token_masks import TokenMasks


def apply_masks(logits: torch.Tensor, masks: TokenMasks | None) -> torch.Tensor:
    """Return logits [S, vocabulary], with minus infinity for the tokens that are not allowed."""
    if masks is None:
        return logits
    device = logits.device
    index, words = (torch.from_numpy(array).to(device) for array in (masks.index, masks.bits))
    allowed = ((words[:, :, None] >> torch.arange(32, device=device)) & 1).flatten(1)[:, : logits.shape[1]].bool()
    rows = (index >= 0).nonzero()[:, 0]
    return logits.index_copy(0, rows, logits[rows].masked_fill(~allowed, -torch.inf))
