"""A step's batch on the device."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.kv_cache.recurrent_states import StatePlan
from inflight.model.batch_arrays import BatchArrays
from inflight.model.embeds.batch_embeds import BatchEmbeds
from inflight.model.images.batch_images import BatchImages
from inflight.model.lora.active_adapters import ActiveAdapters
from inflight.model.recurrent.segments import BatchStates


@dataclass(frozen=True)
class RaggedBatch:
    """`BatchArrays` as tensors on the device, with the row borders as plain numbers. R rows, T tokens, S sampled rows.

    The fields are explained there.
    """

    token_ids: torch.Tensor
    """[T] int64."""
    positions: torch.Tensor
    """[T] int64, for the model. They differ from `places` after an image with its own positions, and in long sequences
    of some models."""
    places: torch.Tensor
    """[T] int64, in the sequences."""
    slots: torch.Tensor
    """[T] int64."""
    partial_blocks: torch.Tensor
    """[blocks] int64."""
    block_tables: torch.Tensor
    """[R, blocks] int64."""
    query_starts: list[int]
    """R + 1 numbers."""
    context_lens: list[int]
    """R numbers."""
    num_single: int
    """The number of rows with a single token. They come first."""
    logit_rows: torch.Tensor
    """[S] int64."""
    adapters: ActiveAdapters | None
    """None if no token has one."""
    states: BatchStates | None = None
    """None if the plan has none."""
    images: BatchImages | None = None
    """None if no request has any."""
    embeds: BatchEmbeds | None = None
    """None if no token has one."""

    @property
    def num_rows(self) -> int:
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        return self.query_starts[-1]

    @property
    def longest_row(self) -> int:
        """The number of tokens of the longest row."""
        return int(np.diff(self.query_starts).max())

    @classmethod
    def on(
        cls,
        device: torch.device,
        arrays: BatchArrays,
        states: StatePlan | None = None,
        images: BatchImages | None = None,
        embeds: BatchEmbeds | None = None,
    ) -> "RaggedBatch":
        """Copy the arrays of a batch to a device. `states` are those of the plan, and so are `images` and `embeds`,
        which are there already."""

        def put(array: NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        positions = places = put(arrays.positions)
        if images is not None:
            positions = put(images.positions)
        elif len(arrays.rotations):
            positions = put(arrays.rotations)
        return cls(
            token_ids=put(arrays.token_ids),
            positions=positions,
            places=places,
            slots=put(arrays.slots),
            partial_blocks=put(arrays.partial_blocks),
            block_tables=put(arrays.block_tables),
            query_starts=arrays.query_starts.tolist(),
            context_lens=arrays.context_lens.tolist(),
            num_single=int((np.diff(arrays.query_starts) == 1).sum()),
            logit_rows=put(arrays.logit_rows),
            adapters=ActiveAdapters(put(arrays.adapters)) if len(arrays.adapters) else None,
            states=None if states is None else BatchStates.of(states, arrays),
            images=images,
            embeds=embeds,
        )
