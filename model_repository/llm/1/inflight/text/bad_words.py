"""Words that must not occur, as tokens."""

from collections.abc import Sequence
from typing import Any


def token_sequences(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """What spells each word in the midst of a text and at the beginning of one; `tokenizer` is one of transformers'."""
    spellings = [space + word.lstrip() for word in words for space in ("", " ")]
    sequences = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in spellings)
    return tuple(sequence for sequence in sequences if sequence)
