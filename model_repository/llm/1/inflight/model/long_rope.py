"""Rotary embeddings whose frequencies depend on the length of the sequence: LongRoPE (Ding et al., 2024).

Models such as Phi-4-mini rotate all keys and queries of a sequence by one set of frequencies up to the length of their
first training, and by another one beyond it. transformers' code chooses a set for a whole batch. Here each token tells
which one it needs, as a batch has sequences of both kinds.
"""

import logging
from typing import Any

import torch

from inflight.model.replacement import Replaced, replace_layers, restore

logger = logging.getLogger(__name__)


class SwitchedRope(torch.nn.Module):
    """A model's own rotary embedding, computed with both sets of frequencies."""

    def __init__(self, rope: torch.nn.Module, longest_short: int, device: torch.device) -> None:
        """`longest_short`: the tokens of the longest sequence with the short frequencies."""
        super().__init__()
        self._rope = rope
        self._longest_short = longest_short
        self._beyond: torch.Tensor
        self.register_buffer("_beyond", torch.tensor([[longest_short]], device=device), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return cosines and sines [1, tokens, width]. `position_ids`, [1, tokens]: see `BatchArrays.rotations`."""
        is_long = position_ids < 0
        places = torch.where(is_long, ~position_ids, position_ids)
        short = self._rope(x, position_ids=places.clamp(max=self._longest_short - 1))
        # A position beyond the border makes the model's code choose the long frequencies.
        long = self._rope(x, position_ids=torch.cat((places, self._beyond), dim=1))
        chosen = is_long[..., None]
        return tuple(torch.where(chosen, one[:, :-1], other) for one, other in zip(long, short, strict=True))


def switch_rope(module: Any, longest_short: int) -> Replaced:
    """Let each token choose the frequencies of a model's rotary embeddings.

    Nothing is replaced if the model has no such embeddings, or if they do not come out like its own.
    """

    def switched(layer: torch.nn.Module) -> SwitchedRope | None:
        is_longrope = getattr(layer, "rope_type", None) == "longrope"
        return SwitchedRope(layer, longest_short, device) if is_longrope else None

    device = next(module.parameters()).device
    replaced = replace_layers(module, switched)
    try:
        if all(_same(getattr(parent, name), original, longest_short, device) for parent, name, original in replaced):
            return replaced
        reason = "the replacement gives other numbers"
    except Exception as error:  # noqa: BLE001 - a model's code may raise any exception
        reason = f"{type(error).__name__}: {error}"
    logger.warning(
        "the context ends at %d tokens, as the rotary embeddings for longer ones cannot be used: %s",
        longest_short,
        reason,
    )
    restore(replaced)
    return []


@torch.inference_mode()
def _same(switched: SwitchedRope, original: torch.nn.Module, longest_short: int, device: torch.device) -> bool:
    """Whether both give the same numbers on both sides of the border."""
    x = torch.zeros(1, 1, 1, device=device)
    last_short = torch.arange(longest_short, device=device)[None, -4:]
    pairs = ((last_short, last_short), (~(last_short + 1), last_short + 1))
    return all(
        torch.equal(mine, own)
        for marked, positions in pairs
        for mine, own in zip(switched(x, marked), original(x, position_ids=positions), strict=True)
    )
