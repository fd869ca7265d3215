"""Gives embeddings to a model's own code."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from inflight.model.embeds.batch_embeds import BatchEmbeds


@contextmanager
def use_embeds(module: Any, embeds: BatchEmbeds | None) -> Iterator[None]:
    """Let the model's table of embeddings return those of a batch in their places.

    What the model's code does with the table's output, it also does with `inputs_embeds`. This works for code that
    reads the token ids for other purposes, too.
    """
    if embeds is None:
        yield
        return

    def put(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        return output.flatten(0, 1).index_copy(0, embeds.rows, embeds.values).view_as(output)

    handle = module.get_input_embeddings().register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()
