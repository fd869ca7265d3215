"""Tokenises the words that an output must not contain."""

from collections.abc import Sequence
from typing import Any


def token_sequences(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, with and without a leading space. `tokenizer` is a transformers tokenizer.

    White space itself, and a word that begins with other white space than spaces, is taken as it is.
    """
    spellings = [spelling for word in words for spelling in _spellings(word)]
    sequences = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in spellings)
    return tuple(sequence for sequence in sequences if sequence)


def _spellings(word: str) -> tuple[str, ...]:
    bare = word.lstrip(" ")
    return (word,) if not bare or bare[0].isspace() else (bare, f" {bare}")
