"""The embeddings in a step's batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.model.batch_arrays import BatchArrays
from inflight.scheduler.plan import ScheduledRequest


class BatchEmbeds(NamedTuple):
    """Embeddings that take the place of tokens of a batch."""

    rows: torch.Tensor
    """[embeddings] int64, the indices of these tokens."""
    values: torch.Tensor
    """[embeddings, width]."""

    def among(self, tokens: NDArray[np.int64]) -> "BatchEmbeds":
        """Return the embeddings of some tokens of the batch, numbered by their place among them."""
        found = np.intersect1d(self.rows.cpu().numpy(), tokens, return_indices=True)
        mine, places = (torch.from_numpy(indices).to(self.rows.device) for indices in found[1:])
        return BatchEmbeds(places, self.values[mine])

    @classmethod
    def of(
        cls, scheduled: Sequence[ScheduledRequest], arrays: BatchArrays, device: torch.device
    ) -> "BatchEmbeds | None":
        """Return those of a plan's requests, on a device; None if there are none."""
        if all(each.request.embeds is None for each in scheduled):
            return None
        rows, values = [], []
        for row, index in enumerate(arrays.order.tolist()):
            each, embeds = scheduled[index], scheduled[index].request.embeds
            if embeds is None:
                continue
            begin, end = arrays.query_starts[row : row + 2].tolist()
            those = embeds.between(each.first, each.first + end - begin)
            if those.start < those.stop:
                rows.append(embeds.places[those] - each.first + begin)
                values.append(embeds.values[those])
        if not rows:
            return None
        return cls(torch.from_numpy(np.concatenate(rows)).to(device), torch.cat(values).to(device))
