"""A dry run that finds out how a model calls its attention function."""

from dataclasses import dataclass

import torch

from inflight.errors import UnsupportedModel
from inflight.model.attention.interface import AttentionCall, use_attention
from inflight.model.cache.kv_tensors import LayerShape
from inflight.model.forward import forward


@dataclass(frozen=True)
class AttentionLayer:
    """The properties of one attention call of a forward pass that are the same for every batch."""

    shape: LayerShape
    window: int | None


def probe_layers(module: torch.nn.Module) -> tuple[AttentionLayer, ...]:
    """Run three tokens through a model and return its attention calls in order.

    Raises:
        UnsupportedModel: The model fails on a flat row of tokens, or asks for a kind of attention that is not served.
    """
    probe = _Probe()
    device = next(module.parameters()).device
    try:
        with use_attention(probe), torch.inference_mode():
            positions = torch.arange(3, device=device)
            forward(module, torch.zeros_like(positions), positions, positions)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"its forward pass fails on a flat row of tokens: {type(error).__name__}: {error}"
        ) from error
    return tuple(probe.layers)


class _Probe:
    """An attention implementation that collects the calls and returns a placeholder."""

    def __init__(self) -> None:
        self.layers: list[AttentionLayer] = []
        self._modules: set[torch.nn.Module] = set()

    def attend(self, call: AttentionCall) -> torch.Tensor:
        kind = type(call.module).__name__
        if call.unexpected:
            raise UnsupportedModel(f"{kind} passes {', '.join(call.unexpected)}, which is not served")
        if call.module in self._modules:
            raise UnsupportedModel(f"{kind} attends more than once in a forward pass")
        if getattr(call.module, "is_causal", True) is False:
            raise UnsupportedModel(f"{kind} is not causal")
        tokens = {call.query.shape[2], call.key.shape[2], call.value.shape[2]}
        if len(tokens) > 1 or call.query.shape[0] != 1:
            raise UnsupportedModel(f"{kind} attends to tokens outside the sequence")
        shape = LayerShape(call.key.shape[1], call.key.shape[3], call.value.shape[3])
        self._modules.add(call.module)
        self.layers.append(AttentionLayer(shape, call.window))
        return placeholder(call)


def placeholder(call: AttentionCall) -> torch.Tensor:
    """Return a tensor of the shape of an attention output, for a dry run whose output nobody reads."""
    group_size = call.query.shape[1] // call.value.shape[1]
    return call.value.repeat_interleave(group_size, 1).transpose(1, 2).contiguous()
