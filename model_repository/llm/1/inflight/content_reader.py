"""Reads what prompts hold: tokens, images and embeddings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inflight.config import EngineConfig
from inflight.errors import InvalidRequest
from inflight.generation_defaults import DEFAULT_MAX_TOKENS
from inflight.model.loading.loader import LoadedModel
from inflight.prompt_content import PromptContent
from inflight.prompt_images import PromptImages
from inflight.prompts import EMBEDS_PLACE, AnyPrompt, EmbedsPrompt, ImagePrompt
from inflight.sampling_params import ROOM_FOR_ALL
from inflight.text.prompt_encoder import Prompt, PromptEncoder

if TYPE_CHECKING:
    from inflight.model.images.image_reader import ImageReader


class ContentReader:
    """Knows what the model reads. All methods raise InvalidRequest for anything else.

    Any thread may use it.
    """

    def __init__(self, config: EngineConfig, model: LoadedModel, encoder: PromptEncoder, capacity: int) -> None:
        """`capacity` is how many tokens the KV cache holds."""
        self._config = config
        self._model = model
        self._encoder = encoder
        self._capacity = capacity

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt, at least one."""
        prompt_ids = self._encoder.encode(prompt)
        if not prompt_ids:
            raise InvalidRequest("prompt is empty; it must have at least 1 token")
        # Texts are checked too: a tokenizer may have tokens for which the model has no embedding.
        for token in (min(prompt_ids), max(prompt_ids)):
            self.check_token("prompt", token)
        return prompt_ids

    def read(self, prompt: AnyPrompt) -> PromptContent:
        """Return what a prompt holds. Reading images takes time."""
        if isinstance(prompt, EmbedsPrompt):
            return self._read_embeds(prompt)
        if not isinstance(prompt, ImagePrompt):
            return PromptContent(self.encode(prompt))
        if not prompt.images:
            raise InvalidRequest("images is empty; a prompt with images must have at least 1")
        prompt_ids, images = self.image_reader().read(self.encode(prompt.prompt), prompt.images)
        self._check_uncut(images)
        return PromptContent(prompt_ids, images)

    def image_reader(self) -> "ImageReader":
        """Return what reads images. Raises InvalidRequest if nothing does."""
        if self._model.images is None:
            raise InvalidRequest("images are given, but the model does not read images")
        return self._model.images

    def _read_embeds(self, given: EmbedsPrompt) -> PromptContent:
        reader, embeds, prompt = self._model.embeds, given.embeds, given.prompt
        if reader is None:
            raise InvalidRequest("prompt_embeds is given, but enable_prompt_embeds is not set")
        rows = range(reader.vocab_size, reader.vocab_size + len(embeds))
        if prompt is None:
            prompt = rows
        elif isinstance(prompt, str):
            if (count := prompt.count(EMBEDS_PLACE)) != 1:
                raise InvalidRequest(
                    f"text_input has {EMBEDS_PLACE!r} {count} times; with prompt_embeds it must be once"
                )
            before, _, after = prompt.partition(EMBEDS_PLACE)
            prompt = [*self._encoder.encode(before), *rows, *self._encoder.encode(after, add_special_tokens=False)]
        return reader.read(self._encoder.encode(prompt), embeds)

    def truncated(self, prompt: Prompt, most: int, max_tokens: int | None, *, beginning: bool = False) -> list[int]:
        """Return the last `most` tokens of a prompt, or its first ones; -1: as many as leave room for `max_tokens`."""
        context = self._model.max_model_len
        if most > context:
            raise InvalidRequest(f"truncate_prompt_tokens is {most}; it must be at most {context}, the context")
        if most == -1:
            usual = min(DEFAULT_MAX_TOKENS, self._model.defaults.max_tokens)
            wanted = usual if max_tokens is None else 1 if max_tokens == ROOM_FOR_ALL else max_tokens
            # The last token of an output needs no place in the KV cache.
            most = max(1, min(context, self._capacity + (wanted > 0)) - wanted)
        encode = self._encoder.encode_beginning if beginning else self._encoder.encode_end
        return encode(prompt, most)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a client's tokens, special ones included. The model must have a tokenizer."""
        self._encoder.tokenizer("input_ids")
        for token in token_ids:
            self.check_token("input_ids", token)
        return self._model.text_of(token_ids)

    def check_token(self, name: str, token: int) -> None:
        """Check that a token of the field `name` is one of the vocabulary."""
        check_below(self._model.vocab_size, name, token)

    def _check_uncut(self, images: PromptImages) -> None:
        most = self._config.max_num_batched_tokens
        for begin, end in images.uncut:
            if end - begin > most:
                number = sum(first <= begin for first, _, _ in images.places) - 1
                raise InvalidRequest(
                    f"images[{number}] takes {end - begin} tokens, which one step must compute; it must take at most "
                    f"{most}, which is max_num_batched_tokens"
                )


def check_below(end: int, name: str, token: int) -> None:
    """Check that a token of the field `name` is below `end`."""
    if not 0 <= token < end:
        raise InvalidRequest(f"{name} holds token {token}; it must be at least 0 and below {end}")
