"""The linear layers of GPT-2 keep their weights transposed. The kernels take those of ordinary ones."""

from torch import nn
from transformers.pytorch_utils import Conv1D

from inflight.model.replacement import Replaced, replace_layers


def replace_conv1ds(module: nn.Module) -> Replaced:
    """Replace each `Conv1D` by an `nn.Linear`, which computes the same with a transposed copy of the weights."""
    return replace_layers(module, _linear)


def _linear(layer: nn.Module) -> nn.Linear | None:
    if type(layer) is not Conv1D:
        return None
    linear = nn.Linear(layer.nx, layer.nf, device="meta")
    linear.weight = nn.Parameter(layer.weight.detach().T.contiguous(), requires_grad=False)
    linear.bias = layer.bias
    return linear
