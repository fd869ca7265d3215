"""A prompt as the model reads it."""

from typing import NamedTuple

from inflight.prompt_embeds import PromptEmbeds
from inflight.prompt_images import PromptImages


class PromptContent(NamedTuple):
    """Tokens, and what stands in the places of some of them: images or embeddings, not both."""

    token_ids: list[int]
    images: PromptImages | None = None
    embeds: PromptEmbeds | None = None

    @property
    def words(self) -> list[int]:
        """The tokens that no embedding takes the place of."""
        if self.embeds is None:
            return self.token_ids
        taken = set(self.embeds.places.tolist())
        return [token for place, token in enumerate(self.token_ids) if place not in taken]
