"""The images in a step's batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from inflight.model.batch_arrays import BatchArrays, Ints
from inflight.model.images.features import Features
from inflight.scheduler.plan import ScheduledRequest


@dataclass(frozen=True, eq=False)
class BatchImages:
    """T tokens, some of which are those of images."""

    positions: Ints
    """[T], the position of each token for the model, unless there is a `grid`. The place in the sequence is another one
    if an image took more or fewer positions than tokens."""
    grid: Ints | None = None
    """[dimensions, T], if the model divides positions, and the batch has tokens of images."""
    rows: Ints | None = None
    """[features], the indices of the tokens that features replace; None if there are none."""
    features: Features | None = None
    """In the order of `rows`."""
    sees_to: Ints | None = None
    """[T]: a token of an image attends to all tokens before this place in the sequence, later ones of the image too. 0
    for other tokens. None if tokens of images attend to earlier ones alone."""

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRequest], arrays: BatchArrays) -> "BatchImages | None":
        """Return the images of a plan's requests; None if no request has any."""
        if all(each.request.images is None for each in scheduled):
            return None
        positions = arrays.positions.copy()
        placed: list[tuple[slice, Ints]] = []
        rows, features = [], []
        sees_to = np.zeros_like(positions)
        for row, index in enumerate(arrays.order.tolist()):
            each, images = scheduled[index], scheduled[index].request.images
            if images is None:
                continue
            begin, end = arrays.query_starts[row : row + 2].tolist()
            low, high = np.searchsorted(images.rows, (each.first, each.first + end - begin)).tolist()
            if images.positions is not None:
                placed.append((slice(begin, end), images.positions_of(each.first, each.first + end - begin)))
                positions[begin:end] = placed[-1][1][-1]
            for first, after in images.uncut:
                last = min(after, each.end)
                sees_to[begin + max(0, first - each.first) : begin + max(0, last - each.first)] = last
            if low < high:
                rows.append(images.rows[low:high] - each.first + begin)
                features.append(images.features[low:high])
        if not features:
            return cls(positions)
        grid = None
        if placed:
            grid = np.tile(positions, (len(placed[0][1]), 1))
            for where, those in placed:
                grid[:, where] = those
        return cls(positions, grid, np.concatenate(rows), Features.joined(features), sees_to if sees_to.any() else None)

    def inputs(self, module: Any, token_ids: torch.Tensor) -> tuple[torch.Tensor, Features]:
        """Return the positions ([T] or [dimensions, T]) and the features that a model takes for `token_ids` [T]."""
        assert self.rows is not None
        assert self.features is not None
        image_token = module.config.image_token_id
        looks_so = token_ids == image_token
        is_feature = torch.zeros_like(looks_so)
        is_feature[torch.from_numpy(self.rows).to(token_ids.device)] = True
        embedding = module.get_input_embeddings()(token_ids.new_tensor([image_token]))[0]
        features = self.features.spread(is_feature[looks_so], embedding)
        positions = self.positions if self.grid is None else self.grid
        return torch.from_numpy(positions).to(token_ids.device), features
