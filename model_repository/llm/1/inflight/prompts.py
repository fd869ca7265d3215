"""Prompts as a caller gives them: text or token ids, some with images or embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from inflight.text.prompt_encoder import Prompt

EMBEDS_PLACE = "<|prompt_embeds|>"
"""Where the embeddings go in a text."""


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt for a model that also reads images."""

    prompt: Prompt
    """With one placeholder for each image, such as `<image>`. The model's processor says which one."""
    images: Sequence[bytes]
    """At least one. Files in PNG, JPEG, WebP, GIF or BMP, in the order of the placeholders."""


@dataclass(frozen=True, eq=False)
class EmbedsPrompt:
    """A prompt of which some tokens, or all, are embeddings that the caller has computed."""

    embeds: NDArray[Any]
    """[rows, width] float: what the model's table of embeddings would give for a token in each place."""
    prompt: Prompt | None = None
    """A text with `EMBEDS_PLACE` once, where all rows go, in order. Or token ids, in which the vocabulary's size plus a
    row's number stands for that row, as in TensorRT-LLM. None: the prompt is the rows."""


AnyPrompt: TypeAlias = Prompt | ImagePrompt | EmbedsPrompt
