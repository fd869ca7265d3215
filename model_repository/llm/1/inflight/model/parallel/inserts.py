"""The images and embeddings of a step, which rank 0 gives to the other ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from inflight.model.batch_arrays import BatchArrays
from inflight.model.embeds.batch_embeds import BatchEmbeds
from inflight.model.images.batch_images import BatchImages
from inflight.model.loading.loader import LoadedModel
from inflight.model.parallel.shards import Shards
from inflight.model.parallel.step_message import Places
from inflight.scheduler.plan import ScheduledRequest


class Inserts(NamedTuple):
    """What stands in the places of a batch's tokens."""

    images: BatchImages | None
    embeds: BatchEmbeds | None

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRequest], arrays: BatchArrays, device: torch.device) -> "Inserts":
        """Return those of a plan's requests."""
        return cls(BatchImages.of(scheduled, arrays), BatchEmbeds.of(scheduled, arrays, device))

    @classmethod
    def room(cls, places: Places, model: LoadedModel) -> "Inserts":
        """Return what goes to these places, with features and embeddings that are still to be written."""
        images = embeds = None
        if len(places.positions):
            images = BatchImages(places.positions)
        if len(places.rows):
            assert model.images is not None
            assert model.images.example is not None
            images = BatchImages(
                places.positions,
                places.grid.reshape(-1, len(places.positions)) if len(places.grid) else None,
                places.rows,
                model.images.example.room(len(places.rows)),
                places.sees_to if len(places.sees_to) else None,
            )
        if len(places.embeds):
            assert model.embeds is not None
            shape = len(places.embeds), model.embeds.width
            values = torch.empty(shape, dtype=model.embeds.dtype, device=model.device)
            embeds = BatchEmbeds(torch.from_numpy(places.embeds).to(model.device), values)
        return cls(images, embeds)

    @property
    def places(self) -> Places:
        """What the other ranks need to make room."""
        found = {}
        if self.images is not None:
            arrays = {name: getattr(self.images, name) for name in ("positions", "grid", "rows", "sees_to")}
            found = {name: array.reshape(-1) for name, array in arrays.items() if array is not None}
        if self.embeds is not None:
            found["embeds"] = self.embeds.rows.cpu().numpy()
        return Places(**found)

    def broadcast(self, shards: Shards) -> "Inserts":
        """Return the same with the features and embeddings of rank 0. All ranks must call this.

        Images are read by rank 0 alone, so that all ranks compute with the same numbers.
        """
        images, embeds = self
        if images is not None and images.features is not None:
            images = replace(images, features=images.features.mapped(shards.broadcast))
        if embeds is not None:
            embeds = embeds._replace(values=shards.broadcast(embeds.values))
        return Inserts(images, embeds)
