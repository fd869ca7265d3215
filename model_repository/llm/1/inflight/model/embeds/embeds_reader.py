"""Reads embeddings that callers give in place of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.errors import InvalidRequest
from inflight.prompt_content import PromptContent
from inflight.prompt_embeds import PromptEmbeds

_DIGEST_BYTES = 16
_TYPES = ("float16", "float32", "float64")


@dataclass(frozen=True)
class EmbedsReader:
    """Knows what the model's table of embeddings returns. Any thread may use it."""

    vocab_size: int
    width: int
    dtype: torch.dtype

    def read(self, prompt_ids: Sequence[int], embeds: NDArray[Any]) -> PromptContent:
        """Return a prompt with embeddings. If no id stands for a row, it is an ordinary prompt.

        Args:
            prompt_ids: token ids. `vocab_size` and a row's number together stand for that row.
            embeds: [rows, width] float.

        Raises:
            InvalidRequest: The embeddings have another width, or a value is not finite, or an id stands for no row, or
                there is no id.
        """
        table = self._checked(embeds)
        if not prompt_ids:
            raise InvalidRequest("prompt is empty; it must have at least 1 token")
        for number in (min(prompt_ids), max(prompt_ids)):
            if not 0 <= number < self.vocab_size + len(table):
                raise InvalidRequest(
                    f"input_ids holds {number}; it must be from 0 to {self.vocab_size - 1} for a token, or up to "
                    f"{self.vocab_size - 1 + len(table)} for one of the {len(table)} rows of prompt_embeds"
                )
        ids = np.array(prompt_ids, dtype=np.int64)
        places = np.flatnonzero(ids >= self.vocab_size)
        if not len(places):
            return PromptContent(ids.tolist())
        values = table[torch.from_numpy(ids[places] - self.vocab_size)]
        raw = values.view(torch.uint8).numpy()
        digests = tuple(blake2b(row, digest_size=_DIGEST_BYTES).digest() for row in raw)
        # Any token will do in these places.
        ids[places] = 0
        return PromptContent(ids.tolist(), embeds=PromptEmbeds(places, values, digests))

    def _checked(self, embeds: NDArray[Any]) -> torch.Tensor:
        """Return embeddings in the model's type."""
        if embeds.ndim != 2 or embeds.dtype not in _TYPES:
            raise InvalidRequest(
                f"prompt_embeds has the shape {list(embeds.shape)} and the type {embeds.dtype}; it must have two "
                f"dimensions, rows and width, and one of the types {', '.join(_TYPES)}"
            )
        if not len(embeds) or embeds.shape[1] != self.width:
            raise InvalidRequest(
                f"prompt_embeds is {embeds.shape[0]} x {embeds.shape[1]}; it must have at least 1 row, and the model's "
                f"width of {self.width}"
            )
        # A copy: numpy's own may be of a tensor of Triton's that is gone before the prompt is computed.
        table = torch.tensor(embeds).to(self.dtype)
        if not table.isfinite().all():
            row = int((~table.isfinite().all(dim=1)).nonzero()[0])
            raise InvalidRequest(f"prompt_embeds has a value in row {row} that is no finite number in {self.dtype}")
        return table
