"""Step times of a model that several devices compute together, each a part of every layer."""

from dataclasses import dataclass

from load_tests.simulate.step_cost import A100_CACHE_TOKENS, KV_BYTES_PER_TOKEN, WEIGHT_BYTES, StepCost


@dataclass(frozen=True)
class Interconnect:
    """How fast the devices of a host add up a tensor that each has a part of (all-reduce)."""

    latency: float
    """Seconds of an all-reduce of next to no data."""
    bytes_per_second: float
    """Bus bandwidth, as nccl-tests defines it: N devices in a ring send 2 (N - 1) / N of the bytes at this rate."""


@dataclass(frozen=True)
class Shape:
    """What tensor parallelism must know of a model."""

    layers: int
    hidden_size: int
    kv_heads: int
    bytes_per_value: int = 2


def tensor_parallel(cost: StepCost, ranks: int, link: Interconnect, shape: Shape) -> StepCost:
    """Step times on `ranks` devices, from those on one.

    Weights, products, and keys and values are divided. If there are fewer KV heads than ranks, several ranks read the
    same ones. After attention and after the MLP, each layer adds up hidden states [tokens, hidden size] (Megatron-LM,
    arXiv 1909.08053). All-reduces do not overlap with computing. Smaller products attain the same rate as large ones.
    """
    if ranks == 1:
        return cost
    all_reduces = 2 * shape.layers
    sent = 2 * (ranks - 1) / ranks * shape.hidden_size * shape.bytes_per_value
    readers = min(ranks, shape.kv_heads)
    return StepCost(
        per_step=cost.per_step / ranks + all_reduces * link.latency,
        per_token=cost.per_token / ranks + all_reduces * sent / link.bytes_per_second,
        per_cached_token=cost.per_cached_token / readers,
        per_pair=cost.per_pair / ranks,
        per_sampled_token=cost.per_sampled_token / ranks,
        per_swapped_block=cost.per_swapped_block / readers,
    )


LLAMA_8B = Shape(layers=32, hidden_size=4096, kv_heads=8)

NVLINK = Interconnect(latency=10e-6, bytes_per_second=230e9)
"""NVLink 3 with NVSwitch. Bandwidth: 232 GB/s on 8 A100 (NVIDIA/nccl-tests issue 175). Latency: between 6 µs with CUDA
graphs on H100 (NVIDIA/nccl issue 1259) and the some 20 µs that NCCL takes without NVLink."""
PCIE = Interconnect(latency=20e-6, bytes_per_second=16e9)
"""PCIe 4 x16. Latency: NCCL, 4 GPUs behind a PCIe switch, with CUDA graphs (haohervchb/sglang-V100 pull request 2).
Bandwidth: half of the line's 32 GB/s; 4 GPUs attain 35 of 64 GB/s with PCIe 5 (NVIDIA/nccl issue 1639)."""


def a100_cache_tokens(ranks: int) -> int:
    """Number of tokens in the KV cache of `ranks` A100 that hold the weights of Llama 3 8B once."""
    return ranks * A100_CACHE_TOKENS + int((ranks - 1) * WEIGHT_BYTES / KV_BYTES_PER_TOKEN)
