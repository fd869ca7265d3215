"""Tokens to text, one at a time, never showing half a character."""

from collections.abc import Sequence

from tokenizers import Tokenizer

# Decoders need some tokens of context: whether a word begins with a space depends on what stands before it.
_CONTEXT = 8
_MAX_BYTES = 4
"""Bytes of the longest character."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of one output as its tokens arrive. Special tokens give no text.

    tokenizers' own DecodeStream is not used: it raises where bytes that are no character follow ones that are, and
    takes the end of a prompt for output if that does not end in a whole character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []
        self._context, self._shown = self._end_of(prompt_ids)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        self._pending.append(token_id)
        text = self._new_text()
        if not text or text.endswith(_BROKEN):
            return ""
        self._context, self._shown = self._pending, self._decode(self._pending)
        self._pending = []
        return text

    def flush(self) -> str:
        """The complete characters among the tokens that gave no text yet, at the end of the output."""
        text = self._new_text().rstrip(_BROKEN) if self._pending else ""
        self._pending = []
        return text

    def _new_text(self) -> str:
        """What the pending tokens add."""
        text = self._decode(self._context + self._pending)
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        # What was half a character at the end of the prompt may have become a whole one.
        whole = self._shown.rstrip(_BROKEN)
        if whole and text.startswith(whole):
            return text[len(whole) :]
        # Byte fallback breaks all of a run of bytes for one that is wrong, even characters that were shown already.
        return self._decode(self._pending)

    def _end_of(self, prompt_ids: Sequence[int]) -> tuple[list[int], str]:
        """The prompt's last tokens and their text; they don't begin within a character if that can be helped."""
        for length in range(_CONTEXT, _CONTEXT + _MAX_BYTES):
            tail = list(prompt_ids[-length:])
            text = self._decode(tail)
            if not text.startswith(_BROKEN):
                break
        return tail, text

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))
