"""The linear layers of a model that adapters may change."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from inflight.errors import UnsupportedModel
from inflight.model.attention.backend import AttentionBackend
from inflight.model.cpu.packed_linear import PackedLinear
from inflight.model.forward import ForwardPass
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.self_check import SelfCheck
from inflight.model.parallel.layers import linear_in, names_before


def linear_layer(module: Any, name: str, where: str) -> tuple[nn.Module, int, int]:
    """Return a layer by its name, and its numbers of inputs and outputs. Of a divided layer, it is this rank's part.

    Raises:
        UnsupportedModel: it is no linear layer, or the output head. The message begins with `where`.
    """
    try:
        found = module.get_submodule(name)
    except AttributeError:
        raise UnsupportedModel(f"{where}; it changes {name}, which {type(module).__name__} does not have") from None
    if found is module.get_output_embeddings():
        raise UnsupportedModel(f"{where}; it changes {name}, the output head; that is not supported")
    layer = linear_in(found)
    widths = _widths(layer)
    if widths is None:
        kind = type(layer).__name__
        raise UnsupportedModel(f"{where}; it changes {name}, a {kind}; only linear layers are supported")
    return layer, *widths


def _widths(layer: nn.Module) -> tuple[int, int] | None:
    # Subclasses, such as the routers of some mixtures of experts, compute something else.
    if type(layer) in (nn.Linear, PackedLinear):
        return layer.in_features, layer.out_features  # type: ignore[return-value]
    return (layer.nx, layer.nf) if type(layer) is Conv1D else None


def layers_of_all_tokens(
    module: Any,
    forward: ForwardPass,
    layers: Sequence[AttentionLayer],
    backend: AttentionBackend,
    check: SelfCheck,
) -> list[str]:
    """Return the names of the linear layers, but for the output head, that get every token of each batch.

    An expert of a mixture gets some of them, and an encoder of images none.
    """
    head = module.get_output_embeddings()
    names = {layer: name for layer, name in names_before(module).items() if _widths(layer)}
    if head is not None:
        names.pop(linear_in(head), None)
    num_tokens, get_all, get_some = 0, set[nn.Module](), set[nn.Module]()

    def note_batch(_: nn.Module, __: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
        nonlocal num_tokens
        num_tokens = arguments["input_ids"].numel()

    def note_layer(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        (get_all if inputs[0].numel() == num_tokens * inputs[0].shape[-1] else get_some).add(layer)

    hooks = [module.register_forward_pre_hook(note_batch, with_kwargs=True)]
    hooks += [layer.register_forward_pre_hook(note_layer) for layer in names]
    try:
        check.gives_numbers(forward, layers, backend)
    finally:
        for hook in hooks:
            hook.remove()
    return [name for layer, name in names.items() if layer in get_all - get_some]
