"""The C++ kernel for LoRA adapters agrees with torch's operators, and a row's result does not depend on others."""

import pytest
import torch

from inflight.model.batch_arrays import NO_ADAPTER
from inflight.model.lora.active_adapters import ActiveAdapters, use_adapters
from inflight.model.lora.adapter_weights import LayerDelta
from inflight.model.lora.lora_layers import AdaptedLayer

pytestmark = pytest.mark.usefixtures("cpu_kernels")

# Sums of products with `down` are rounded to bfloat16 on processors that multiply bfloat16, and so are all outputs.
ERROR = 6e-3
ADAPTERS = 3


class Adapted:
    """A layer that returns given outputs, with adapters of random weights."""

    def __init__(self, rank: int, inputs: int, outputs: int) -> None:
        generator = torch.Generator().manual_seed(rank + inputs + outputs)
        self.down = (torch.randn(ADAPTERS, rank, inputs, generator=generator) / inputs**0.5).bfloat16()
        self.up = torch.randn(ADAPTERS, rank, outputs, generator=generator).bfloat16()

    def __call__(self, x: torch.Tensor, y: torch.Tensor, slots: list[int], *, has_kernel: bool = True) -> torch.Tensor:
        layer = _Returning(y)
        inputs, outputs, rank = self.down.shape[2], self.up.shape[2], self.down.shape[1]
        adapted = AdaptedLayer(layer, inputs, outputs, slots=ADAPTERS, rank=rank, like=x, kernel=has_kernel)
        for slot, (down, up) in enumerate(zip(self.down, self.up, strict=True)):
            adapted.put(slot, LayerDelta(down.to(x.dtype), up.T.to(x.dtype)))
        with use_adapters(ActiveAdapters(torch.tensor(slots))):
            found: torch.Tensor = layer(x)
        return found


class _Returning(torch.nn.Module):
    def __init__(self, y: torch.Tensor) -> None:
        super().__init__()
        self.y = y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.y


def operands(rows: int, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, y = (torch.randn(1, rows, width, generator=generator).bfloat16() for width in (inputs, outputs))
    return x, y


SHAPES = [(16, 64, 96), (4, 64, 48), (1, 2, 1), (24, 130, 33), (40, 514, 1000), (64, 576, 1536), (4, 129, 64)]


@pytest.mark.parametrize(("rank", "inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_each_row_gets_the_change_by_its_adapter(rank: int, inputs: int, outputs: int, rows: int) -> None:
    x, y = operands(rows, inputs, outputs)
    slots = [(row % 7) // 2 - 1 if row < 20 else 1 for row in range(rows)]
    adapted = Adapted(rank, inputs, outputs)
    found = adapted(x, y, slots)
    wanted = adapted(x.double(), y.double(), slots, has_kernel=False)
    changed = torch.tensor(slots) != NO_ADAPTER
    assert torch.equal(found[:, ~changed], y[:, ~changed])
    if changed.any():
        difference = (found[:, changed].double() - wanted[:, changed]).norm() / wanted[:, changed].norm()
        assert difference < ERROR
        assert not torch.equal(found[:, changed], y[:, changed])


@pytest.mark.parametrize(("rank", "inputs", "outputs"), SHAPES)
def test_a_row_does_not_depend_on_its_neighbours(rank: int, inputs: int, outputs: int) -> None:
    x, y = operands(70, inputs, outputs)
    adapted = Adapted(rank, inputs, outputs)
    together = adapted(x, y, [1] * 70)
    for row in (0, 3, 50, 69):
        alone = adapted(x[:, row : row + 1], y[:, row : row + 1], [1])
        mixed = adapted(x, y, [1 if other == row else (other % 4) - 1 for other in range(70)])
        assert torch.equal(alone[0, 0], together[0, row])
        assert torch.equal(mixed[0, row], together[0, row])


def test_rows_may_lie_apart() -> None:
    x, y = operands(5, 64, 96)
    apart = [torch.cat([operand, operand], dim=-1)[..., : operand.shape[-1]] for operand in (x, y)]
    adapted = Adapted(16, 64, 96)
    assert torch.equal(adapted(apart[0], apart[1], [0, 0, 2, -1, 1]), adapted(x, y, [0, 0, 2, -1, 1]))


def test_a_slot_that_does_not_exist_is_refused() -> None:
    x, y = operands(2, 64, 96)
    with pytest.raises(RuntimeError, match="slot 3 of 3"):
        Adapted(16, 64, 96)(x, y, [0, 3])


def test_a_layer_that_sees_only_some_tokens_is_refused() -> None:
    x, y = operands(2, 64, 96)
    with pytest.raises(RuntimeError, match="1 slots for 2 and 2 rows"):
        Adapted(16, 64, 96)(x, y, [0])
    with pytest.raises(RuntimeError, match="a layer gets 2 of the 1 tokens of a batch"):
        Adapted(16, 64, 96)(x, y, [0], has_kernel=False)
