"""Puts the tokens of images into a prompt, as if its whole text had been tokenized at once."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any


class TextSeams:
    """Joins tokens where text meets text.

    What stands for an image may begin and end with text. Gemma 3 has two line breaks there, which make one token with a
    line break before them.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a fast tokenizer of transformers. Only one thread at a time may use it."""
        self._backend = tokenizer.backend_tokenizer
        self._apart = frozenset(tokenizer.added_tokens_decoder)
        """Tokens that the tokenizer finds in a text first. They are never a part of others."""

    def joined(self, prompt_ids: Sequence[int], placeholder: int, images: Sequence[Sequence[int]]) -> list[int]:
        """Return a prompt with the tokens of the next one of `images` in place of each `placeholder`."""
        token_ids: list[int] = []
        seams: list[int] = []
        those, was_image = iter(images), False
        for token in prompt_ids:
            is_image = token == placeholder
            new = next(those) if is_image else (token,)
            if (is_image or was_image) and token_ids and not {token_ids[-1], new[0]} & self._apart:
                seams.append(len(token_ids))
            token_ids += new
            was_image = is_image
        while seams:
            begin = end = seams[-1]
            while begin and token_ids[begin - 1] not in self._apart:
                begin -= 1
            while end < len(token_ids) and token_ids[end] not in self._apart:
                end += 1
            inside = [seam for seam in seams if seam > begin]
            del seams[-len(inside) :]
            token_ids[begin:end] = self._as_one([token_ids[a:b] for a, b in pairwise([begin, *inside, end])])
        return token_ids

    def _as_one(self, pieces: Sequence[list[int]]) -> list[int]:
        """Return the tokens of the text of all pieces, or the pieces as they are if their texts have other tokens."""
        together = list(chain(*pieces))
        texts = [self._decoded(piece) for piece in pieces]
        whole = "".join(texts)
        if [self._encoded(text) for text in texts] != list(pieces) or self._decoded(together) != whole:
            return together
        return self._encoded(whole)

    def _decoded(self, token_ids: Sequence[int]) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=False))

    def _encoded(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)
