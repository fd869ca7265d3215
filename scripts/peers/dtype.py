"""The type of number in which the peers that compute by torch are at their best."""

from inflight.model.cpu.instruction_sets import instruction_sets

_FAST = {"AMX", "AVX512_BF16"}


def best_dtype() -> str:
    """bfloat16, or float32 on an x86 processor without instructions for it.

    There torch multiplies bfloat16 step by step, or with AVX512 by oneDNN at a fifth of float32's speed: 34 and 161
    GFLOP/s of a core of an Intel Xeon.
    """
    if names := instruction_sets():
        return "bfloat16" if _FAST.intersection(names) else "float32"
    # Here, so that `--help` needs no torch.
    import torch

    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
