"""The tensors at fixed addresses from which captured decodes read, and into which they write."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from inflight.model.ragged_batch import RaggedBatch


class DecodeInputs(NamedTuple):
    """What a decode of R rows of one token each reads."""

    token_ids: torch.Tensor
    """[R] int64."""
    positions: torch.Tensor
    """[R] int64, for the model."""
    places: torch.Tensor
    """[R] int64, the places in the sequences."""
    slots: torch.Tensor
    """[R] int64."""
    block_tables: torch.Tensor
    """[R, blocks] int64."""


@dataclass(frozen=True)
class DecodeBuffers:
    """Buffers for up to R rows of one token each. A captured decode of fewer rows uses the first ones."""

    inputs: DecodeInputs
    logits: torch.Tensor
    """[R, vocabulary], an output."""
    hidden: torch.Tensor
    """[R, width], an output. [0, 0] if the model does not show them."""

    @classmethod
    def allocate(cls, rows: int, max_blocks: int, logits: torch.Tensor, hidden: torch.Tensor) -> "DecodeBuffers":
        """Allocate inputs for decodes of token 0 at the first slot, on the device of `logits`."""

        def zeros(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int64, device=logits.device)

        inputs = DecodeInputs(zeros(rows), zeros(rows), zeros(rows), zeros(rows), zeros(rows, max_blocks))
        return cls(inputs, logits, hidden)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.inputs, self.logits, self.hidden))

    def first(self, rows: int) -> DecodeInputs:
        """Views of the first rows of the inputs."""
        return DecodeInputs(*(tensor[:rows] for tensor in self.inputs))

    def fill(self, batch: RaggedBatch, rows: int) -> None:
        """Write the tokens of a batch into the first rows, each with the blocks of its request.

        If there are fewer than `rows` tokens, the first one is repeated.
        """
        tables = batch.block_tables
        if batch.num_tokens > batch.num_rows:
            lengths = np.diff(batch.query_starts)
            tables = tables[torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(tables.device)]
        count, width = tables.shape
        inputs = self.first(rows)
        for mine, theirs in (
            (inputs.token_ids, batch.token_ids),
            (inputs.positions, batch.positions),
            (inputs.places, batch.places),
            (inputs.slots, batch.slots),
            (inputs.block_tables[:, :width], tables),
        ):
            mine[:count] = theirs
            mine[count:] = theirs[0]
