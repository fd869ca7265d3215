"""Tokenises the words that an output must not contain."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inflight.errors import InvalidRequest
from inflight.text.unknown_text import unknown_text_refused

# After it, a tokenizer adds no space of its own, as Llama 2's does at the beginning of a text.
_ANCHOR = "\n"


def token_sequences(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, with and without a leading space. `tokenizer` is a transformers tokenizer.

    White space itself, and a word that begins with other white space than spaces, is taken as it is.
    """

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    anchor = _anchor_tokens(encode)

    def tokens(spelling: str) -> Iterator[tuple[int, ...]]:
        yield encode(spelling)
        if anchor is None:
            return
        anchored = encode(_ANCHOR + spelling)
        if anchored[: len(anchor)] == anchor:
            yield anchored[len(anchor) :]

    sequences = (sequence for word in words for spelling in _spellings(word) for sequence in tokens(spelling))
    return tuple(dict.fromkeys(sequence for sequence in sequences if sequence))


def _anchor_tokens(encode: Callable[[str], tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the tokens of the anchor, or None if the tokenizer has no token for it."""
    try:
        with unknown_text_refused("bad_words"):
            return encode(_ANCHOR)
    except InvalidRequest:
        return None


def _spellings(word: str) -> tuple[str, ...]:
    bare = word.lstrip(" ")
    return (word,) if not bare or bare[0].isspace() else (bare, f" {bare}")
