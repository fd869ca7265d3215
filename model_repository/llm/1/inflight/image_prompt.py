"""A prompt with images, as a caller gives it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inflight.text.prompt_encoder import Prompt


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt for a model that also reads images."""

    prompt: Prompt
    """With one placeholder for each image, such as `<image>`. The model's processor says which one."""
    images: Sequence[bytes]
    """At least one. Files in PNG, JPEG, WebP, GIF or BMP, in the order of the placeholders."""


AnyPrompt: TypeAlias = Prompt | ImagePrompt
