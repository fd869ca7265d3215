"""What a model's encoder makes of images, and how chunks of prompts get their part of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inflight.errors import UnsupportedModel

_MAIN = "pooler_output"
_DEEPER = "deepstack_features"


@dataclass(frozen=True, eq=False)
class Features:
    """The encoder's output for some images, by the tokens of the prompt that they replace."""

    kind: type
    """transformers' class of the output."""
    one_by_one: bool
    """Whether the model expects a list with a tensor for each image, and not one tensor."""
    main: torch.Tensor
    """[tokens, width], takes the place of the tokens' embeddings."""
    deeper: tuple[torch.Tensor, ...] = ()
    """[tokens, width] each, what the first layers add to the states of these tokens (DeepStack, as in Qwen3-VL)."""

    @classmethod
    def of(cls, output: Any) -> "Features":
        """Read the output of a model's `get_image_features`.

        Raises:
            UnsupportedModel: It is something else than is known here.
        """
        known = {_MAIN, _DEEPER, "last_hidden_state", "hidden_states", "attentions"}
        if others := {name for name, value in output.items() if value is not None} - known:
            raise UnsupportedModel(f"its encoder of images returns {', '.join(sorted(others))}")
        one_by_one = not isinstance(output[_MAIN], torch.Tensor)
        return cls(type(output), one_by_one, _flat(output[_MAIN]), tuple(map(_flat, output.get(_DEEPER) or ())))

    @classmethod
    def joined(cls, parts: Sequence["Features"]) -> "Features":
        """Return the features of one image after the other."""
        deeper = zip(*(part.deeper for part in parts), strict=True)
        return replace(parts[0], main=torch.cat([part.main for part in parts]), deeper=tuple(map(torch.cat, deeper)))

    def __getitem__(self, tokens: slice) -> "Features":
        return self.mapped(lambda layer: layer[tokens])

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Features":
        """Return the same features with other tensors [tokens, width]."""
        return replace(self, main=change(self.main), deeper=tuple(map(change, self.deeper)))

    def room(self, tokens: int) -> "Features":
        """Return features of the same form for so many tokens, whose numbers are still to be written."""
        return self.mapped(lambda layer: layer.new_empty(tokens, layer.shape[1]))

    def with_other_end(self) -> "Features":
        """Return the same features with another last one."""
        return replace(self, main=torch.cat([self.main[:-1], -self.main[-1:]]))

    def spread(self, taken: torch.Tensor, embedding: torch.Tensor) -> "Features":
        """Return features for all tokens that look like those of an image: `taken` [tokens] says which really are.

        A model may also write such a token. It keeps its `embedding` [width], and the layers add nothing.
        """
        main = embedding.to(self.main.dtype).repeat(len(taken), 1)
        main[taken] = self.main
        deeper = tuple(layer.new_zeros(len(taken), layer.shape[1]) for layer in self.deeper)
        for mine, theirs in zip(deeper, self.deeper, strict=True):
            mine[taken] = theirs
        return replace(self, main=main, deeper=deeper)

    def output(self) -> Any:
        """Return transformers' object, as if all tokens were of one image."""
        deeper = {_DEEPER: [(layer,) for layer in self.deeper]} if self.deeper else {}
        return self.kind(**{_MAIN: (self.main,) if self.one_by_one else self.main}, **deeper)


def _flat(value: Any) -> torch.Tensor:
    """Return the rows [tokens, width] of a tensor, or of tensors for one image each."""
    parts = [value] if isinstance(value, torch.Tensor) else list(value)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
