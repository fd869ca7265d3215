"""Finds out in which layers of a model the tokens of an image attend to later ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from inflight.errors import UnsupportedModel
from inflight.model.attention.interface import WITH_MASKS, AttentionCall, attending_by, use_attention
from inflight.model.loading.attention_probe import placeholder
from inflight.prompt_images import PromptImages


def layers_that_see_ahead(
    module: Any, inputs: Mapping[str, Any], images: PromptImages, windows: Sequence[int | None]
) -> tuple[bool, ...]:
    """Return for each attention call whether its mask lets the tokens of an image see all of it.

    Within an image, Gemma 3 looks ahead in all layers, and Gemma 4 in those with a sliding window. `inputs` are the
    model's own arguments for a prompt with `images`, which must have `sees_ahead`.

    Raises:
        UnsupportedModel: A mask is another one.
    """
    probe = _Probe()
    with attending_by(module, WITH_MASKS), use_attention(probe), torch.inference_mode():
        module(**inputs, use_cache=False)
    length = inputs["input_ids"].shape[1]
    return tuple(_sees_ahead(mask, length, images, window) for mask, window in zip(probe.masks, windows, strict=True))


class _Probe:
    """An attention implementation that collects the masks and returns a placeholder."""

    def __init__(self) -> None:
        self.masks: list[torch.Tensor | None] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        self.masks.append(call.unexpected.get("attention_mask"))
        return placeholder(call)


def _sees_ahead(mask: torch.Tensor | None, length: int, images: PromptImages, window: int | None) -> bool:
    if mask is None:
        raise UnsupportedModel("its masks cannot be read")
    seen = (mask[0, 0] == 0).cpu().numpy()
    places = np.arange(length)
    near = True if window is None else places[:, None] - places < window
    causal = places <= places[:, None]
    sees_to = np.zeros(length, dtype=np.int64)
    for begin, end in images.uncut:
        sees_to[begin:end] = end
    for mine, answer in ((causal, False), (causal | (places < sees_to[:, None]), True)):
        if np.array_equal(seen, mine & near):
            return answer
    raise UnsupportedModel("the tokens of its images attend to others than those of the same image")
