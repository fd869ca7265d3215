"""The dtype in which the torch-based peers are fastest."""

from inflight.model.cpu.instruction_sets import instruction_sets

_FAST = {"AMX", "AVX512_BF16"}


def best_dtype() -> str:
    """Return bfloat16, or float32 on an x86 processor without bfloat16 instructions.

    On such a processor torch multiplies bfloat16 without vector instructions, or with AVX512 through oneDNN at a fifth
    of float32's speed: 34 and 161 GFLOP/s on a core of an Intel Xeon.
    """
    if names := instruction_sets():
        return "bfloat16" if _FAST.intersection(names) else "float32"
    # Imported here so that `--help` needs no torch.
    import torch

    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
