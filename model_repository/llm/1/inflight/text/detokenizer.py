"""Tokens to text, one at a time, never showing half a character."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# Decoders need some tokens of context: whether a word begins with a space depends on what stands before it.
_CONTEXT = 8
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of one output as its tokens arrive. Special tokens give no text."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = list(prompt_ids[-_CONTEXT:])
        self._pending: list[int] = []
        self._stream = DecodeStream(ids=list(self._shown), skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        self._pending.append(token_id)
        text = self._stream.step(self._tokenizer, token_id)
        if text is None:
            return ""
        self._shown = (self._shown + self._pending)[-_CONTEXT:]
        self._pending.clear()
        return str(text)

    def flush(self) -> str:
        """The complete characters among the tokens that gave no text yet, at the end of the output."""
        if not self._pending:
            return ""
        before = self._decode(self._shown)
        text = self._decode(self._shown + self._pending)
        self._pending.clear()
        return text[len(before) :].rstrip(_BROKEN) if text.startswith(before) else ""

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))
