"""The type of number in which the peers that compute by torch are at their best."""


def best_dtype() -> str:
    """bfloat16, or float32 on a processor for which torch has no fast product of bfloat16, as without AVX512."""
    # Here, so that `--help` needs no torch.
    import torch

    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
