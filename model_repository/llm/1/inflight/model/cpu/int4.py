"""Weights in int4: rounded in groups of inputs, and packed for the kernels."""

import torch

GROUP = 32
"""How many inputs of an output share a scale."""

BYTES_OF_WEIGHT = 9 / 16
"""Memory that a packed weight takes: half a byte, and its share of the group's 16-bit scale."""

_PANEL, _LANES = 32, 16
_SHIFTS = torch.tensor([0, 4, 8, 12], dtype=torch.int32)


def rounded_to_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round bfloat16 weights [N, K] to integers from -8 to 7, in int8, with bfloat16 scales [N, K / 32].

    For each group, some scales are tried, and the one with the least squared error is taken, as llama.cpp does for its
    other formats. So weights that are multiples of a scale, such as those of a symmetric GPTQ checkpoint with groups of
    32, 64 or 128, stay the same multiples.
    """
    whole, scales = torch.ops.inflight.round_to_int4(weight.contiguous())
    return whole, scales


def multiples(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the integers [N, K], in int8, that weights [N, K] have over their scales [N, K / 32].

    The weights were products of both, rounded to bfloat16.
    """
    groups = weight.float().view(len(weight), -1, GROUP)
    return (groups / scales.float()[:, :, None]).round().to(torch.int8).flatten(1)


def pack_int4(whole: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Pack weights [N, K] and scales [N, K / 32] as bytes [N / 32, K / 32, 576], the kernels' `Int4Group`.

    N and K must be multiples of 32.
    """
    panels, groups = whole.shape[0] // _PANEL, whole.shape[1] // GROUP
    nibbles = (whole & 15).view(panels, _PANEL // _LANES, _LANES, groups, 4, 4, 2)
    # From panel, half, column, group, word, pair, element to panel, group, half, word, column, element, pair.
    by_words = nibbles.permute(0, 3, 1, 4, 2, 6, 5).to(torch.int32)
    words = (by_words << _SHIFTS).sum(dim=-1, dtype=torch.int32).to(torch.int16)
    by_groups = scales.view(panels, _PANEL, groups).transpose(1, 2).contiguous()
    return torch.cat([words.flatten(2).view(torch.uint8), by_groups.view(torch.uint8)], dim=2)
