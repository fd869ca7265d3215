"""The shortest time that a step can take on this machine: that of its bytes or of its operations, whichever is longer.

Bytes are all packed weights and the cached keys and values that attention reads. Operations are those of the linear
layers and of attention. What a step writes, norms, activations and sampling count as nothing.
"""

from typing import Any

from inflight.model.cpu.packed_linear import PackedLinear
from inflight.model.loading.loader import LoadedModel
from load_tests.bench.ceilings import Ceilings
from load_tests.bench.engine_step import Work, packed_linears


def floor_milliseconds(model: LoadedModel, work: Work, limits: Ceilings) -> float:
    """The floor of a step."""
    return 1000 * max(
        bytes_of_a_step(model, work) / limits.bandwidth, operations_of_a_step(model, work) / limits.products
    )


def bytes_of_a_step(model: LoadedModel, work: Work) -> int:
    """Bytes that a step reads from memory."""
    total = sum(group.packed.nbytes for group in packed_linears(model))
    for layer in model.layers:
        tokens = sum(min(cached, layer.window or cached) for cached, _ in work.rows)
        total += tokens * layer.shape.elements_per_token * model.dtype.itemsize
    return total


def operations_of_a_step(model: LoadedModel, work: Work) -> int:
    """Additions and multiplications of a step."""
    module: Any = model.module
    head = module.get_output_embeddings()
    products = 0
    for layer in module.modules():
        if isinstance(layer, PackedLinear):
            rows = len(work.rows) if layer is head else work.num_tokens
            products += rows * layer.in_features * layer.out_features
    for attention in model.layers:
        shape, window = attention.shape, attention.window
        seen = sum(
            min(cached + number, window or cached + number) for cached, new in work.rows for number in range(1, new + 1)
        )
        products += seen * module.config.num_attention_heads * (shape.key_width + shape.value_width)
    return 2 * products
