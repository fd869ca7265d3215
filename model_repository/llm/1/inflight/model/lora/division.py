"""Which part of an adapter each rank of a divided model has."""

from collections.abc import Iterable, Sequence

from torch import nn

from inflight.model.lora.adapter_weights import AdapterWeights, LayerDelta
from inflight.model.parallel.layers import DividedWeight, names_before
from inflight.model.parallel.shards import Shards

# Their 52 bits are exact in a double, as which ranks compare numbers.
_COMPARED_HEX_DIGITS = 13


class AdapterDivision:
    """Divides the change of a layer as the layer's own weight is divided.

    A rank has some rows of `up @ down` then, or some columns, as it has of the weight. So it adds its part to the
    output of its own part of the layer, and the collectives of the model do the rest. This needs some rows of `up`, or
    some columns of `down`.
    """

    def __init__(self, module: nn.Module, divided: Iterable[DividedWeight], shards: Shards) -> None:
        """`divided` is what `divide` has returned. No layer of the model may have been replaced since."""
        self.shards = shards
        names = names_before(module)
        self._weights = {names[each.owner]: each for each in divided if each.name == "weight"}

    def widths(self, name: str, inputs: int, outputs: int) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of a whole layer, of which this rank has so many."""
        weight = self._weights.get(name)
        if weight is None:
            return inputs, outputs
        return (inputs, weight.size) if weight.dim == 0 else (weight.size, outputs)

    def part(self, name: str, delta: LayerDelta) -> LayerDelta:
        """Return this rank's part of the change of a layer."""
        weight = self._weights.get(name)
        if weight is None:
            return delta
        if weight.dim == 0:
            return LayerDelta(delta.down, weight.part_of(delta.up, self.shards))
        return LayerDelta(weight.part_of(delta.down, self.shards), delta.up)

    def check_same(self, adapters: Sequence[AdapterWeights]) -> None:
        """Check that all ranks have read the same weights. All ranks must call this.

        Raises:
            ValueError: they have not. All ranks raise it.
        """
        for adapter in adapters:
            number = float(int(adapter.digest[:_COMPARED_HEX_DIGITS], 16))
            if self.shards.least(number) != self.shards.greatest(number):
                raise ValueError(f"{adapter.where}; its files are not the same on all machines")
