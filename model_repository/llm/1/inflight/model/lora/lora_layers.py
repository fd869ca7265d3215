"""Adds adapters to the linear layers of a loaded model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from inflight.errors import UnsupportedModel
from inflight.model.cpu.packed_linear import PackedLinear
from inflight.model.lora.active_adapters import active_adapters
from inflight.model.lora.adapter_weights import AdapterWeights

_LANES = 16


def adapt(layer: nn.Module, down: torch.Tensor, up: torch.Tensor, *, has_kernel: bool) -> None:
    """Let a linear layer add the change by each token's own adapter to its output.

    Each token gets the change of its own adapter (as in S-LoRA, arXiv 2311.03285, and Punica, arXiv 2310.18547). The
    layer itself stays as it is, so tokens without an adapter get its output unchanged.

    Args:
        layer: maps [..., inputs] to [..., outputs].
        down: [adapters, rank, inputs], 0 where an adapter has a smaller rank or does not change the layer.
        up: [adapters, rank, outputs].
        has_kernel: use the C++ kernel, which needs bfloat16 on a CPU.
    """
    if has_kernel:
        ranks = -down.shape[1] % _LANES
        # The kernel multiplies pairs of inputs.
        down = _packed(nn.functional.pad(down, (0, down.shape[2] % 2, 0, ranks)))
        up = _packed(nn.functional.pad(up, (0, -up.shape[2] % _LANES, 0, ranks)).transpose(1, 2))
        hook = _add_by_kernel
    else:
        hook = _add
    # Tensors that are not part of a module become constants of a traced graph, which are compared with each other.
    layer.register_buffer("lora_down", down, persistent=False)
    layer.register_buffer("lora_up", up, persistent=False)
    layer.register_forward_hook(hook)


def _add_by_kernel(layer: Any, inputs: Sequence[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    adapters = active_adapters()
    if adapters is None:
        return y
    x = inputs[0]
    if x.shape[-1] % 2:
        x = nn.functional.pad(x, (0, 1))
    added: torch.Tensor = torch.ops.inflight.add_lora(y, x, adapters.slots, layer.lora_down, layer.lora_up)
    return added


def _add(layer: Any, inputs: Sequence[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    adapters = active_adapters()
    if adapters is None:
        return y
    x, added = inputs[0].reshape(-1, inputs[0].shape[-1]), y.reshape(-1, y.shape[-1]).clone()
    if len(x) != len(adapters.slots):
        raise RuntimeError(f"a layer gets {len(x)} of the {len(adapters.slots)} tokens of a batch")
    for slot, tokens in adapters.tokens:
        added[tokens] += x[tokens] @ layer.lora_down[slot].T @ layer.lora_up[slot]
    return added.view(y.shape)


def _packed(matrices: torch.Tensor) -> torch.Tensor:
    """Pack matrices [adapters, N, K] for the kernel as [adapters, N / 16, K / 2, 16, 2]."""
    adapters, rows, columns = matrices.shape
    return matrices.reshape(adapters, rows // _LANES, _LANES, columns // 2, 2).transpose(2, 3).contiguous()


def add_adapters(module: Any, adapters: Mapping[str, AdapterWeights], *, has_kernel: bool) -> None:
    """Add adapters to the layers of a model. Their slots are their positions.

    Raises:
        UnsupportedModel: one changes what is not a linear layer of the model.
        ValueError: one does not have the widths of a layer.
    """
    changed = sorted({layer for weights in adapters.values() for layer in weights.layers})
    for name in changed:
        layer, inputs, outputs = _linear(module, name, adapters)
        weights = [(adapter, each.layers[name]) for adapter, each in adapters.items() if name in each.layers]
        for adapter, delta in weights:
            found = delta.down.shape[1], delta.up.shape[0]
            if found != (inputs, outputs):
                raise ValueError(
                    f"lora_modules[{adapter!r}] has {found[0]} inputs and {found[1]} outputs for {name}; the model's "
                    f"layer has {inputs} and {outputs}"
                )
        rank = max(len(delta.down) for _, delta in weights)
        down = torch.zeros(len(adapters), rank, inputs)
        up = torch.zeros(len(adapters), rank, outputs)
        for slot, each in enumerate(adapters.values()):
            if (found_delta := each.layers.get(name)) is not None:
                down[slot, : len(found_delta.down)] = found_delta.down
                up[slot, : len(found_delta.down)] = found_delta.up.T
        device = next(module.parameters()).device
        adapt(layer, down.to(device, module.dtype), up.to(device, module.dtype), has_kernel=has_kernel)


def _linear(module: Any, name: str, adapters: Mapping[str, AdapterWeights]) -> tuple[nn.Module, int, int]:
    """Return a layer and its numbers of inputs and outputs."""
    adapter = next(adapter for adapter, weights in adapters.items() if name in weights.layers)
    try:
        layer = module.get_submodule(name)
    except AttributeError:
        kind = type(module).__name__
        raise UnsupportedModel(f"lora_modules[{adapter!r}] changes {name}, which {kind} does not have") from None
    if layer is module.get_output_embeddings():
        raise UnsupportedModel(f"lora_modules[{adapter!r}] changes {name}, the output head; that is not supported")
    # Subclasses, such as the routers of some mixtures of experts, compute something else.
    if type(layer) in (nn.Linear, PackedLinear):
        return layer, layer.in_features, layer.out_features
    if type(layer) is Conv1D:
        return layer, layer.nx, layer.nf
    kind = type(layer).__name__
    raise UnsupportedModel(f"lora_modules[{adapter!r}] changes {name}, a {kind}; only linear layers are supported")
