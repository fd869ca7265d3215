"""Tokenises the words that an output must not contain."""

from collections.abc import Sequence
from typing import Any


def token_sequences(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, with and without a leading space. `tokenizer` is a transformers tokenizer."""
    spellings = [space + word.lstrip() for word in words for space in ("", " ")]
    sequences = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in spellings)
    return tuple(sequence for sequence in sequences if sequence)
