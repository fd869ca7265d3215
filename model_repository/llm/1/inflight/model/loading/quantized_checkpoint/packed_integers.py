"""Small unsigned integers that are packed in words of 32 bits, as GPTQ and AWQ store weights."""

import torch

# The column of each of the eight weights in a word, as AutoAWQ's kernel reads them.
_AWQ_ORDER = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the integers in int32 words [..., n] as uint8 [..., n * 32 / bits], those in the lowest bits first.

    `bits` is 2, 4 or 8.
    """
    # The bytes of a word begin with the lowest.
    data = words.contiguous().view(torch.uint8)
    parts = [(data >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(parts, dim=-1).flatten(-2)


def unpacked_awq(words: torch.Tensor) -> torch.Tensor:
    """Return the 4-bit integers in int32 words [..., n] as uint8 [..., 8 n], in the order of AutoAWQ's "gemm"."""
    nibbles = unpacked(words, 4).view(*words.shape, len(_AWQ_ORDER))
    return nibbles.index_select(-1, _AWQ_ORDER.to(words.device)).flatten(-2)
